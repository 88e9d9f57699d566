"""NaFlexVit with computed positions: native aspect ratio, any number of patches per image.

timm's NaFlexVit takes batches of images of different sizes as padded sequences of patches, each
with its coordinates. Here the positions come from those coordinates: each axis of each image runs
on its own from -1 to 1, as in the paper (section 4.1), and padding has none. So the aspect ratio
does not show in them; with ``pos_embed_ar_preserving`` it does, the longer axis running from -1 to
1 and the shorter one at the same distance between patches, around 0.

The file has timm's name for it on purpose: timm's registry and tests group models by it.
"""

from dataclasses import fields, replace
from typing import Any

import torch
from timm.data import IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD
from timm.layers import register_notrace_module, trunc_normal_
from timm.models import build_model_with_cfg, generate_default_cfgs, naflexvit
from torch import Tensor, nn

from cape_plugins.embedding import PositionalEmbedding2d
from cape_plugins.logn import check_logn
from cape_plugins.timm.attention import (
    PositionedAttention,
    place_in_attention,
    positional_parameters,
    use_logn,
)
from cape_plugins.timm.mark import adapt, add_mark
from cape_plugins.timm.registry import SIZES, register_models, untrained_cfg, variants_by_name
from cape_plugins.timm.vision_transformer import (
    check_pos,
    check_size,
    make_position,
    take_position_table,
)
from cape_plugins.variants import get

__all__ = ["NaFlexVitCape"]


def naflex_positions(
    patch_coord: Tensor,
    patch_valid: Tensor | None = None,
    *,
    extent: float = 1.0,
    keep_aspect: bool = False,
) -> tuple[Tensor, Tensor]:
    """Positions of a padded batch's patches, as :func:`cape_plugins.patch_grid` has them.

    Args:
        patch_coord: (B, N, 2) integers, row and column of each patch in its image's grid.
        patch_valid: (B, N), false for padding. Default: no padding.
        extent: each axis of each image runs from ``-extent`` to ``extent`` (the paper's γ).
        keep_aspect: only its longer axis does; patches are as far apart on the other.

    Returns:
        (B, N, 2) float32 positions, NaN at padding, and (B, 1, 2) integers, the patches from
        ``-extent`` to ``extent`` on each axis: each image's grid (height, width), or with
        ``keep_aspect`` its longer side twice. An axis of one patch sits at 0.
    """
    padding = torch.zeros_like(patch_coord[..., 0], dtype=torch.bool)
    if patch_valid is not None:
        padding = ~patch_valid.bool()
    coord = patch_coord.masked_fill(padding[..., None], 0)
    grids = coord.amax(dim=1, keepdim=True) + 1
    spans = grids.amax(dim=2, keepdim=True).expand_as(grids) if keep_aspect else grids
    positions = (coord * 2 - (grids - 1)).to(torch.float32) / (spans - 1).clamp(min=1) * extent
    return positions.masked_fill(padding[..., None], float("nan")), spans


