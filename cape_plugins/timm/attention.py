"""Positions inside the self-attention of timm's blocks, which get them as an argument."""

from typing import Any

from timm.layers import Attention, register_notrace_module, resolve_self_attn_mask
from timm.models.naflexvit import NaFlexVit
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from cape_plugins.attention import AttentionSettings, PositionalAttention
from cape_plugins.timm.positions import ImageSettings, PatchPositions


@register_notrace_module  # positions have sizes that torch.fx cannot trace
class PositionedAttention(Attention):
    """timm's self-attention, and what a variant does in it; timm's own where ``relative`` is None.

    :func:`add_positions` and :func:`use_logn` make it of timm's, which has no such attribute.
    """

    relative: PositionalAttention | None

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Tokens (B, N, dim) → (B, N, dim); the masks are as in timm.

        ``positions`` are those of :func:`cape_plugins.variants.prepare`, (B or 1, N, …).
        """
        if self.relative is None:
            return super().forward(x, attn_mask, is_causal)
        batch, tokens, _ = x.shape
        gate = None if self.gate is None else self.gate(x).sigmoid()
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        query, key = self.q_norm(query), self.k_norm(key)
        mask = resolve_self_attn_mask(tokens, query, attn_mask, is_causal)
        dropout = self.attn_drop.p if self.training else 0.0
        x, weights = self.relative(
            query, key, value, positions, mask, dropout, need_weights=not self.fused_attn
        )
        if weights is not None and not self.training:
            self.attn_drop(weights)  # changes nothing; timm's AttentionExtract listens here
        x = self.norm(x.transpose(1, 2).reshape(batch, tokens, self.attn_dim))
        return self.proj_drop(self.proj(x if gate is None else x * gate))


class PositionedBlock(Block):
    """timm's block, which hands the positions of its tokens to its attention."""

    def forward(  # type: ignore[override]  # without positions it would be another model
        self, x: Tensor, rope: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Tokens (B, N, dim) → (B, N, dim); the masks are as in timm.

        ``rope`` are the prepared positions, by the name by which NaFlexVit hands them on.
        """
        attended = self.attn(self.norm1(x), attn_mask, is_causal, rope)
        x = x + self.drop_path1(self.ls1(attended))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


def add_positions(
    model: VisionTransformer | NaFlexVit, settings: ImageSettings, patches: int
) -> PatchPositions:
    """Put what the variant does in self-attention into the blocks of timm's ViT or NaFlexVit.

    Args:
        model: timm's, of its standard blocks if the variant does something in them.
        settings: the variant.
        patches: along the longer side of an image in training; alibi counts distances in them.

    Returns:
        what adds positions at the input, and prepares them for the blocks. ValueError: the blocks
        or their attention are others, or patches are dropped on their way to them.
    """
    attention = None
    if settings.variant.attention is not None:
        attention = _into_blocks(model, settings, patches)
    if settings.attention_logn:
        use_logn(model, settings.attention_logn)
    return PatchPositions(model.embed_dim, settings, attention, prefix=model.num_prefix_tokens)


def _into_blocks(
    model: VisionTransformer | NaFlexVit, settings: ImageSettings, patches: int
) -> AttentionSettings:
    if not isinstance(model.patch_drop, nn.Identity | None):
        raise ValueError(
            f"patch_drop_rate > 0 leaves the attention of {settings.pos} without the positions of "
            "the patches that are left: set it to 0, or choose a variant that is added at the input"
        )
    blocks: Any = model.blocks
    for block in blocks:
        attention = getattr(block, "attn", None)
        if (type(block), type(attention)) != (Block, Attention):
            raise ValueError(
                f"{settings.pos} sits in timm's Block and Attention, and the model has "
                f"{type(block).__name__} with {type(attention).__name__}: leave block_fn, "
                "attn_layer, attn_type and what else replaces them at their defaults, or choose a "
                "variant that is added at the input"
            )
        block.__class__, attention.__class__ = PositionedBlock, PositionedAttention
    attentions = [block.attn for block in blocks]
    found = AttentionSettings(
        head_dim=attentions[0].head_dim,
        heads=attentions[0].num_heads,
        axes=2,
        unit=2 / max(patches - 1, 1),
        frequency_scale=settings.frequency_scale,
    )
    layers = settings.attention_layers(len(attentions), found)
    for attention, relative in zip(attentions, layers, strict=True):
        attention.relative = relative and relative.to(attention.qkv.weight)
    return found


def use_logn(model: nn.Module, logn: int) -> None:
    """Multiply the logits of a ViT's self-attention by log N / log ``logn``, timm's own ViTs too.

    N are the tokens that a query sees, class token and registers among them; ``logn`` is N in
    training, 0 for off. ValueError: the model's blocks have another attention than timm's.
    """
    blocks: Any = getattr(model, "blocks", [])
    attentions: list[Any] = [getattr(block, "attn", None) for block in blocks]
    if not attentions or not {type(one) for one in attentions} <= {Attention, PositionedAttention}:
        raise ValueError(
            f"attention_logn sits in timm's Attention, which is not what {type(model).__name__} "
            "has in each of its blocks: leave it out, or choose another model"
        )
    for attention in attentions:
        if type(attention) is Attention:
            attention.__class__ = PositionedAttention  # which adds what the next line sets
        attention.relative = getattr(attention, "relative", None) or PositionalAttention()
        attention.relative.logn = logn


def positional_parameters(model: nn.Module) -> set[str]:
    """Names of what is learned about positions: not decayed, as timm's positions are not."""
    names = [name for name, _ in model.named_parameters()]
    return {name for name in names if ".relative." in name or name.endswith("cls_pos_embed")}
