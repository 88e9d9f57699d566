"""Positions inside the self-attention of timm's blocks, which get them as an argument."""

from collections.abc import Mapping
from typing import Any

from timm.layers import Attention, register_notrace_module, resolve_self_attn_mask
from timm.models.naflexvit import NaFlexVit
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from cape_plugins.attention import AttentionSettings, PositionalAttention
from cape_plugins.timm.loading import is_positional
from cape_plugins.timm.positions import ImageSettings, PatchPositions


@register_notrace_module  # positions have sizes that torch.fx cannot trace
class CapeAttention(Attention):
    """timm's self-attention, with its arguments and weights, and a variant's positions."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.positional: PositionalAttention | None = None  # None: timm's own attention

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        positions: Tensor | None = None,
    ) -> Tensor:
        """As timm's, (B, N, dim) → (B, N, dim); prepared ``positions`` are (1 or B, N, …)."""
        if self.positional is None:
            return super().forward(x, attn_mask, is_causal)
        batch, tokens, _ = x.shape
        gate = None if self.gate is None else self.gate(x).sigmoid()
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, heads, N, head_dim)
        query, key = self.q_norm(query), self.k_norm(key)
        mask = resolve_self_attn_mask(tokens, query, attn_mask, is_causal)
        dropout = self.attn_drop.p if self.training else 0.0
        x, weights = self.positional(
            query, key, value, positions, mask, dropout, need_weights=not self.fused_attn
        )
        if weights is not None and not self.training:
            self.attn_drop(weights)  # changes nothing; timm's AttentionExtract listens here
        x = self.norm(x.transpose(1, 2).reshape(batch, tokens, self.attn_dim))  # (B, N, ·)
        return self.proj_drop(self.proj(x if gate is None else x * gate))


class CapeBlock(Block):
    """timm's block, which hands the positions of its tokens to its attention."""

    def forward(  # type: ignore[override]  # without positions it would be another model
        self, x: Tensor, rope: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """As timm's; ``rope``, NaFlexVit's name for the argument, holds the prepared positions."""
        attended = self.attn(self.norm1(x), attn_mask, is_causal, rope)
        x = x + self.drop_path1(self.ls1(attended))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


def block_classes(settings: ImageSettings, given: Mapping[str, Any]) -> dict[str, type[nn.Module]]:
    """Arguments for timm's constructor that make it build our blocks and attention.

    Empty unless the variant sits in self-attention. Another class in ``given`` stays, and
    :func:`install_positions` refuses it.
    """
    if settings.variant.attention is None:
        return {}
    ours: dict[str, type[nn.Module]] = dict(block_fn=CapeBlock, attn_layer=CapeAttention)
    standard = (None, "", "attn", Block, Attention)
    return {name: ours[name] for name in ours if given.get(name) in standard}


def install_positions(
    model: VisionTransformer | NaFlexVit, settings: ImageSettings, patches: int
) -> PatchPositions:
    """Put the variant's attention into the blocks of timm's ViT or NaFlexVit.

    Args:
        model: built with the arguments of :func:`block_classes`.
        settings: the variant and its options.
        patches: number of patches along the longer side of training images; alibi measures
            distances in patches of this grid.

    Returns:
        The module that adds positions at the input and prepares them for the blocks.

    Raises:
        ValueError: a block or its attention is not ours, or ``patch_drop_rate`` drops patches
            before the blocks.
    """
    attention_settings = None
    if settings.variant.attention is not None:
        attentions = _attentions(model, settings.pos)
        first, unit, scale = attentions[0], 2 / max(patches - 1, 1), settings.frequency_scale
        attention_settings = AttentionSettings(
            first.head_dim, first.num_heads, axes=2, unit=unit, frequency_scale=scale
        )
        layers = settings.attention_layers(len(attentions), attention_settings)
        for attention, positional in zip(attentions, layers, strict=True):
            attention.positional = positional and positional.to(attention.qkv.weight)
    return PatchPositions(model.embed_dim, settings, attention_settings, model.num_prefix_tokens)


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


def hides(model: NaFlexVit) -> bool:
    """Whether the prepared positions hide padding in every block, which then needs no mask."""
    blocks: Any = model.blocks
    layers = [block.attn.positional for block in blocks]
    return all(layer is not None and layer.hides for layer in layers)


def positional_parameters(model: nn.Module) -> set[str]:
    """Names of learned positional parameters; like timm's, they get no weight decay."""
    names = [name for name, _ in model.named_parameters()]
    return {name for name in names if is_positional(name)}
