"""timm's table of RoPE-mixed for coordinates of each image, in half the bytes.

timm makes one table for a grid that all images share, in six operations that copy it each time.
Augmented coordinates need one table for each image and layer. To save memory, backward computes
sines and cosines from the table itself.
"""

from typing import Any

import torch
from timm.layers import get_mixed_freqs
from torch import Tensor

from cape_plugins.checks import is_plain
from cape_plugins.rotation import gradient_of_frequencies, phases_of


def mixed_table(coords: Tensor, frequencies: Tensor) -> Tensor:
    """[sines | cosines], each twice in succession, as timm's blocks rotate by.

    Args:
        coords: (B, N, 2), along x and along y, in the unit of the frequencies.
        frequencies: (2, heads, head_dim / 2) of a layer, along x and along y.

    Returns:
        (B, heads, N, 2 · head_dim) float32.
    """
    if is_plain(coords, frequencies) and not coords.requires_grad:
        return _MixedTable.apply(coords, frequencies.float())
    x, y = coords[:, None].unbind(-1)  # (B, 1, N)
    return get_mixed_freqs(frequencies, x, y, torch.float32)


class _MixedTable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, coords: Tensor, frequencies: Tensor) -> Tensor:
        phases = phases_of(coords, frequencies)  # (B, heads, N, head_dim / 2)
        both = phases.new_empty((*phases.shape[:-1], 2, phases.shape[-1], 2))
        both[..., 0, :, :] = phases.sin()[..., None]
        both[..., 1, :, :] = phases.cos()[..., None]
        table = both.flatten(-3)  # (B, heads, N, 2 · head_dim)
        ctx.save_for_backward(coords, table)
        return table

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        coords, table = ctx.saved_tensors
        sin, cos = table[..., ::2].chunk(2, dim=-1)  # (B, heads, N, head_dim / 2)
        of_sin, of_cos = (grad[..., ::2] + grad[..., 1::2]).chunk(2, dim=-1)
        return None, gradient_of_frequencies(coords, (of_sin * cos).addcmul(of_cos, sin, value=-1))
