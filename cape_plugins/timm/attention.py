"""Positions inside the self-attention of timm's blocks, which get them as an argument."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.layers import Attention, register_notrace_module, trunc_normal_
from timm.models.naflexvit import NaFlexVit
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from cape_plugins.attention import Given, PositionalAttention
from cape_plugins.positions import Positions
from cape_plugins.timm.options import HOST, ImageSettings
from cape_plugins.timm.registry import remedy
from cape_plugins.variants import get

register_notrace_module(Positions)  # makes tensors whose sizes depend on the input


@register_notrace_module  # positions have sizes that torch.fx cannot trace
class CapeAttention(Attention):
    """timm's self-attention, with its arguments and weights, and a variant's positions."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.positional: PositionalAttention | None = None  # None: timm's own attention

    def forward(self, x: Tensor, given: Given) -> Tensor:  # type: ignore[override]
        """(B, N, dim) → (B, N, dim); the mask is in ``given``."""
        if self.positional is None:
            return super().forward(x, given.mask)
        batch, tokens, _ = x.shape
        gate = None if self.gate is None else self.gate(x).sigmoid()
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, heads, N, head_dim)
        query, key = self.q_norm(query), self.k_norm(key)
        dropout = self.attn_drop.p if self.training else 0.0
        x, weights = self.positional(
            query, key, value, given, dropout, need_weights=not self.fused_attn
        )
        if weights is not None and not self.training:
            self.attn_drop(weights)  # changes nothing; timm's AttentionExtract listens here
        x = self.norm(x.transpose(1, 2).reshape(batch, tokens, self.attn_dim))  # (B, N, ·)
        return self.proj_drop(self.proj(x if gate is None else x * gate))


class CapeBlock(Block):
    """timm's block, which hands its attention what the core gives for positions."""

    def forward(  # type: ignore[override]  # without positions it would be another model
        self, x: Tensor, rope: Given, attn_mask: Tensor | None = None
    ) -> Tensor:
        """As timm's; ``rope`` is NaFlexVit's name for what its blocks get, the mask included."""
        assert attn_mask is None, "the mask belongs to what the core gives"
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x), rope)))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


def block_classes(pos: str, given: Mapping[str, Any]) -> dict[str, type[nn.Module]]:
    """Arguments for timm's constructor that make it build our blocks and attention.

    Empty unless the variant sits in self-attention. Another class in ``given`` stays, and
    :func:`install_positions` refuses it.
    """
    if get(pos, axes=2).attends is None:
        return {}
    ours: dict[str, type[nn.Module]] = dict(block_fn=CapeBlock, attn_layer=CapeAttention)
    standard = (None, "", "attn", Block, Attention)
    return {name: ours[name] for name in ours if given.get(name) in standard}


def install_positions(
    model: VisionTransformer | NaFlexVit, settings: ImageSettings, patches: int
) -> Positions:
    """Put the variant's attention into the blocks of timm's ViT or NaFlexVit.

    Args:
        model: built with the arguments of :func:`block_classes`.
        settings: the variant and its options.
        patches: number of patches along the longer side of training images; alibi measures
            distances in patches of this grid.

    Returns:
        The core's module, for the tokens with their prefix.

    Raises:
        ValueError: a block or its attention is not ours, or ``patch_drop_rate`` drops patches
            before the blocks.
    """
    attentions = []
    sizes: dict[str, Any] = dict(dim=model.embed_dim, spacing=2 / max(patches - 1, 1))
    if get(settings.pos, axes=2).attends is not None:
        attentions = _attentions(model, settings.pos)
        first = attentions[0]
        sizes |= dict(heads=first.num_heads, head_dim=first.head_dim, layers=len(attentions))
    # a grid is centred, and spread evenly over the range of random positions, already
    span = (-settings.extent, settings.extent)
    sets = dict(mean_normalize=False, random_range=span, spread=False)
    # ε that depends on each image is no number that a checkpoint could keep
    remembers = {} if settings.local_shift_is_given else {"max_local_shift": None}
    options = dict(settings.options)
    if "max_local_shift" in options and not settings.local_shift_is_given:
        options["max_local_shift"] = settings.extent / patches  # a forward has that of its own grid
    position = HOST.positions(settings.pos, options, sets, remembers=remembers, **sizes)
    # without spread it changes nothing in evaluation, where γ may be another
    position.mark.training_only |= {"random_range"}
    patch = max(model.patch_embed.patch_size) if isinstance(model, VisionTransformer) else None
    position.mark.remedy = partial(remedy, patch)
    if "max_local_shift" in position.options and not settings.local_shift_is_given:
        position.options["max_local_shift"] = "half a patch"  # what print(model) shows
    weight = next(model.parameters())
    if attentions:
        for attention, positional in zip(attentions, position.hand_over(), strict=True):
            attention.positional = positional and positional.to(weight)
    return position.to(weight)


def _attentions(model: VisionTransformer | NaFlexVit, pos: str) -> list[CapeAttention]:
    """The attention of each block; ValueError if positions would not reach it."""
    if not isinstance(model.patch_drop, nn.Identity | None):
        raise ValueError(
            f"patch_drop_rate > 0 drops patches before the attention of {pos}, which then cannot "
            "match positions to patches: set it to 0, or choose a variant added at the input"
        )
    found = []
    for block in model.blocks.children():
        attention = getattr(block, "attn", None)
        if not (isinstance(block, CapeBlock) and isinstance(attention, CapeAttention)):
            raise ValueError(
                f"{pos} needs CapeBlock with CapeAttention in place of timm's own, and the model "
                f"has {type(block).__name__} with {type(attention).__name__}: leave block_fn, "
                "attn_layer, attn_type and other options that replace them at their defaults, or "
                "choose a variant that is added at the input"
            )
        found.append(attention)
    return found


def class_position(cls_token: Tensor | None, position: Positions) -> nn.Parameter | None:
    """The class token's learnable position; none where patches get nothing at the input."""
    if cls_token is None or position.added is None:
        return None
    made = nn.Parameter(torch.empty_like(cls_token))
    trunc_normal_(made, std=0.02)
    return made


def whole_mask(tokens: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """timm's two arguments as one mask for tokens (B, N, dim): (1, N, N), or 4-D as given.

    As in timm, ``is_causal`` comes before ``attn_mask``.
    """
    if is_causal:
        length = tokens.shape[1]
        return torch.ones(1, length, length, dtype=torch.bool, device=tokens.device).tril()
    # (N, N) or of each head; for the core three axes are of each sample
    return attn_mask[None] if attn_mask is not None and attn_mask.ndim < 4 else attn_mask
