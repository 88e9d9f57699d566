"""ViT with positions computed from the patch grid: nopos, sinpos and CAPE, at any image size.

Paper: https://arxiv.org/abs/2106.03143, section 4.1. Its abspos is timm's own ``vit_*``/``deit_*``;
its ablations are options: max_global_scale=1 (λ), max_global_shift=0 (Δ), max_local_shift=0 (ε).

    >>> timm.create_model("vit_small_patch16_cape_224", max_global_scale=1.2)
"""

from functools import partial
from typing import Any

import torch
from timm.layers import trunc_normal_
from timm.models import checkpoint
from timm.models import vision_transformer as timm_vit
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from cape_plugins.attention import NOTHING, Given
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
from cape_plugins.timm.options import grid_with_prefix, image_settings
from cape_plugins.timm.registry import SIZES, build, register_variants
from cape_plugins.timm.relies import RELIES

__all__ = ["VisionTransformerCape"]

torch.fx.wrap("grid_with_prefix")  # makes tensors whose sizes depend on the input
torch.fx.wrap("whole_mask")


class VisionTransformerCape(LoadsWeights, timm_vit.VisionTransformer):
    """timm's VisionTransformer with computed positions.

    Takes images of any size that the patch size divides (with ``dynamic_img_pad`` any size at
    all), without a flag. The class token has its own learnable position, except where nothing is
    added at the input or with ``no_embed_class``; register tokens have none.

    Args:
        dynamic_img_size: as in timm, but on by default.
        kwargs: ``pos`` (default ``cape``), the options of :data:`cape_plugins.timm.options.HOST`
            that this variant takes, and the other arguments of timm's VisionTransformer, which
            rejects unknown ones.

    Attributes:
        position: the core's module.
        extent: the paper's γ; an evaluation may change it (Table 6).

    Raises:
        ValueError: as :func:`cape_plugins.timm.options.image_settings`; or the variant sits in
            self-attention, and the blocks or ``patch_drop_rate`` do not hand it the positions.
    """

    def __init__(self, *args: Any, dynamic_img_size: bool = True, **kwargs: Any) -> None:
        RELIES.check()
        settings, kwargs = image_settings(kwargs)
        kwargs.update(block_classes(settings.pos, kwargs))
        kwargs.update(pos_embed="none", dynamic_img_size=dynamic_img_size)
        super().__init__(*args, **kwargs)
        self.extent, self.local_shift_is_given = settings.extent, settings.local_shift_is_given
        self.position = install_positions(self, settings, max(self.patch_embed.grid_size))
        cls_token = None if self.no_embed_class else self.cls_token
        self.cls_pos_embed = class_position(cls_token, self.position)
        prepare_loading(self)

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """As timm's; called by its constructor too, before the class token has a position."""
        super().init_weights(mode, needs_reset)
        if getattr(self, "cls_pos_embed", None) is not None:
            trunc_normal_(self.cls_pos_embed, std=0.02)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """timm's groups, what is learned about positions at the input in the stem."""
        groups = super().group_matcher(coarse)
        return {**groups, "stem": groups["stem"] + "|cls_pos_embed|position"}

    def _pos_embed(self, x: Tensor) -> Tensor:
        return self._embed(x)[0]

    def _embed(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> tuple[Tensor, Given]:
        """Patches (B, H, W, C), or (B, H·W, C) of the fixed size → tokens, what the blocks get."""
        grid: Any = x.shape[1:3] if self.dynamic_img_size else self.patch_embed.grid_size
        x, given = x.flatten(1, -2), NOTHING  # (B, N, C)
        in_blocks = self.position.variant.attends is not None
        if not in_blocks:  # before the prefix, which autocast leaves in float32
            x, given = self._place(x, grid, 0)
        cls_token: Any = self.cls_token
        if self.cls_pos_embed is not None:
            cls_token = cls_token + self.cls_pos_embed
        prefix = [one for one in (cls_token, self.reg_token) if one is not None]
        x = torch.cat([one.expand(x.shape[0], -1, -1) for one in prefix] + [x], dim=1)
        if in_blocks:
            mask = whole_mask(x, attn_mask, is_causal)
            x, given = self._place(x, grid, self.num_prefix_tokens, mask)
        return self.pos_drop(x), given

    def _place(
        self, x: Tensor, grid: tuple[int, int], prefix: int, mask: Tensor | None = None
    ) -> tuple[Any, Given]:
        """Positions of a grid for its patches (B, prefix + N, C), the first ``prefix`` without."""
        if not self.position.has_positions:
            return x, NOTHING
        height, width = grid
        extent = self.extent
        where = grid_with_prefix(height, width, extent, prefix, x)
        shift = None if self.local_shift_is_given else (extent / height, extent / width)
        return self.position(x, where, mask, max_local_shift=shift)

    # timm's two loops, with positions for the blocks; variants at the input alone stay with timm's

    def forward_features(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """As timm's: images (B, C, H, W) → tokens (B, N, dim)."""
        if self.position.variant.attends is None:
            return super().forward_features(x, attn_mask, is_causal)
        return self.norm(self._run(x, self.blocks, [], attn_mask, is_causal)[0])

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Any:
        """As timm's, where the arguments and the result are described."""
        if self.position.variant.attends is None:
            given = (return_prefix_tokens, norm, stop_early, output_fmt, intermediates_only)
            return super().forward_intermediates(
                x, indices, *given, output_dict, attn_mask, is_causal
            )
        assert output_fmt in ("NCHW", "NLC"), "Output format must be one of NCHW or NLC."
        kept, last = feature_take_indices(len(self.blocks), indices)
        blocks = self.blocks[: last + 1] if stop_early else self.blocks
        grid = self.patch_embed.dynamic_feat_size(x.shape[-2:])
        x, found = self._run(x, blocks, kept, attn_mask, is_causal)
        found = [self.norm(one) if norm else one for one in found]
        prefix = [one[:, : self.num_prefix_tokens] for one in found]
        found = [one[:, self.num_prefix_tokens :] for one in found]
        if output_fmt == "NCHW":
            found = [one.unflatten(1, grid).permute(0, 3, 1, 2).contiguous() for one in found]
        with_prefix = return_prefix_tokens and self.num_prefix_tokens > 0
        if output_dict:
            out: dict[str, Any] = {"image_intermediates": found}
            out |= {"image_intermediates_prefix": prefix} if with_prefix else {}
            return out if intermediates_only else out | {"image_features": self.norm(x)}
        both = list(zip(found, prefix, strict=True)) if with_prefix else found
        return both if intermediates_only else (self.norm(x), both)

    def _run(
        self,
        x: Tensor,
        blocks: nn.Sequential,
        kept: list[int],
        attn_mask: Tensor | None,
        is_causal: bool,
    ) -> tuple[Tensor, list[Tensor]]:
        """Images → the tokens after the last block, and those after the blocks that are kept."""
        x, given = self._embed(self.patch_embed(x), attn_mask, is_causal)
        x, found = self.norm_pre(x), []
        for index, block in enumerate(blocks):
            x = checkpoint(block, x, given) if self.grad_checkpointing else block(x, given)
            if index in kept:
                found.append(x)
        return x, found


def checkpoint_filter_fn(
    state_dict: dict[str, Any], model: VisionTransformerCape
) -> dict[str, Tensor]:
    """timm's filter for weights of its own ViTs and of ours, of any variant.

    Raises:
        ValueError: the weights have another width or number of blocks.
    """
    state_dict = timm_vit.checkpoint_filter_fn(state_dict, model)
    drop_mark(state_dict, model.position.mark)
    check_size(model, state_dict)
    drop_table(model, state_dict)
    return fill_positional(state_dict, model)


_create = partial(build, VisionTransformerCape, checkpoint_filter_fn)

default_cfgs: dict[str, Any] = {}
for _sizes, _patch, _image in ([*SIZES], 16, 224), (["tiny"], 8, 64), (["tiny"], 4, 32):
    _names = f"vit_{{size}}_patch{_patch}_{{variant}}_{_image}"
    _shared = dict(patch_size=_patch, img_size=_image)
    # small images have no border to lose
    _cfg = dict(input_size=(3, _image, _image), crop_pct=0.875 if _image == 224 else 1.0)
    register_variants(__name__, _create, _names, _sizes, _shared, _cfg)
