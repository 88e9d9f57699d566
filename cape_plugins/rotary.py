"""Rotary positions: queries and keys turn with their position, so that scores see distances alone.

On a line as Su et al. 2021, https://arxiv.org/abs/2104.09864. On a plane axial: half of a head's
channels for either axis, with the frequencies of DINOv3 (https://arxiv.org/abs/2508.10104): for
coordinates in [-1, 1], up to 2π radians per unit, which with 14 patches along an axis is about the
radian per patch of rope-vit. Mixed: learnable frequencies of each head and layer, along any
direction (RoPE-mixed of rope-vit, Heo et al. 2024, https://arxiv.org/abs/2403.13298). As in DINOv3,
and as in [cos | sin] of sinusoids, channel k turns with channel k + head_dim / 2.
tests/test_rotary.py compares them with rotary-embedding-torch and timm.

    >>> settings = AttentionSettings(head_dim=64, heads=6, axes=2)
    >>> positions = RotaryAttention.prepare(patch_grid(14, 14)[None], settings)
    >>> out, _ = RotaryAttention(settings)(query, key, value, positions)
"""

import math

import torch
from torch import Tensor, nn

from cape_plugins.attention import AttentionSettings, PositionalAttention
from cape_plugins.positions import with_axes
from cape_plugins.sinusoid import cos_sin, frequencies_1d

# of the frequencies' geometric series: Su et al.; DINOv3; rope-vit
BASE_LINE, BASE_PLANE, BASE_MIXED = 10_000.0, 100.0, 10.0

# radians per unit of position of the highest frequency on a plane, from -1 to 1 (DINOv3)
PLANE_SCALE = 2 * math.pi


class RotaryAttention(PositionalAttention):
    """Rotates queries and keys by position × frequency; tokens without a position stay.

    Raises:
        ValueError: ``head_dim`` is odd, or with two axes no multiple of 4.
    """

    def __init__(self, settings: AttentionSettings) -> None:
        super().__init__(settings)
        _check_channels(settings.head_dim, settings.axes)

    @staticmethod
    def prepare(positions: Tensor, settings: AttentionSettings) -> Tensor:
        """Cosines and sines of (B, N) or (B, N, axes): (B, N, 2 · head_dim) float32."""
        positions, without = _split(positions)
        base, scale = (BASE_LINE, 1.0) if settings.axes == 1 else (BASE_PLANE, PLANE_SCALE)
        width, scale = settings.head_dim // settings.axes, settings.frequency_scale * scale
        frequencies = frequencies_1d(width, base, scale, positions.device)[None]  # (1, width / 2)
        cos, sin = cos_sin(positions[..., None], frequencies, torch.float32)  # (B, N, axes, ·)
        cos, sin = cos.flatten(2), sin.flatten(2)  # (B, N, head_dim / 2)
        return _table(cos.masked_fill(without, 1.0), sin.masked_fill(without, 0.0))

    def embed(self, x: Tensor, positions: Tensor | None) -> Tensor:
        """Rotate (B, heads, N, head_dim), in float32 at least, by what :meth:`prepare` gave."""
        assert positions is not None, "rotary attention needs positions"
        return _rotate(x, positions[:, None])


class MixedRotaryAttention(PositionalAttention):
    """The same on a plane, each head and layer with learnable frequencies along both axes.

    ``frequencies`` are (2, heads, head_dim / 2), along the height and the width, in units of 2π
    radians per unit of position. At first half of each head's lie along a random direction and half
    across it, as in rope-vit.

    Raises:
        ValueError: ``head_dim`` is no multiple of 4.
    """

    def __init__(self, settings: AttentionSettings) -> None:
        super().__init__(settings)
        _check_channels(settings.head_dim, 2)
        self.frequencies = nn.Parameter(torch.empty(2, settings.heads, settings.head_dim // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the directions anew."""
        _, heads, half = self.frequencies.shape
        device = self.frequencies.device
        along = frequencies_1d(half, BASE_MIXED, 1.0, device)  # (half / 2,)
        angle = 2 * math.pi * torch.rand(heads, 1, device=device)  # (heads, 1)
        angles = torch.cat([angle, angle + math.pi / 2], dim=1)[..., None]  # (heads, 2, 1)
        with torch.no_grad():
            self.frequencies[0] = (along * angles.cos()).flatten(1)  # (heads, head_dim / 2)
            self.frequencies[1] = (along * angles.sin()).flatten(1)

    def embed(self, x: Tensor, positions: Tensor | None) -> Tensor:
        """Rotate (B, heads, N, head_dim), in float32 at least, by the positions (B|1, N, 2)."""
        assert positions is not None, "rotary attention needs positions"
        positions, _ = _split(positions)  # 0, which turns nothing, without a position
        frequencies = self.frequencies.to(torch.promote_types(x.dtype, positions.dtype))
        along_height, along_width = (frequencies * PLANE_SCALE).unbind()  # (heads, head_dim / 2)
        # elementwise rather than a matrix product, which autocast would run in half precision
        height, width = positions[:, None, :, :1], positions[:, None, :, 1:]  # (B, 1, N, 1)
        phases = height * along_height[:, None] + width * along_width[:, None]  # (B, heads, N, ·)
        return _rotate(x, _table(phases.cos(), phases.sin()))


def _check_channels(head_dim: int, axes: int) -> None:
    if head_dim % (2 * axes):
        on = "1 axis" if axes == 1 else f"{axes} axes"
        raise ValueError(
            f"rotary positions with {on} need heads of a multiple of {2 * axes} channels, got "
            f"{head_dim}: change the width or the number of heads"
        )


def _split(positions: Tensor) -> tuple[Tensor, Tensor]:
    """(B, N[, axes]) → (B, N, axes) in float32 at least, 0 for NaN, and a mask (B, N, 1) of it."""
    positions = with_axes(positions)
    without = positions.isnan().any(dim=2, keepdim=True)
    return positions.masked_fill(without, 0.0), without


def _table(cos: Tensor, sin: Tensor) -> Tensor:
    """Cosines and sines (…, d / 2) → [cos | cos | -sin | sin] (…, 2 d)."""
    return torch.cat([cos, cos, -sin, sin], dim=-1)


def _rotate(x: Tensor, table: Tensor) -> Tensor:
    """(…, d) by a table that broadcasts with it; the sum is taken in float32, rounded last."""
    cos, sin = table.chunk(2, dim=-1)
    wide = x.to(torch.promote_types(x.dtype, table.dtype))
    # in place: what rotation costs is memory
    return (wide * cos).addcmul_(wide.roll(x.shape[-1] // 2, dims=-1), sin).to(x.dtype)
