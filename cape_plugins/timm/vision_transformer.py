"""ViT with positions computed from the patch grid: nopos, sinpos and CAPE, at any image size.

Paper: CAPE: Encoding Relative Positions with Continuous Augmented Positional Embeddings,
https://arxiv.org/abs/2106.03143, section 4.1. The variants bear the paper's names; its abspos is
timm's own ``vit_*``/``deit_*``, and its ablations are options: ``max_global_scale=1`` (λ = 1),
``max_global_shift=0`` (Δ = 0), ``max_local_shift=0`` (ε = 0).

The file has timm's name for it on purpose: timm's registry and tests group models by it.
"""

import logging
import math
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import register_notrace_module, trunc_normal_
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models import vision_transformer as timm_vit
from torch import Tensor, nn

from cape_plugins.embedding import PositionalEmbedding2d, check_variant

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
        pos: ``nopos``, ``sinpos`` or ``cape``.
        max_global_shift: Δ of each axis is uniform in ± this; the image spans [-1, 1].
        max_local_shift: ε is uniform in ± this, one number or (height, width); None is 1 / N per
            axis, N patches along it.
        max_global_scale: λ is log-uniform in [1 / this, this].
        extent: the paper's γ (Table 6), 1 in training.
        dynamic_img_size: as in timm, but on by default.
        kwargs: the other arguments of timm's VisionTransformer, which rejects unknown ones.

    Raises:
        ValueError: an option is out of range, whatever ``pos`` is.
    """

    def __init__(
        self,
        *args: Any,
        pos: str = "cape",
        max_global_shift: float = 0.5,
        max_local_shift: float | tuple[float, float] | None = None,
        max_global_scale: float = 1.4,
        extent: float = 1.0,
        dynamic_img_size: bool = True,
        **kwargs: Any,
    ) -> None:
        check_options(pos, kwargs)
        super().__init__(*args, pos_embed="none", dynamic_img_size=dynamic_img_size, **kwargs)
        self.position = PositionalEmbedding2d(
            self.embed_dim,
            pos,
            max_global_shift=max_global_shift,
            max_local_shift=max_local_shift,
            max_global_scale=max_global_scale,
            extent=extent,
        )
        if self.cls_token is None or self.no_embed_class or pos == "nopos":
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
        """timm's set, and the class token's position."""
        return {*super().no_weight_decay(), "cls_pos_embed"}

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
            cls_token = self.cls_token
            if self.cls_pos_embed is not None:
                cls_token = cls_token + self.cls_pos_embed
            tokens.append(cls_token.expand(x.shape[0], -1, -1))
        if self.reg_token is not None:
            tokens.append(self.reg_token.expand(x.shape[0], -1, -1))
        tokens.append(x)
        return self.pos_drop(torch.cat(tokens, dim=1))


def check_options(pos: str, kwargs: dict[str, Any]) -> None:
    """Raise ValueError for an unknown variant or a table, which are timm's own models."""
    if pos == "abspos" or "pos_embed" in kwargs:
        raise ValueError(
            "learnable absolute positions (abspos, pos_embed) are timm's own models: create "
            "vit_tiny_patch16_224 and its like; here pos is nopos, sinpos or cape"
        )
    check_variant(pos, ("nopos", "sinpos", "cape"))


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


