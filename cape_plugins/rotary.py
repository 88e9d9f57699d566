"""``rope``: queries and keys turn with their position, so that scores see distances alone.

On a line as Su et al. 2021, https://arxiv.org/abs/2104.09864. On a plane axial: half of a head's
channels for either axis, with the frequencies of DINOv3 (https://arxiv.org/abs/2508.10104): for
coordinates in [-1, 1], up to 2π radians per unit, which with 14 patches along an axis is about the
radian per patch of rope-vit. As in DINOv3, and as in [cos | sin] of sinusoids, channel k turns with
channel k + head_dim / 2. tests/test_rotary.py compares them with rotary-embedding-torch and timm.

    >>> attention = Rotary(Sizes(dim=384, heads=6, axes=2))
    >>> given = attention.prepare(patch_grid(14, 14)[None], None, query.dtype)
    >>> out, _ = attention(query, key, value, given)
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cape_plugins import fused
from cape_plugins.attention import Given, PositionalAttention, with_heads
from cape_plugins.checks import check_positive
from cape_plugins.sinusoid import HasFrequencies, frequencies_1d, known_positions, sines

# of the frequencies' geometric series: Su et al.; DINOv3
BASE_LINE, BASE_PLANE = 10_000.0, 100.0

# radians per unit of position of the highest frequency on a plane, from -1 to 1 (DINOv3)
PLANE_SCALE = 2 * math.pi


@dataclass(eq=False, repr=False)
class Rotary(HasFrequencies, PositionalAttention):
    """Rotates queries and keys by position × frequency; tokens without a position stay.

    Raises:
        ValueError: ``head_dim`` is odd, or with two axes no multiple of 4.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("frequency_scale", self.frequency_scale)
        head_dim, axes = self.sizes.head_dim, self.sizes.axes
        if head_dim % (2 * axes):
            raise ValueError(
                f"rotary positions on {axes} axes need heads of a multiple of {2 * axes} channels, "
                f"got {head_dim}: change the width or the number of heads"
            )

    def prepare(self, positions: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Given:
        """Cosines and sines, (1 or B, N, 2 · head_dim) float32: those of 0 without a position."""
        known, present = known_positions(positions)
        if self.sizes.axes == 2:  # of a position that is known on one axis alone
            known = known * present
        settings = self.sizes.head_dim, self.sizes.axes, self.frequency_scale
        waves = fused.constant(rotary_waves, *settings, like=known)
        return Given(sines(known, waves, torch.float32), with_heads(mask))

    def embed(self, x: Tensor, prepared: Tensor | None) -> Tensor:
        """Rotate (B, heads, N, head_dim), in float32 at least, by what :meth:`prepare` gave."""
        assert prepared is not None, "rotary attention needs positions"
        return rotate(prepared[:, None], x)[0]

    def embed_both(
        self, query: Tensor, key: Tensor, prepared: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """:meth:`embed` for queries and keys, together where there are as many of both."""
        if prepared is None or query.shape != key.shape:
            return super().embed_both(query, key, prepared)
        query, key = rotate(prepared[:, None], query, key)
        return query, key


def rotate(table: Tensor, *turned: Tensor, back: bool = False) -> tuple[Tensor, ...]:
    """Rotate tensors (…, d) of one shape; the sum is taken in float32 at least, and rounded last.

    Args:
        table: [cos | cos | -sin | sin], (…, 2 d), broadcastable to each.
        turned: (…, d); channel k turns with channel k + d / 2.
        back: in the other direction.
    """
    usable = fused.usable(table, *turned) and not table.requires_grad
    if usable and fused.pays(turned[0]):
        return fused.rotate(table, back, *turned)
    return tuple(_rotate(table, x, back) for x in turned)


def _rotate(table: Tensor, x: Tensor, back: bool) -> Tensor:
    cos, sin = table.chunk(2, dim=-1)
    wide = x.to(torch.promote_types(x.dtype, table.dtype))
    other = wide.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(wide * cos, other, sin, value=-1 if back else 1).to(x.dtype)


def rotary_waves(head_dim: int, axes: int, frequency_scale: float, device: torch.device) -> Tensor:
    """:func:`sines` by them are [cos | cos | -sin | sin]: (axes + 1, 2 · head_dim)."""
    base, scale = (BASE_LINE, 1.0) if axes == 1 else (BASE_PLANE, PLANE_SCALE)
    along = frequencies_1d(head_dim // axes, base, frequency_scale * scale, device)
    # an axis turns channels of its own
    frequencies = torch.block_diag(*[along[None]] * axes)  # (axes, head_dim / 2)
    none = torch.zeros_like(frequencies[:1])
    cosines = torch.cat([frequencies, none + math.pi / 2])  # (axes + 1, head_dim / 2)
    sines = torch.cat([frequencies, none])
    return torch.cat([cosines, cosines, -sines, sines], dim=1)
