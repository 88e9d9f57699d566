"""Positions inside the self-attention of timm's blocks."""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import (
    Attention,
    maybe_add_mask,
    register_notrace_function,
    resolve_self_attn_mask,
)
from timm.models.naflexvit import NaFlexVit
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from cape_plugins.attention import CurrentPositions, PositionalAttention
from cape_plugins.positions import grid_positions
from cape_plugins.variants import attention_for, get


class PositionedAttention(Attention):
    """timm's self-attention, and what a variant does in it; timm's own until it is given that.

    Made by timm's blocks as their ``attn_layer``; :func:`place_in_attention` completes it.
    Positions come past the blocks, not through them: TorchScript cannot compile that, tracing and
    export can.
    """

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
        bias = resolve_self_attn_mask(tokens, query, attn_mask, is_causal)
        logits = self.relative.logits(query * self.scale, tokens, positions)
        if logits is not None:
            bias = maybe_add_mask(logits, bias).to(query.dtype)
        if self.fused_attn and not self.relative.learns_values:
            dropout = self.attn_drop.p if self.training else 0.0
            x = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
        else:
            scores = maybe_add_mask(query * self.scale @ key.mT, bias)
            weights = self.attn_drop(scores.softmax(dim=-1))
            mixed = self.relative.mix(weights)
            x = weights @ value if mixed is None else weights @ value + mixed
        x = self.norm(x.transpose(1, 2).reshape(batch, tokens, self.attn_dim))
        return self.proj_drop(self.proj(x if gate is None else x * gate))


def place_in_attention(
    model: VisionTransformer | NaFlexVit, pos: str, context: int
) -> CurrentPositions | None:
    """Put what the variant does in self-attention into the blocks of timm's ViT or NaFlexVit.

    Args:
        model: made with :class:`PositionedAttention` as its ``attn_layer``, where the variant
            does something there.
        pos: the variant.
        context: patches along the longer side of the image.

    Returns:
        Where the model says, in each forward, which positions its tokens have, (B|1, tokens, 2):
        see :func:`place_image` and :func:`with_prefix`. None where the variant does nothing in
        self-attention.

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
        relative = attention_for(pos, layer, head_dim=head_dim, heads=heads, context=context)
        if relative is not None:
            attention.relative = relative.to(attention.qkv.weight)
        attention.current = current
    return current


def with_prefix(positions: Tensor, prefix: int) -> Tensor:
    """Patches' positions (B|1, N, 2) → tokens': NaN for the class token and the registers."""
    return F.pad(positions, (0, 0, prefix, 0), value=float("nan"))


def place_image(
    current: CurrentPositions, grid: tuple[int, int], extent: float, prefix: int, like: Tensor
) -> None:
    """Say which positions the tokens of an image have, (1, prefix + height · width, 2)."""
    current.positions = with_prefix(_grid(grid[0], grid[1], extent, like), prefix)


@torch.fx.wrap  # its sizes depend on the input, which torch.fx cannot trace
@register_notrace_function
def _grid(height: int, width: int, extent: float, like: Tensor) -> Tensor:
    return grid_positions(height, width, extent, like.device)[None]
