"""Learnable position tables: as pictures take them, and at other sizes without antialiasing."""

from typing import Any

from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from cape_plugins.evaluation.timm import loading
from cape_plugins.plot.embeddings import Table


def learned(checkpoint: str, model: str | None = None) -> Table:
    """The table of a trained timm ViT, for a picture.

    Raises:
        ValueError: the checkpoint cannot be loaded, or has no table.
    """
    loaded = loading.load(loading.Source(checkpoint, model))
    rows = getattr(loaded.model, "pos_embed", None)
    if not isinstance(rows, Tensor):
        raise ValueError(
            f"{checkpoint} ({loaded.name}) has no position table: give an abspos ViT, such as "
            "vit_base_patch16_224"
        )
    height, width = loaded.model.patch_embed.grid_size
    rows = rows.detach().float()[0, rows.shape[1] - height * width :]
    patch = loaded.model.patch_embed.patch_size[0]
    return Table(rows, (height, width), patch, f"abspos\n({loaded.name})")


def has_table(model: Any) -> bool:
    """Whether the model has a learnable table that timm interpolates in the forward."""
    table = getattr(model, "pos_embed", None)
    return isinstance(table, Tensor) and bool(getattr(model, "dynamic_img_size", False))


def without_antialias(model: Any) -> None:
    """From now on resize the model's table without antialiasing, at every forward's own size.

    The paper's bicubic resizing had none; timm's ViT has no option for it. It matters most when the
    table shrinks, a little when it grows: PyTorch's antialiased cubic has the coefficient -0.5, the
    other -0.75. timm leaves a table alone that fits the image, so before each forward the table
    (and the grid it belongs to) is replaced by the resized one. Rows of prefix tokens stay.

    Raises:
        ValueError: the model has no such table.
    """
    if not has_table(model):
        raise ValueError(f"{type(model).__name__} has no position table that is resized")
    table = model.pos_embed.detach()
    grid = tuple(model.patch_embed.grid_size)
    prefix = 0 if model.no_embed_class else model.num_prefix_tokens

    def resize(module: Any, args: tuple[Any, ...]) -> None:
        new = module.patch_embed.dynamic_feat_size(tuple(args[0].shape[-2:]))
        resized = resample_abs_pos_embed(
            table.to(args[0].device), new, grid, num_prefix_tokens=prefix, antialias=False
        )
        module.pos_embed = nn.Parameter(resized, requires_grad=False)
        module.patch_embed.grid_size = new

    model.register_forward_pre_hook(resize)
