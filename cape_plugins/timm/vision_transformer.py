"""ViT with positions computed from the patch grid: nopos, sinpos and CAPE, at any image size.

Paper: CAPE: Encoding Relative Positions with Continuous Augmented Positional Embeddings,
https://arxiv.org/abs/2106.03143, section 4.1. The variants bear the paper's names; its abspos is
timm's own ``vit_*``/``deit_*``, and its ablations are options: ``max_global_scale=1`` (λ = 1),
``max_global_shift=0`` (Δ = 0), ``max_local_shift=0`` (ε = 0).

The file has timm's name for it on purpose: timm's registry and tests group models by it.
"""

import inspect
import logging
import math
from typing import Any

import torch
from timm.layers import register_notrace_module, trunc_normal_
from timm.models import generate_default_cfgs
from timm.models import naflexvit as timm_naflexvit
from timm.models import vision_transformer as timm_vit
from torch import Tensor, nn

from cape_plugins.attention import CurrentPositions
from cape_plugins.embedding import PositionalEmbedding2d
from cape_plugins.logn import check_logn
from cape_plugins.timm.attention import (
    AttendedEmbedding2d,
    PositionedAttention,
    place_in_attention,
    positional_parameters,
    use_logn,
)
from cape_plugins.timm.mark import adapt, add_mark
from cape_plugins.timm.registry import (
    SIZES,
    names_without_table,
    register_models,
    untrained_cfg,
    variants_by_name,
)
from cape_plugins.variants import get, names, refuse_options

__all__ = ["VisionTransformerCape"]

_logger = logging.getLogger(__name__)

# torch.fx must not trace into it: it makes tensors whose sizes depend on the input
register_notrace_module(PositionalEmbedding2d)


class VisionTransformerCape(timm_vit.VisionTransformer):
    """timm's VisionTransformer, positions added by :class:`cape_plugins.PositionalEmbedding2d`.

    Takes images of any size that the patch size divides (with ``dynamic_img_pad`` any size at
    all), without a flag. The class token has its own learnable position, except in nopos or with
    ``no_embed_class``; register tokens have none.

    Args:
        pos: a variant for images, see :mod:`cape_plugins.variants`: ``nopos``, ``sinpos``,
            ``cape``, …, but none with a table, which is timm's own.
        max_global_shift: Δ of each axis is uniform in ± this; the image spans [-1, 1].
        max_local_shift: ε is uniform in ± this, one number or (height, width); None is extent / N
            per axis, N patches along it.
        max_global_scale: λ is log-uniform in [1 / this, this].
        extent: the paper's γ (Table 6), 1 in training.
        frequency_scale: multiplies all frequencies; 1 is the paper's, the models
            named ``…_low_…`` have theirs, see :data:`cape_plugins.timm.registry.LOW`.
        attention_logn: with every variant: multiply the logits of self-attention by log N /
            log of this, N the tokens that a query sees, see :mod:`cape_plugins.logn`; this is N
            in training, the class token and registers among them (197 at 224 pixels). Default:
            off, as in the paper.
        dynamic_img_size: as in timm, but on by default.
        kwargs: the other arguments of timm's VisionTransformer, which rejects unknown ones.

    Raises:
        ValueError: an option is out of range, whatever ``pos`` is, or ``pos`` does not take it; a
            variant that sits in self-attention, with blocks or ``patch_drop_rate`` that leave it
            no place there.
    """

    def __init__(
        self,
        *args: Any,
        pos: str = "cape",
        max_global_shift: float = 0.5,
        max_local_shift: float | tuple[float, float] | None = None,
        max_global_scale: float = 1.4,
        extent: float = 1.0,
        frequency_scale: float = 1.0,
        attention_logn: int | None = None,
        dynamic_img_size: bool = True,
        **kwargs: Any,
    ) -> None:
        check_pos(pos, kwargs)
        logn = check_logn(attention_logn)
        if get(pos).attention is not None:
            kwargs.setdefault("attn_layer", PositionedAttention)
        kwargs.update(pos_embed="none", dynamic_img_size=dynamic_img_size)
        super().__init__(*args, **kwargs)
        self.position = make_position(
            self.embed_dim,
            pos,
            place_in_attention(self, pos, max(self.patch_embed.grid_size), frequency_scale),
            self.num_prefix_tokens,
            max_global_shift=max_global_shift,
            max_local_shift=max_local_shift,
            max_global_scale=max_global_scale,
            extent=extent,
            frequency_scale=frequency_scale,
        )
        if logn:
            use_logn(self, logn)
        add_mark(self)
        if self.cls_token is None or self.no_embed_class or self.position.adds_nothing:
            self.cls_pos_embed = None
        else:
            self.cls_pos_embed = nn.Parameter(torch.empty_like(self.cls_token))
            trunc_normal_(self.cls_pos_embed, std=0.02)

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """As timm's; called by its constructor too, before the class token has a position."""
        super().init_weights(mode, needs_reset)
        cls_pos_embed = getattr(self, "cls_pos_embed", None)
        if cls_pos_embed is not None:
            trunc_normal_(cls_pos_embed, std=0.02)

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """timm's set, the class token's position, and what the attention learns of positions."""
        return {*super().no_weight_decay(), "cls_pos_embed", *positional_parameters(self)}

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """timm's groups, the class token's position in the stem."""
        groups = super().group_matcher(coarse)
        return {**groups, "stem": groups["stem"] + "|cls_pos_embed"}

    def _pos_embed(self, x: Tensor) -> Tensor:
        """Patches (B, H, W, C), or (B, H·W, C) of the fixed size, → tokens with prefix."""
        if self.dynamic_img_size:
            height, width = x.shape[1], x.shape[2]
            x = x.reshape(x.shape[0], -1, x.shape[3])
        else:
            height, width = self.patch_embed.grid_size
        x = self.position(x, (height, width))
        tokens = []
        if self.cls_token is not None:
            cls_token: Tensor = self.cls_token
            if self.cls_pos_embed is not None:
                cls_token = cls_token + self.cls_pos_embed
            tokens.append(cls_token.expand(x.shape[0], -1, -1))
        if self.reg_token is not None:
            tokens.append(self.reg_token.expand(x.shape[0], -1, -1))
        tokens.append(x)
        return self.pos_drop(torch.cat(tokens, dim=1))