def check_size(state_dict: dict[str, Tensor], model: nn.Module) -> None:
    """Raise ValueError if the checkpoint is of another width or depth than the model."""
    width = state_dict.get("blocks.0.norm1.weight", model.blocks[0].norm1.weight).shape[0]
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

    Raises:
        ValueError: the checkpoint is of another width or depth.
    """
    state_dict = timm_vit.checkpoint_filter_fn(state_dict, model)
    class_row = take_position_table(state_dict)
    check_size(state_dict, model)
    if class_row is not None and model.cls_pos_embed is not None:
        state_dict["cls_pos_embed"] = class_row
    return state_dict


def _cfg(url: str = "", **kwargs: Any) -> dict[str, Any]:
    return {
        "url": url,
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": None,
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "fixed_input_size": False,
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
        "license": "mit",
        **kwargs,
    }


default_cfgs = generate_default_cfgs(
    {
        **{
            f"vit_{size}_patch16_{pos}_224.untrained": _cfg()
            for size in ("tiny", "small", "base")
            for pos in ("nopos", "sinpos", "cape", "univit")
        },
        **{
            f"vit_tiny_patch{patch}_{pos}_{img_size}.untrained": _cfg(
                input_size=(3, img_size, img_size), crop_pct=1.0
            )
            for patch, img_size in ((4, 32), (8, 64))
            for pos in ("nopos", "sinpos", "cape", "univit")
        },
    }
)

TINY = dict(embed_dim=192, depth=12, num_heads=3)
SMALL = dict(embed_dim=384, depth=12, num_heads=6)
BASE = dict(embed_dim=768, depth=12, num_heads=12)

NOPOS = dict(pos="nopos")
SINPOS = dict(pos="sinpos")
CAPE = dict(pos="cape")
UNIVIT = dict(pos="cape", max_global_scale=1.0)


def _create_vision_transformer(
    variant: str, pretrained: bool, model_args: dict[str, Any], kwargs: dict[str, Any]
) -> VisionTransformerCape:
    kwargs = {**model_args, **kwargs}
    out_indices = kwargs.pop("out_indices", 3)
    return build_model_with_cfg(
        VisionTransformerCape,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg=dict(out_indices=out_indices, feature_cls="getter"),
        **kwargs,
    )


@register_model
def vit_tiny_patch16_nopos_224(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """ViT-Ti/16 without positions."""
    model_args = dict(patch_size=16, **TINY, **NOPOS)
    return _create_vision_transformer("vit_tiny_patch16_nopos_224", pretrained, model_args, kwargs)


@register_model
def vit_tiny_patch16_sinpos_224(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """ViT-Ti/16 with 2-D sinusoidal positions."""
    model_args = dict(patch_size=16, **TINY, **SINPOS)
    return _create_vision_transformer("vit_tiny_patch16_sinpos_224", pretrained, model_args, kwargs)


@register_model
def vit_tiny_patch16_cape_224(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """ViT-Ti/16 with CAPE."""
    model_args = dict(patch_size=16, **TINY, **CAPE)
    return _create_vision_transformer("vit_tiny_patch16_cape_224", pretrained, model_args, kwargs)


@register_model
def vit_tiny_patch16_univit_224(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """UniViT-Ti/16: CAPE with λ = 1, to be trained on several sizes."""
    model_args = dict(patch_size=16, **TINY, **UNIVIT)
    return _create_vision_transformer("vit_tiny_patch16_univit_224", pretrained, model_args, kwargs)


@register_model
def vit_small_patch16_nopos_224(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """ViT-S/16 without positions."""
    model_args = dict(patch_size=16, **SMALL, **NOPOS)
    return _create_vision_transformer("vit_small_patch16_nopos_224", pretrained, model_args, kwargs)


@register_model
def vit_small_patch16_sinpos_224(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """ViT-S/16 with 2-D sinusoidal positions."""
    model_args = dict(patch_size=16, **SMALL, **SINPOS)
    return _create_vision_transformer(
        "vit_small_patch16_sinpos_224", pretrained, model_args, kwargs
    )


@register_model
def vit_small_patch16_cape_224(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """ViT-S/16 with CAPE."""
    model_args = dict(patch_size=16, **SMALL, **CAPE)
    return _create_vision_transformer("vit_small_patch16_cape_224", pretrained, model_args, kwargs)


@register_model
def vit_small_patch16_univit_224(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """UniViT-S/16: CAPE with λ = 1, to be trained on several sizes."""
    model_args = dict(patch_size=16, **SMALL, **UNIVIT)
    return _create_vision_transformer(
        "vit_small_patch16_univit_224", pretrained, model_args, kwargs
    )


@register_model
def vit_base_patch16_nopos_224(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """ViT-B/16 without positions."""
    model_args = dict(patch_size=16, **BASE, **NOPOS)
    return _create_vision_transformer("vit_base_patch16_nopos_224", pretrained, model_args, kwargs)


@register_model
def vit_base_patch16_sinpos_224(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """ViT-B/16 with 2-D sinusoidal positions."""
    model_args = dict(patch_size=16, **BASE, **SINPOS)
    return _create_vision_transformer("vit_base_patch16_sinpos_224", pretrained, model_args, kwargs)


@register_model
def vit_base_patch16_cape_224(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """ViT-B/16 with CAPE."""
    model_args = dict(patch_size=16, **BASE, **CAPE)
    return _create_vision_transformer("vit_base_patch16_cape_224", pretrained, model_args, kwargs)


@register_model
def vit_base_patch16_univit_224(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """UniViT-B/16: CAPE with λ = 1, to be trained on several sizes."""
    model_args = dict(patch_size=16, **BASE, **UNIVIT)
    return _create_vision_transformer("vit_base_patch16_univit_224", pretrained, model_args, kwargs)


@register_model
def vit_tiny_patch8_nopos_64(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """ViT-Ti/8 for 64 × 64 without positions."""
    model_args = dict(patch_size=8, img_size=64, **TINY, **NOPOS)
    return _create_vision_transformer("vit_tiny_patch8_nopos_64", pretrained, model_args, kwargs)


@register_model
def vit_tiny_patch8_sinpos_64(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """ViT-Ti/8 for 64 × 64 with 2-D sinusoidal positions."""
    model_args = dict(patch_size=8, img_size=64, **TINY, **SINPOS)
    return _create_vision_transformer("vit_tiny_patch8_sinpos_64", pretrained, model_args, kwargs)


@register_model
def vit_tiny_patch8_cape_64(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """ViT-Ti/8 for 64 × 64 with CAPE."""
    model_args = dict(patch_size=8, img_size=64, **TINY, **CAPE)
    return _create_vision_transformer("vit_tiny_patch8_cape_64", pretrained, model_args, kwargs)


@register_model
def vit_tiny_patch8_univit_64(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """UniViT-Ti/8 for 64 × 64: CAPE with λ = 1, to be trained on several sizes."""
    model_args = dict(patch_size=8, img_size=64, **TINY, **UNIVIT)
    return _create_vision_transformer("vit_tiny_patch8_univit_64", pretrained, model_args, kwargs)


@register_model
def vit_tiny_patch4_nopos_32(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """ViT-Ti/4 for 32 × 32 without positions."""
    model_args = dict(patch_size=4, img_size=32, **TINY, **NOPOS)
    return _create_vision_transformer("vit_tiny_patch4_nopos_32", pretrained, model_args, kwargs)


@register_model
def vit_tiny_patch4_sinpos_32(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """ViT-Ti/4 for 32 × 32 with 2-D sinusoidal positions."""
    model_args = dict(patch_size=4, img_size=32, **TINY, **SINPOS)
    return _create_vision_transformer("vit_tiny_patch4_sinpos_32", pretrained, model_args, kwargs)


@register_model
def vit_tiny_patch4_cape_32(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """ViT-Ti/4 for 32 × 32 with CAPE."""
    model_args = dict(patch_size=4, img_size=32, **TINY, **CAPE)
    return _create_vision_transformer("vit_tiny_patch4_cape_32", pretrained, model_args, kwargs)


@register_model
def vit_tiny_patch4_univit_32(pretrained: bool = False, **kwargs: Any) -> VisionTransformerCape:
    """UniViT-Ti/4 for 32 × 32: CAPE with λ = 1, to be trained on several sizes."""
    model_args = dict(patch_size=4, img_size=32, **TINY, **UNIVIT)
    return _create_vision_transformer("vit_tiny_patch4_univit_32", pretrained, model_args, kwargs)
