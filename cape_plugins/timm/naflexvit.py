"""NaFlexVit with computed positions: native aspect ratio, any number of patches per image.

timm's NaFlexVit takes batches of images of different sizes as padded sequences of patches, each
with its coordinates. Here the positions come from those coordinates: each axis of each image runs
on its own from -1 to 1, as in the paper (section 4.1), and padding has none.

    >>> timm.create_model("naflexvit_small_patch16_cape_gap")
"""

from dataclasses import fields
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.data import IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD
from timm.layers import register_notrace_module, trunc_normal_
from timm.models import naflexvit
from torch import Tensor, nn

from cape_plugins.host import with_class
from cape_plugins.positions import Positions
from cape_plugins.timm.attention import (
    block_classes,
    class_position,
    install_positions,
    whole_mask,
)
from cape_plugins.timm.loading import (
    LoadsWeights,
    check_size,
    drop_mark,
    drop_table,
    fill_positional,
    prepare_loading,
)
from cape_plugins.timm.options import ImageSettings, after_prefix, image_settings
from cape_plugins.timm.registry import SIZES, build, register_variants
from cape_plugins.timm.relies import RELIES
from cape_plugins.variants import get

__all__ = ["NaFlexVitCape"]


def naflex_positions(
    coord: Tensor, valid: Tensor | None = None, extent: float = 1.0, keep_aspect: bool = False
) -> tuple[Tensor, Tensor]:
    """Positions of a padded batch's patches, as :func:`cape_plugins.patch_grid` has them.

    Args:
        coord: (B, N, 2) integers, row and column of each patch in its image's grid.
        valid: (B, N), false for padding. Default: no padding.
        extent: each axis of each image runs from ``-extent`` to ``extent`` (the paper's γ).
        keep_aspect: only its longer axis does; patches are as far apart on the other.

    Returns:
        (B, N, 2) float32 positions, NaN at padding, and (B, 1, 2) integers, the patches from
        ``-extent`` to ``extent`` on each axis: each image's grid (height, width), or with
        ``keep_aspect`` its longer side twice. An axis of one patch sits at 0.

    Raises:
        ValueError: the coordinates are of a float dtype, whose half precision would round them.
    """
    if coord.is_floating_point():
        raise ValueError(f"patch_coord must be integers, got {coord.dtype}: do not cast it")
    valid = torch.ones_like(coord[..., 0]) if valid is None else valid
    padding = ~valid.bool()[..., None]  # (B, N, 1)
    coord = coord.masked_fill(padding, 0)
    grids = coord.amax(dim=1, keepdim=True) + 1
    spans = grids.amax(dim=2, keepdim=True).expand_as(grids) if keep_aspect else grids
    positions = (coord * 2 - (grids - 1)).to(torch.float32) / (spans - 1).clamp(min=1) * extent
    return positions.masked_fill(padding, float("nan")), spans


@register_notrace_module
class NaFlexEmbedsCape(naflexvit.NaFlexEmbeds):
    """timm's NaFlexEmbeds; :meth:`add_positions` completes timm's, which NaFlexVit makes itself.

    Attributes:
        position: the core's module.
        extent: the paper's γ; an evaluation may change it (Table 6).
    """

    def add_positions(self, position: Positions, settings: ImageSettings) -> None:
        """Add positions from now on, before the dropout."""
        self.position, self.cls_pos_embed = position, class_position(self.cls_token, position)
        self.extent, self.local_shift_is_given = settings.extent, settings.local_shift_is_given
        self.pos_drop_after, self.pos_drop = self.pos_drop, nn.Dropout(0.0)

    def reset_parameters(self) -> None:
        """As timm's, and the class token's position."""
        super().reset_parameters()
        if self.cls_pos_embed is not None:
            trunc_normal_(self.cls_pos_embed, std=0.02)

    def forward(
        self,
        x: Tensor,
        patch_coord: Tensor | None = None,
        patch_valid: Tensor | None = None,
        attn_mask: Tensor | None = None,
    ) -> tuple[Any, ...]:
        """Images (B, C, H, W), or patches with coordinates, as in timm.

        Returns:
            (B, prefix + N, dim) tokens, the grid of images (None for patches), and where the
            variant sits in self-attention what the blocks get: positions, and ``attn_mask``, or
            without one a mask of the padding.

        Raises:
            ValueError: the patch size does not divide an image, without ``dynamic_img_pad``.
        """
        if patch_coord is None and not self.dynamic_img_pad:
            (height, width), (rows, columns) = x.shape[-2:], self.patch_size
            if height % rows or width % columns:
                raise ValueError(
                    f"an image of {height} × {width} is not divisible by the patch size "
                    f"{self.patch_size}: resize it, or create the model with dynamic_img_pad=True"
                )
        grid: Any
        x, grid = super().forward(x, patch_coord, patch_valid)
        if not self.position.has_positions:
            return self.pos_drop_after(x), grid
        if self.cls_pos_embed is not None:
            x = torch.cat([x[:, :1] + self.cls_pos_embed, x[:, 1:]], dim=1)
        if patch_coord is None:
            axes = (torch.arange(side, device=x.device) for side in grid)
            patch_coord = torch.cartesian_prod(*axes)[None]  # (1, N, 2)
        extent, prefix = self.extent, self.num_prefix_tokens
        where, spans = naflex_positions(
            patch_coord, patch_valid, extent, self.pos_embed_ar_preserving
        )
        mask = whole_mask(x, attn_mask, is_causal=False)
        if mask is None and patch_valid is not None:
            mask = F.pad(patch_valid.bool(), (prefix, 0), value=True)[:, None]  # (B, 1, prefix + N)
        shift = None if self.local_shift_is_given else extent / spans
        where = after_prefix(where, prefix)
        x, given = self.position(x, where, mask, max_local_shift=shift)
        found = self.pos_drop_after(x), grid
        return found if self.position.variant.attends is None else (*found, given)


