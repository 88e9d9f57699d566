"""Learnable position tables at other sizes: bicubic, with or without antialiasing."""

from typing import Any

import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn


def has_table(model: nn.Module) -> bool:
    """Whether the model has a learnable table that timm interpolates in the forward."""
    table = getattr(model, "pos_embed", None)
    return isinstance(table, Tensor) and bool(getattr(model, "dynamic_img_size", False))


def resample(
    table: Tensor, old: tuple[int, int], new: tuple[int, int], prefix: int, *, antialias: bool
) -> Tensor:
    """A table (1, prefix + H·W, C) at another grid; the rows of prefix tokens stay.

    Args:
        table: one row per prefix token (class, distillation, registers), then per patch.
        old, new: (height, width) in patches.
        prefix: number of prefix tokens that have rows.
        antialias: as timm does; the paper's bicubic resizing did not. It matters most when the
            table shrinks, a little when it grows: PyTorch's antialiased cubic has the
            coefficient -0.5, the other -0.75.
    """
    return resample_abs_pos_embed(
        table, list(new), list(old), num_prefix_tokens=prefix, antialias=antialias
    )


def without_antialias(model: nn.Module) -> None:
    """From now on resize the model's table without antialiasing, at every forward's own size.

    timm's ViT has no option for it. It leaves a table alone that fits the image, so before each
    forward the table (and the grid it belongs to) is replaced by the resized one.

    Raises:
        ValueError: the model has no such table.
    """
    if not has_table(model):
        raise ValueError(f"{type(model).__name__} has no position table that is resized")
    table = model.pos_embed.detach()
    grid = tuple(model.patch_embed.grid_size)
    prefix = 0 if model.no_embed_class else model.num_prefix_tokens

    def resize(module: nn.Module, args: tuple[Any, ...]) -> None:
        new = module.patch_embed.dynamic_feat_size(tuple(args[0].shape[-2:]))
        resized = resample(table.to(args[0].device), grid, new, prefix, antialias=False)
        with torch.no_grad():
            module.pos_embed = nn.Parameter(resized, requires_grad=False)
        module.patch_embed.grid_size = new

    model.register_forward_pre_hook(resize)
