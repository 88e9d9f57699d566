"""The table of RoPE-mixed for coordinates of each image, in half the bytes.

timm makes one table for a grid that all images share, in six operations that copy it each time.
Augmented coordinates need one table for each image and layer. To save memory, backward computes
sines and cosines from the table itself.
"""

from typing import Any

import torch
from torch import Tensor


def mixed_table(coords: Tensor, frequencies: Tensor) -> Tensor:
    """timm's ``get_mixed_freqs``: [sines | cosines], each twice in succession.

    Args:
        coords: (B, N, 2), along x and along y, in the unit of the frequencies; they get no
            gradient.
        frequencies: (2, heads, head_dim / 2) of a layer, along x and along y.

    Returns:
        (B, heads, N, 2 · head_dim) float32.
    """
    return _MixedTable.apply(coords, frequencies.float())


class _MixedTable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, coords: Tensor, frequencies: Tensor) -> Tensor:
        # elementwise rather than a matrix product, which autocast would run in half precision
        x, y = coords[:, None, :, :1], coords[:, None, :, 1:]  # (B, 1, N, 1)
        along_x, along_y = frequencies[:, :, None]  # (heads, 1, head_dim / 2)
        phases = torch.addcmul(x * along_x, y, along_y)  # (B, heads, N, head_dim / 2)
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
        of_phases = (of_sin * cos).addcmul(of_cos, sin, value=-1)
        # (B, 1, 2, N) × (B, heads, N, head_dim / 2), never in half precision
        with torch.autocast(coords.device.type, enabled=False):
            along = coords.transpose(1, 2)[:, None].to(of_phases.dtype) @ of_phases
        return None, along.sum(dim=0).transpose(0, 1)  # (2, heads, head_dim / 2)
