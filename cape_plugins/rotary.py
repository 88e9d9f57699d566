"""``rope``: queries and keys turn with their position, so that scores see distances alone.

On a line as Su et al. 2021, https://arxiv.org/abs/2104.09864. On a plane axial: half of a head's
channels for either axis, with the frequencies of DINOv3 (https://arxiv.org/abs/2508.10104): for
coordinates in [-1, 1], up to 2π radians per unit, which with 14 patches along an axis is about the
radian per patch of rope-vit. As in DINOv3, and as in [cos | sin] of sinusoids, channel k turns with
channel k + head_dim / 2. tests/test_rotary.py compares them with rotary-embedding-torch and timm.

    >>> attention = Rotary(Sizes(dim=384, heads=6, axes=2))
    >>> where = patch_grid(14, 14)[None]                    # (1, 196, 2)
    >>> given = attention.prepare(where, where, None, query.dtype)
    >>> out, _ = attention(query, key, value, given)
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cape_plugins import fused
from cape_plugins.attention import Given, PositionalAttention, with_heads
from cape_plugins.checks import check_positive
from cape_plugins.options import option
from cape_plugins.sinusoid import (
    HasFrequencies,
    check_frequencies,
    frequencies_1d,
    known_positions,
    sines,
)

# of the frequencies' geometric series: Su et al.; DINOv3
BASE_LINE, BASE_PLANE = 10_000.0, 100.0

# radians per unit of position of the highest frequency on a plane, from -1 to 1 (DINOv3)
PLANE_SCALE = 2 * math.pi


@dataclass(eq=False, repr=False)
class Rotary(HasFrequencies, PositionalAttention):
    """Rotates queries and keys by position × frequency; tokens without a position stay.

    Attributes:
        rotated: the first channels of a head, which turn; the others stay.

    Raises:
        ValueError: an option is out of range, or ``rotated`` is odd, or with two axes no multiple
            of 4.
    """

    rope_base: float | None = option(
        None, "base of the rotations' frequencies; by default 10000 in sequences, 100 in images"
    )
    rope_fraction: float = option(1.0, "the part of a head's channels that turns")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rope_base is None:
            self.rope_base = BASE_LINE if self.sizes.axes == 1 else BASE_PLANE
        check_frequencies(self.rope_base, self.frequency_scale)
        check_positive("rope_fraction", self.rope_fraction)
        head_dim, axes = self.sizes.head_dim, self.sizes.axes
        self.rotated = round(self.rope_fraction * head_dim)
        if self.rotated % (2 * axes) or not 0 < self.rotated <= head_dim:
            raise ValueError(
                f"rotary positions on {axes} axes turn a multiple of {2 * axes} channels of a head,"
                f" at most {head_dim}, got {self.rotated} (rope_fraction {self.rope_fraction:g}): "
                "change the width, the number of heads or rope_fraction"
            )

    def prepare(
        self, queries: Tensor, keys: Tensor, mask: Tensor | None, dtype: torch.dtype
    ) -> Given:
        """Cosines and sines, (1 or B, N, 2 · rotated) float32: those of 0 without a position."""
        rows = self._rows(queries)
        return Given(rows, rows if keys is queries else self._rows(keys), with_heads(mask))

    def _rows(self, positions: Tensor) -> Tensor:
        known, present = known_positions(positions)
        if self.sizes.axes > 1:  # of a position that is known on one axis alone
            known = known * present
        settings = self.rotated, self.sizes.axes, self.rope_base, self.frequency_scale
        waves = fused.constant(rotary_waves, *settings, like=known)
        return sines(known, waves, torch.float32)

    def embed(self, x: Tensor, rows: Tensor | None) -> Tensor:
        """Rotate (B, ·, N, head_dim), in float32 at least, by what :meth:`prepare` gave."""
        return self._rotate(rows, x)[0]

    def embed_both(self, query: Tensor, key: Tensor, given: Given) -> tuple[Tensor, Tensor]:
        """:meth:`embed` for queries and keys, together where both are the same tokens."""
        if given.queries is not given.keys or query.shape != key.shape:
            return super().embed_both(query, key, given)
        query, key = self._rotate(given.queries, query, key)
        return query, key

    def _rotate(self, rows: Tensor | None, *turned: Tensor) -> tuple[Tensor, ...]:
        assert rows is not None, "rotary attention needs positions"
        rows = rows[:, None]
        if self.rotated == self.sizes.head_dim:
            return rotate(rows, *turned)
        parts = rotate(rows, *(x[..., : self.rotated] for x in turned))
        rest = (x[..., self.rotated :] for x in turned)
        return tuple(torch.cat(both, dim=-1) for both in zip(parts, rest, strict=True))


def rotate(table: Tensor, *turned: Tensor, back: bool = False) -> tuple[Tensor, ...]:
    """Rotate tensors (…, d) of one shape; the sum is taken in float32 at least, and rounded last.

    Args:
        table: [cos | cos | -sin | sin], (…, 2 d), broadcastable to each.
        turned: (…, d); channel k turns with channel k + d / 2.
        back: in the other direction.
    """
    usable = fused.usable(table, *turned) and not table.requires_grad
    if usable and fused.pays(turned[0]):
        return fused.rotate(table, back, rotate, *turned)
    return tuple(_rotate(table, x, back) for x in turned)


def _rotate(table: Tensor, x: Tensor, back: bool) -> Tensor:
    cos, sin = table.chunk(2, dim=-1)
    wide = x.to(torch.promote_types(x.dtype, table.dtype))
    other = wide.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(wide * cos, other, sin, value=-1 if back else 1).to(x.dtype)


def rotary_waves(
    rotated: int, axes: int, base: float, frequency_scale: float, device: torch.device
) -> Tensor:
    """:func:`sines` by them are [cos | cos | -sin | sin]: (axes + 1, 2 · rotated)."""
    scale = 1.0 if axes == 1 else PLANE_SCALE
    along = frequencies_1d(rotated // axes, base, frequency_scale * scale, device)
    # an axis turns channels of its own
    frequencies = torch.block_diag(*[along[None]] * axes)  # (axes, rotated / 2)
    none = torch.zeros_like(frequencies[:1])
    cosines = torch.cat([frequencies, none + math.pi / 2])  # (axes + 1, rotated / 2)
    sines = torch.cat([frequencies, none])
    return torch.cat([cosines, cosines, -sines, sines], dim=1)