class NaFlexVitCape(LoadsWeights, naflexvit.NaFlexVit):
    """timm's NaFlexVit with positions computed from the patch coordinates.

    Takes what NaFlexVit takes: batches of timm's NaFlex loader (dicts), and plain images. Its class
    token and registers are as in :class:`VisionTransformerCape`.

    Args:
        cfg: timm's configuration; its ``pos_embed`` is not used. Of the other options of timm's
            table ``pos_embed_ar_preserving`` is taken: True keeps the aspect ratio, the longer
            axis running from -1 to 1, the shorter one at the same distance between patches.
        kwargs: ``pos`` and the options as in :class:`VisionTransformerCape`, the fields of timm's
            configuration, and the other arguments of timm's NaFlexVit, which rejects unknown ones.

    Raises:
        ValueError: as :class:`VisionTransformerCape`; or an option of timm's table of positions.
    """

    embeds: NaFlexEmbedsCape

    def __init__(self, cfg: naflexvit.NaFlexVitCfg | None = None, **kwargs: Any) -> None:
        RELIES.check()
        settings, kwargs = image_settings(kwargs)
        cfg = cfg or naflexvit.NaFlexVitCfg()
        given = {**vars(cfg), **kwargs}
        _refuse_table_options(given, settings.pos)
        kwargs |= {"pos_embed": "none", **block_classes(settings.pos, given)}
        super().__init__(cfg, **kwargs)
        patches = max(self.embeds.pos_embed_grid_size or [16])
        self.embeds = with_class(self.embeds, NaFlexEmbedsCape)
        self.embeds.add_positions(install_positions(self, settings, patches), settings)
        prepare_loading(self)

    def _forward_embeds(
        self,
        x: Tensor,
        patch_coord: Tensor | None,
        patch_valid: Tensor | None,
        attn_mask: Tensor | None,
    ) -> dict[str, Any]:
        if self.embeds.position.variant.attends is None:
            return super()._forward_embeds(x, patch_coord, patch_valid, attn_mask)
        x, _, given = self.embeds(x, patch_coord, patch_valid, attn_mask)
        # timm hands the blocks what has the name rope_embeds; the mask is in it
        return dict(patches=self.norm_pre(x), patch_valid=patch_valid, rope_embeds=given)


def _refuse_table_options(given: dict[str, Any], pos: str) -> None:
    variant = get(pos, axes=2)
    taken = {
        "pos_embed_ar_preserving": variant.has_positions,
        "pos_embed_grid_size": variant.attends is not None,
        "pos_embed_interp_mode": given["enable_patch_interpolator"],
    }
    for field in fields(naflexvit.NaFlexVitCfg):
        refused = field.name.startswith("pos_embed_") and not taken.get(field.name)
        if refused and given[field.name] not in (None, field.default):
            raise ValueError(
                f"{field.name} = {given[field.name]!r} is for a table of positions, which "
                f"{pos} does not have: leave it out"
            )


def checkpoint_filter_fn(state_dict: dict[str, Any], model: NaFlexVitCape) -> dict[str, Tensor]:
    """timm's filter for weights of its own ViTs and NaFlexVits and of ours, of any variant.

    Raises:
        ValueError: the weights have another width or number of blocks.
    """
    state_dict = dict(state_dict)
    drop_mark(state_dict, model.embeds.position.mark)
    check_size(model, state_dict)
    drop_table(model, state_dict)
    for name in [n for n in state_dict if n.split(".")[0] in ("cls_pos_embed", "position")]:
        state_dict[f"embeds.{name}"] = state_dict.pop(name)  # of our ViTs
    return fill_positional(naflexvit.checkpoint_filter_fn(state_dict, model), model)


_create = partial(build, NaFlexVitCape, checkpoint_filter_fn)

default_cfgs: dict[str, Any] = {}
# but for sizes and positions as timm's naflexvit_base_patch16_gap, to compare with it
_shared = dict(patch_size=16, init_values=1e-5, global_pool="avg", reg_tokens=4, fc_norm=True)
_cfg = dict(input_size=(3, 384, 384), crop_pct=1.0, first_conv="embeds.proj")
_cfg |= dict(mean=IMAGENET_INCEPTION_MEAN, std=IMAGENET_INCEPTION_STD)
_names = "naflexvit_{size}_patch16_{variant}_gap"
register_variants(__name__, _create, _names, SIZES, _shared, _cfg)