@register_notrace_module
class NaFlexEmbedsCape(naflexvit.NaFlexEmbeds):
    """timm's NaFlexEmbeds, computed positions added to the patches.

    Args:
        stock: what it is made from and whose parameters it takes over, without positions.
        position: variant and settings.

    Raises:
        ValueError: on an image that the patch size does not divide, without ``dynamic_img_pad``.
    """

    def __init__(self, stock: naflexvit.NaFlexEmbeds, position: PositionalEmbedding2d) -> None:
        nn.Module.__init__(self)
        # NaFlexVit makes its NaFlexEmbeds itself and takes no other class for them
        self.__dict__.update(vars(stock))
        self.position = position
        self.pos_drop_after = self.pos_drop  # dropout comes after the positions
        self.pos_drop = nn.Dropout(0.0)
        if self.cls_token is None or position.adds_nothing:
            self.cls_pos_embed = None
        else:
            self.cls_pos_embed = nn.Parameter(torch.empty_like(self.cls_token))
            trunc_normal_(self.cls_pos_embed, std=0.02)

    def reset_parameters(self) -> None:
        """As timm's, and the class token's position."""
        super().reset_parameters()
        if self.cls_pos_embed is not None:
            trunc_normal_(self.cls_pos_embed, std=0.02)

    def forward(
        self, x: Tensor, patch_coord: Tensor | None = None, patch_valid: Tensor | None = None
    ) -> tuple[Tensor, tuple[int, int] | None]:
        """Images (B, C, H, W) or patches with coordinates → tokens with prefix, and the grid."""
        if patch_coord is None and not self.dynamic_img_pad:
            self._check_image(x)
        x, grid = super().forward(x, patch_coord=patch_coord, patch_valid=patch_valid)
        prefix, patches = x[:, : self.num_prefix_tokens], x[:, self.num_prefix_tokens :]
        if self.cls_pos_embed is not None:
            prefix = torch.cat([prefix[:, :1] + self.cls_pos_embed, prefix[:, 1:]], dim=1)
        if patch_coord is None and self.pos_embed_ar_preserving:
            assert grid is not None
            height, width = (torch.arange(side, device=x.device) for side in grid)
            patch_coord = torch.stack(torch.meshgrid(height, width, indexing="ij"), dim=-1)
            patch_coord = patch_coord.reshape(1, -1, 2)
        if patch_coord is None:
            assert grid is not None
            patches = self.position(patches, grid)
        elif get(self.position.pos).attention is not None or not self.position.adds_nothing:
            positions, grids = naflex_positions(
                patch_coord,
                patch_valid,
                extent=self.position.extent,
                keep_aspect=self.pos_embed_ar_preserving,
            )
            patches = self.position.forward_at(patches, positions, grids)
        return self.pos_drop_after(torch.cat([prefix, patches], dim=1)), grid

    def _check_image(self, x: Tensor) -> None:
        height, width = x.shape[-2:]
        if height % self.patch_size[0] or width % self.patch_size[1]:
            raise ValueError(
                f"an image of {height} × {width} is not divisible by the patch size "
                f"{self.patch_size}: resize it, or create the model with dynamic_img_pad=True"
            )


