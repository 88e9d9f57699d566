"""The learnable table of ``abspos``: a row for each index, or for each patch of one grid."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cape_plugins.positions import check_values


def look_up(positions: Tensor, table: Tensor, wrap: bool) -> Tensor:
    """The rows of positions on a line, rounded to the nearest integer.

    Args:
        positions: (B, N); NaN marks padding.
        table: (rows, D).
        wrap: take the index modulo the number of rows.

    Returns:
        (B, N, D), zeros at padding.

    Raises:
        ValueError: without ``wrap``, an index beyond the table (on CUDA see
            :func:`cape_plugins.positions.check_values`).
    """
    padding = positions.isnan()
    index = positions.masked_fill(padding, 0.0).round().long()
    rows = table.shape[0]
    if wrap:
        index = index.remainder(rows)
    elif not torch.jit.is_scripting():  # there the look-up itself fails
        _check_index(index, rows)
    return F.embedding(index, table).masked_fill(padding[..., None], 0.0)


def resize_table(table: Tensor, grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """The table of one grid for another, bicubic and antialiased, as timm does.

    Args:
        table: (1, H · W, D), the rows of ``grid``.
        grid: its (H, W) in patches.
        size: (height, width) that is wanted.

    Returns:
        (1, height · width, D).
    """
    (rows, columns), (height, width) = grid, size
    if rows == height and columns == width:
        return table
    dim = table.shape[2]
    table = table.float().reshape(1, rows, columns, dim).permute(0, 3, 1, 2)
    table = F.interpolate(table, size=[height, width], mode="bicubic", antialias=True)
    return table.permute(0, 2, 3, 1).reshape(1, height * width, dim)


def _check_index(index: Tensor, rows: int) -> None:
    check_values(
        index,
        lambda: (index >= 0) & (index < rows),
        f"abspos has positions 0 … {rows - 1} (build it with a larger max_length, shorten the "
        "input, or use overflow='wrap')",
    )
