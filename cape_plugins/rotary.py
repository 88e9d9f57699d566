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

from cape_plugins.attention import AttentionSettings, Hidden, PositionalAttention
from cape_plugins.constants import constant
from cape_plugins.positions import with_axes
from cape_plugins.rotation import rotate, rotate_mixed
from cape_plugins.sinusoid import frequencies_1d, known_positions, sines

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
    def prepare(
        positions: Tensor,
        settings: AttentionSettings,
        *,
        hidden: Hidden = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Cosines and sines of (B, N) or (B, N, axes): (B, N, 2 · head_dim) float32."""
        known = _placed(positions)
        axes, scale = settings.axes, settings.frequency_scale
        return sines(
            known, constant(_waves, settings.head_dim, axes, scale, like=known), torch.float32
        )

    def embed(self, x: Tensor, positions: Tensor | None) -> Tensor:
        """Rotate (B, heads, N, head_dim), in float32 at least, by what :meth:`prepare` gave."""
        assert positions is not None, "rotary attention needs positions"
        return rotate(positions[:, None], x)[0]

    def embed_both(
        self, query: Tensor, key: Tensor, positions: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """:meth:`embed` for queries and keys, together where there are as many of both."""
        if positions is None or query.shape != key.shape:
            return super().embed_both(query, key, positions)
        query, key = rotate(positions[:, None], query, key)
        return query, key


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
        return rotate_mixed(_placed(positions), self.frequencies * PLANE_SCALE, x)[0]

    def embed_both(
        self, query: Tensor, key: Tensor, positions: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """:meth:`embed` for queries and keys, together where there are as many of both."""
        if positions is None or query.shape != key.shape:
            return super().embed_both(query, key, positions)
        frequencies = self.frequencies * PLANE_SCALE
        query, key = rotate_mixed(_placed(positions), frequencies, query, key)
        return query, key


def _check_channels(head_dim: int, axes: int) -> None:
    if head_dim % (2 * axes):
        on = "1 axis" if axes == 1 else f"{axes} axes"
        raise ValueError(
            f"rotary positions with {on} need heads of a multiple of {2 * axes} channels, got "
            f"{head_dim}: change the width or the number of heads"
        )


def _placed(positions: Tensor) -> Tensor:
    """(B, N[, axes]) → (B, N, axes) in float32 at least; 0, which turns nothing, without one."""
    wide = with_axes(positions)
    known, present = known_positions(wide)
    return known if wide.shape[2] == 1 else known * present


def _waves(head_dim: int, axes: int, frequency_scale: float, device: torch.device) -> Tensor:
    """:func:`sines` by them are [cos | cos | -sin | sin]: (axes + 1, 2 · head_dim)."""
    base, scale = (BASE_LINE, 1.0) if axes == 1 else (BASE_PLANE, PLANE_SCALE)
    along = frequencies_1d(head_dim // axes, base, frequency_scale * scale, device)
    # an axis turns channels of its own
    frequencies = torch.block_diag(*[along[None]] * axes)  # (axes, head_dim / 2)
    none = torch.zeros_like(frequencies[:1])
    cosines = torch.cat([frequencies, none + math.pi / 2])  # (axes + 1, head_dim / 2)
    sines = torch.cat([frequencies, none])
    return torch.cat([cosines, cosines, -sines, sines], dim=1)