class NaFlexVitCape(naflexvit.NaFlexVit):
    """timm's NaFlexVit with positions computed from the patch coordinates.

    Takes what NaFlexVit takes: batches of timm's NaFlex loader (dicts), and plain images. The
    class token, where there is one, has its own learnable position, except in nopos; register
    tokens have none.

    Args:
        cfg: timm's configuration; its ``pos_embed`` is not used. Of the other options of timm's
            table ``pos_embed_ar_preserving`` is taken: False lets each axis run on its own from -1
            to 1, True keeps the aspect ratio.
        pos: a variant for images, see :mod:`cape_plugins.variants`: ``nopos``, ``sinpos``,
            ``cape``, …, but none with a table, which is timm's own.
        max_global_shift: Δ of each axis is uniform in ± this; each image spans [-1, 1].
        max_local_shift: ε is uniform in ± this, one number or (height, width); None is extent / N
            per axis, N patches along it in that image.
        max_global_scale: λ is log-uniform in [1 / this, this].
        extent: the paper's γ (Table 6), 1 in training.
        frequency_scale: multiplies all frequencies; 1 is the paper's, the models
            named ``…_low_…`` have theirs, see :data:`cape_plugins.timm.registry.LOW`.
        attention_logn: with every variant: multiply the logits of self-attention by log N /
            log of this, N the tokens that a query sees, see :mod:`cape_plugins.logn`; this is N
            in training, the class token and registers among them (197 at 224 pixels). Default:
            off, as in the paper.
        kwargs: the other arguments of timm's NaFlexVit and fields of its configuration; it
            rejects unknown ones.

    Raises:
        ValueError: an option is out of range, whatever ``pos`` is, or ``pos`` does not take it; an
            option of timm's table, which is not here; a
            variant that sits in self-attention, with blocks or ``patch_drop_rate`` that leave it
            no place there.
    """

    def __init__(
        self,
        cfg: naflexvit.NaFlexVitCfg | None = None,
        *,
        pos: str = "cape",
        max_global_shift: float = 0.5,
        max_local_shift: float | tuple[float, float] | None = None,
        max_global_scale: float = 1.4,
        extent: float = 1.0,
        frequency_scale: float = 1.0,
        attention_logn: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_pos(pos, kwargs)
        logn = check_logn(attention_logn)
        cfg = replace(cfg or naflexvit.NaFlexVitCfg(), pos_embed="none")
        known = {field.name for field in fields(cfg)}
        _check_table_options(replace(cfg, **{k: v for k, v in kwargs.items() if k in known}), pos)
        if get(pos).attention is not None and cfg.attn_layer is None:
            kwargs.setdefault("attn_layer", PositionedAttention)
        super().__init__(cfg, **kwargs)
        position = make_position(
            self.embed_dim,
            pos,
            place_in_attention(
                self, pos, max(self.embeds.pos_embed_grid_size or (16, 16)), frequency_scale
            ),
            self.num_prefix_tokens,
            max_global_shift=max_global_shift,
            max_local_shift=max_local_shift,
            max_global_scale=max_global_scale,
            extent=extent,
            frequency_scale=frequency_scale,
        )
        self.embeds = NaFlexEmbedsCape(self.embeds, position)
        if logn:
            use_logn(self, logn)
        add_mark(self)

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """timm's set, the class token's position, and what the attention learns of positions."""
        ours = {"embeds.cls_pos_embed", *positional_parameters(self)}
        return {*super().no_weight_decay(), *ours}


def _check_table_options(cfg: naflexvit.NaFlexVitCfg, pos: str) -> None:
    stock, variant = naflexvit.NaFlexVitCfg(), get(pos)
    taken = {"pos_embed"}
    if variant.adds != "nothing" or variant.attention is not None:
        taken.add("pos_embed_ar_preserving")
    if variant.attention is not None:
        taken.add("pos_embed_grid_size")
    if cfg.enable_patch_interpolator:
        taken.add("pos_embed_interp_mode")
    names = {field.name for field in fields(cfg) if field.name.startswith("pos_embed")}
    for name in sorted(names - taken):
        given = getattr(cfg, name)
        if given not in (None, getattr(stock, name)):
            raise ValueError(
                f"{name} = {given!r} is for a table of positions, which {pos} does not have: "
                "leave it out"
            )


def checkpoint_filter_fn(state_dict: dict[str, Any], model: NaFlexVitCape) -> dict[str, Tensor]:
    """timm's filter; a table of positions is dropped, its row of the class token kept.

    Checkpoints of our ViTs are taken too. Where the model has layer scale and the checkpoint has
    none, it becomes 1. Weights of another variant are taken, with a line in the log.
    """
    state_dict = state_dict.get("model", state_dict)
    state_dict = dict(state_dict.get("state_dict", state_dict))
    adapt(state_dict, model)
    class_row = state_dict.pop("cls_pos_embed", None)
    if class_row is None:
        class_row = take_position_table(state_dict)
    state_dict = naflexvit.checkpoint_filter_fn(state_dict, model)
    check_size(state_dict, model)
    if class_row is not None and model.embeds.cls_pos_embed is not None:
        state_dict["embeds.cls_pos_embed"] = class_row
    for name, value in model.state_dict().items():
        if name.endswith((".ls1.gamma", ".ls2.gamma")):
            state_dict.setdefault(name, torch.ones(value.shape))
    return state_dict


def create_from_vit(name: str, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """A NaFlexVitCape of a ViT's name and arguments: timm's ``use_naflex=True``.

    Raises:
        ValueError: ``no_embed_class``, which NaFlexVit does not have.
    """
    if kwargs.pop("no_embed_class", False):
        raise ValueError("use_naflex=True and no_embed_class=True do not go together: drop one")
    kwargs.pop("dynamic_img_size", None)  # it takes images of all sizes
    pool = kwargs.setdefault("global_pool", "token")
    kwargs = {"class_token": True, "pos_embed_grid_size": None, **kwargs}
    if "scale_attn_norm" in kwargs:
        kwargs["scale_attn_inner_norm"] = kwargs.pop("scale_attn_norm")
    if kwargs.get("fc_norm") is None:
        kwargs["fc_norm"] = pool in ("avg", "avgmax", "max")
    return build_model_with_cfg(
        NaFlexVitCape,
        name,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg=dict(out_indices=kwargs.pop("out_indices", 3), feature_cls="getter"),
        **kwargs,
    )


_MODELS = {
    # beside sizes and positions as timm's naflexvit_base_patch16_gap, to compare with it
    f"naflexvit_{size}_patch16_{named}_gap": dict(
        patch_size=16,
        init_values=1e-5,
        global_pool="avg",
        reg_tokens=4,
        fc_norm=True,
        **SIZES[size],
        **variant,
    )
    for size in SIZES
    for named, variant in variants_by_name().items()
}

default_cfgs = generate_default_cfgs(
    {
        f"{name}.untrained": untrained_cfg(
            input_size=(3, 384, 384),
            crop_pct=1.0,
            mean=IMAGENET_INCEPTION_MEAN,
            std=IMAGENET_INCEPTION_STD,
            first_conv="embeds.proj",
        )
        for name in _MODELS
    }
)

register_models(__name__, NaFlexVitCape, checkpoint_filter_fn, _MODELS)