def check_pos(pos: str, kwargs: dict[str, Any]) -> None:
    """Raise ValueError for an unknown variant or a table, which are timm's own models."""
    ours = names_without_table()
    if "pos_embed" in kwargs or pos in {*names(2)} - {*ours}:
        raise ValueError(
            "learnable absolute positions (abspos, pos_embed) are timm's own models: create "
            f"vit_tiny_patch16_224 and its like; here pos is one of {', '.join(ours)}"
        )
    get(pos, ours)


def make_position(
    dim: int, pos: str, current: CurrentPositions | None, prefix: int, **options: Any
) -> PositionalEmbedding2d:
    """What adds positions to patches, and shows them to the attention.

    Args:
        dim, pos, options: as for :class:`cape_plugins.PositionalEmbedding2d`.
        current: of :func:`cape_plugins.timm.attention.place_in_attention`.
        prefix: tokens before the patches.

    Raises:
        ValueError: an option is out of range, or given although the variant does not take it.
    """
    if current is None:
        position = PositionalEmbedding2d(dim, pos, **options)
    else:
        position = AttendedEmbedding2d(dim, pos, current=current, prefix=prefix, **options)
    parameters = inspect.signature(PositionalEmbedding2d).parameters
    defaults = {name: parameters[name].default for name in options}
    refuse_options(pos, options, defaults, axes=2)
    return position


def take_position_table(state_dict: dict[str, Tensor]) -> Tensor | None:
    """Remove a table of positions and say so; return its row of the class token, (1, 1, dim)."""
    class_row = None
    for name in [
        name for name in state_dict if name.removeprefix("embeds.").startswith("pos_embed")
    ]:
        table = state_dict.pop(name)
        _logger.warning(
            "dropped %s %s of the checkpoint: positions are computed here", name, tuple(table.shape)
        )
        if table.ndim == 3 and "cls_token" in state_dict:
            has_class_row = math.isqrt(table.shape[1]) ** 2 != table.shape[1]
            # a table without that row (timm's no_embed_class) is square
            class_row = table[:, :1] if has_class_row else torch.zeros_like(table[:, :1])
    return class_row


def check_size(
    state_dict: dict[str, Tensor], model: timm_vit.VisionTransformer | timm_naflexvit.NaFlexVit
) -> None:
    """Raise ValueError if the checkpoint is of another width or depth than the model."""
    norm = state_dict.get("blocks.0.norm1.weight")
    width = model.embed_dim if norm is None else norm.shape[0]
    blocks = {name.split(".")[1] for name in state_dict if name.startswith("blocks.")}
    if (width, len(blocks)) != (model.embed_dim, len(model.blocks)):
        raise ValueError(
            f"the checkpoint is a ViT of width {width} with {len(blocks)} blocks, the model has "
            f"width {model.embed_dim} and {len(model.blocks)} blocks: create the model it fits"
        )


def checkpoint_filter_fn(
    state_dict: dict[str, Any], model: VisionTransformerCape
) -> dict[str, Tensor]:
    """timm's filter; a standard ViT's position table is dropped, its class token's row kept.

    Weights of another variant are taken, with a line in the log.

    Raises:
        ValueError: the checkpoint is of another width or depth.
    """
    state_dict = timm_vit.checkpoint_filter_fn(state_dict, model)
    adapt(state_dict, model)
    class_row = take_position_table(state_dict)
    check_size(state_dict, model)
    if class_row is not None and model.cls_pos_embed is not None:
        state_dict["cls_pos_embed"] = class_row
    return state_dict


_MODELS = {
    f"vit_{size}_patch{patch}_{named}_{img_size}": dict(
        patch_size=patch, img_size=img_size, **SIZES[size], **variant
    )
    for size, patch, img_size in (
        *((size, 16, 224) for size in SIZES),
        ("tiny", 8, 64),
        ("tiny", 4, 32),
    )
    for named, variant in variants_by_name().items()
}

default_cfgs = generate_default_cfgs(
    {
        f"{name}.untrained": untrained_cfg(
            input_size=(3, args["img_size"], args["img_size"]),
            crop_pct=0.875 if args["img_size"] == 224 else 1.0,  # no border to lose at 32 and 64
        )
        for name, args in _MODELS.items()
    }
)

register_models(__name__, VisionTransformerCape, checkpoint_filter_fn, _MODELS)
