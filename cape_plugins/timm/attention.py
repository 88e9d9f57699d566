"""Positions inside the self-attention of timm's blocks."""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import (
    Attention,
    maybe_add_mask,
    register_notrace_module,
    resolve_self_attn_mask,
)
from timm.models.naflexvit import NaFlexVit
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from cape_plugins.attention import CurrentPositions, PositionalAttention, joined
from cape_plugins.embedding import PositionalEmbedding2d
from cape_plugins.variants import attention_for, get


@register_notrace_module  # torch.fx must not take the positions of its own run for constants
class PositionedAttention(Attention):
    """timm's self-attention, and what a variant does in it; timm's own until it is given that.

    Made by timm's blocks as their ``attn_layer``; :func:`place_in_attention` completes it.
    Positions come past the blocks, not through them: TorchScript cannot compile that, tracing and
    export can.
    """

    def __prepare_scriptable__(self) -> nn.Module:
        if self.relative is not None:
            raise ValueError(
                f"torch.jit.script cannot compile {type(self.relative).__name__}, whose positions "
                "come past timm's blocks: use torch.jit.trace, torch.compile, torch.export or ONNX"
            )
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.relative: PositionalAttention | None = None
        self.current = CurrentPositions()

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Tokens (B, N, dim) → (B, N, dim); positions are those of the current batch."""
        if self.relative is None:
            return super().forward(x, attn_mask=attn_mask, is_causal=is_causal)
        batch, tokens, _ = x.shape
        positions = self.current.positions
        gate = None if self.gate is None else self.gate(x).sigmoid()
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        query = self.relative.place(self.q_norm(query), positions)
        key = self.relative.place(self.k_norm(key), positions)
        # added to the scores, as timm's masks are: a query that sees no key at all is no NaN
        mask = resolve_self_attn_mask(tokens, query, attn_mask, is_causal)
        query = self.relative.sharpen(query, tokens, mask)
        if self.fused_attn and not self.relative.learns_values:
            dropout = self.attn_drop.p if self.training else 0.0
            x = self.relative.attend(query, key, value, positions, mask, dropout)
        else:
            query = query * self.scale
            logits = self.relative.logits(query, tokens, positions)
            scores = maybe_add_mask(query @ key.mT, joined(logits, mask, query.dtype))
            weights = self.attn_drop(scores.softmax(dim=-1))
            mixed = self.relative.mix(weights)
            x = weights @ value if mixed is None else weights @ value + mixed
        x = self.norm(x.transpose(1, 2).reshape(batch, tokens, self.attn_dim))
        return self.proj_drop(self.proj(x if gate is None else x * gate))


def place_in_attention(
    model: VisionTransformer | NaFlexVit, pos: str, context: int, frequency_scale: float = 1.0
) -> CurrentPositions | None:
    """Put what the variant does in self-attention into the blocks of timm's ViT or NaFlexVit.

    Args:
        model: made with :class:`PositionedAttention` as its ``attn_layer``, where the variant
            does something there.
        pos: the variant.
        context: patches along the longer side of the image.
        frequency_scale: multiplies the frequencies of rotations.

    Returns:
        Where :class:`AttendedEmbedding2d` says, in each forward, which positions the tokens have,
        (B|1, tokens, 2). None where the variant does nothing in self-attention.

    Raises:
        ValueError: the blocks' attention is another than timm's ``Attention``, or patches are
            dropped on their way to it.
    """
    if get(pos).attention is None:
        return None
    if not isinstance(model.patch_drop, nn.Identity | None):
        raise ValueError(
            f"patch_drop_rate > 0 leaves the attention of {pos} without the positions of the "
            "patches that are left: set it to 0, or choose a variant that is added at the input"
        )
    current = CurrentPositions()
    for layer, block in enumerate(model.blocks):
        attention = getattr(block, "attn", None)
        if not isinstance(attention, PositionedAttention):
            raise ValueError(
                f"{pos} sits in timm's Attention, and {type(block).__name__} has "
                f"{type(attention).__name__}: leave block_fn, attn_layer, attn_type and what else "
                "replaces it at their defaults, or choose a variant that is added at the input"
            )
        head_dim, heads = attention.head_dim, attention.num_heads
        relative = attention_for(
            pos,
            layer,
            head_dim=head_dim,
            heads=heads,
            context=context,
            axes=2,
            frequency_scale=frequency_scale,
        )
        if relative is not None:
            attention.relative = relative.to(attention.qkv.weight)
            if layer == 0:
                current.prepare = relative.prepare
        attention.current = current
    return current


def use_logn(model: nn.Module, logn: int) -> None:
    """Multiply the logits of a ViT's self-attention by log N / log N_train, timm's own ViTs too.

    N are the tokens that a query sees, the class token and the registers among them.

    Args:
        model: whose blocks have timm's ``Attention``, made with this function in mind or not.
        logn: N_train, 0 for off.

    Raises:
        ValueError: the model has no blocks, or they have another attention.
    """
    blocks = list(getattr(model, "blocks", []))
    for block in blocks:
        attention = getattr(block, "attn", None)
        if type(attention) is Attention:
            attention.__class__ = PositionedAttention  # all but what stands in the next line
            vars(attention).update(relative=None, current=CurrentPositions())
        if not isinstance(attention, PositionedAttention):
            blocks = []
            break
        attention.relative = attention.relative or PositionalAttention()
        attention.relative.logn = logn
    if not blocks:
        raise ValueError(
            f"attention_logn sits in timm's Attention, which is not what {type(model).__name__} "
            "has in each of its blocks: leave it out, or choose another model"
        )


def positional_parameters(model: nn.Module) -> set[str]:
    """Names of what variants learn in self-attention: not decayed, as timm's positions are not."""
    return {
        f"{name}.{parameter}"
        for name, module in model.named_modules()
        if isinstance(module, PositionalAttention)
        for parameter, _ in module.named_parameters()
    }


@register_notrace_module  # torch.fx cannot trace sizes that depend on the input
class AttendedEmbedding2d(PositionalEmbedding2d):
    """Shows the attention of the blocks the positions that it adds, augmented once for all.

    Args:
        dim, pos, options: as for :class:`cape_plugins.PositionalEmbedding2d`.
        current: where the attention reads them.
        prefix: tokens before the patches (class token, registers), which have no position: NaN.
    """

    def __init__(
        self, dim: int, pos: str, *, current: CurrentPositions, prefix: int, **options: Any
    ) -> None:
        super().__init__(dim, pos, **options)
        self.current = current
        self.prefix = prefix

    def forward(
        self, content: Tensor, grid: tuple[int, int], generator: torch.Generator | None = None
    ) -> Tensor:
        """As :class:`cape_plugins.PositionalEmbedding2d`."""
        return self._attend(content, self.augmented(content, grid, generator))

    def forward_at(
        self,
        content: Tensor,
        positions: Tensor,
        grids: Tensor,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """As :class:`cape_plugins.PositionalEmbedding2d`."""
        return self._attend(content, self.augmented_at(content, positions, grids, generator))

    def _attend(self, content: Tensor, positions: Tensor) -> Tensor:
        self.current.show(F.pad(positions, (0, 0, self.prefix, 0), value=float("nan")))
        return self.add(content, positions)
