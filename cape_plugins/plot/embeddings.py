"""Components of positional embeddings as images, at several resolutions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cape_plugins import PositionalEmbedding2d
from cape_plugins.plot.canvas import pyplot, save


@dataclass(frozen=True)
class Table:
    """A learnable position table, which the other variants are drawn beside.

    Attributes:
        rows: (height · width, dim), without the rows of prefix tokens.
        grid: (height, width) in patches.
        patch: pixels of a patch.
        label: of the picture's row.
    """

    rows: Tensor
    grid: tuple[int, int]
    patch: int
    label: str


def untrained_table(dim: int, patch: int, train_size: int, seed: int) -> Table:
    """A table as a model starts with: truncated normal, standard deviation 0.02.

    Raises:
        ValueError: sizes that do not fit.
    """
    side = _grid(train_size, patch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = PositionalEmbedding2d(dim, "abspos", grid=(side, side))
    rows = module(torch.zeros(1, side * side, dim), (side, side))[0].detach()
    return Table(rows, (side, side), patch, "abspos\n(untrained table)")


def maps(
    table: Table, resolution: int, components: Sequence[int], *, antialias: bool, seed: int
) -> dict[str, Tensor]:
    """Components over the image.

    Args:
        table: of abspos; its width and patches are those of all variants.
        resolution: of a square image in pixels.
        components: channels.
        antialias: when the table is resized; the paper did not.
        seed: of CAPE's draw. Δ and λ do not depend on the resolution.

    Returns:
        label → (components, side, side), for abspos, sinpos and cape as in training.

    Raises:
        ValueError: the patches do not divide the resolution.
    """
    side = _grid(resolution, table.patch)
    dim = table.rows.shape[1]
    nothing = torch.zeros(1, side * side, dim)
    generator = torch.Generator().manual_seed(seed)
    sinpos = PositionalEmbedding2d(dim, "sinpos")(nothing, (side, side))
    cape = PositionalEmbedding2d(dim, "cape")(nothing, (side, side), generator=generator)
    found = {
        table.label: _resize(table, side, antialias),
        "sinpos": sinpos[0],
        "cape\n(a draw in training)": cape[0],
    }
    return {
        label: rows[:, list(components)].T.reshape(len(components), side, side)
        for label, rows in found.items()
    }


def draw(
    out: Path,
    table: Table,
    *,
    resolutions: Sequence[int] = (160, 224, 384),
    every: int = 20,
    antialias: bool = True,
    seed: int = 0,
) -> None:
    """Variants down, resolutions across; in each cell one small image per component.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: a resolution that the patches do not divide, or ``every`` below 1.
    """
    if every < 1:
        raise ValueError(f"every must be ≥ 1, got {every}")
    components = range(0, table.rows.shape[1], every)
    cells = {
        size: maps(table, size, components, antialias=antialias, seed=seed) for size in resolutions
    }
    plt = pyplot()
    labels = list(next(iter(cells.values())))
    across = math.ceil(math.sqrt(len(components) * 1.6))
    down = math.ceil(len(components) / across)
    inches = (4.6 * len(resolutions) + 0.6, 4.25 * down / across * len(labels) + 0.8)
    figure, axes = plt.subplots(
        len(labels), len(resolutions), figsize=inches, layout="constrained", squeeze=False
    )
    for row, label in enumerate(labels):
        bound = max(float(cells[size][label].abs().max()) for size in resolutions)
        for column, size in enumerate(resolutions):
            axis = axes[row][column]
            image = _mosaic(axis, cells[size][label], across, down, bound)
            if row == 0:
                side = size // table.patch
                axis.set_title(f"{size} × {size} pixels, {side} × {side} patches", fontsize=11)
            if column == 0:
                axis.set_ylabel(label, fontsize=11)
        figure.colorbar(image, ax=axes[row].tolist(), shrink=0.8, pad=0.01)
    figure.supxlabel(
        f"components 0, {every}, {2 * every}, … {components[-1]} of {table.rows.shape[1]}, "
        "row by row",
        fontsize=10,
    )
    save(figure, out)


def _mosaic(axis: Any, images: Tensor, across: int, down: int, bound: float) -> Any:
    """Small images in reading order; returns one of them, for the colour bar."""
    for i, image in enumerate(images):
        x, y = i % across, i // across
        # every map fills the same square, whatever its number of patches
        drawn = axis.imshow(
            image,
            extent=(x + 0.04, x + 0.96, y + 0.96, y + 0.04),
            cmap="RdBu",
            vmin=-bound,
            vmax=bound,
            interpolation="none",
        )
    axis.set(xlim=(0, across), ylim=(down, 0), xticks=[], yticks=[], aspect="equal")
    for spine in axis.spines.values():
        spine.set_visible(False)
    return drawn


def _resize(table: Table, side: int, antialias: bool) -> Tensor:
    if table.grid == (side, side):
        return table.rows
    rows = table.rows.T.reshape(1, -1, *table.grid)
    resized = torch.nn.functional.interpolate(
        rows, size=(side, side), mode="bicubic", antialias=antialias
    )
    return resized[0].flatten(1).T


def _grid(resolution: int, patch: int) -> int:
    if resolution < patch or resolution % patch:
        below = resolution // patch * patch
        nearest = f"{below} and {below + patch}" if below else f"{patch}"
        raise ValueError(
            f"image size {resolution} is not divisible by the patch size {patch}: the nearest "
            f"sizes that are: {nearest}"
        )
    return resolution // patch
