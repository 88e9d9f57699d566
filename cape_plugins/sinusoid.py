"""Sinusoidal embeddings of positions: cosines and sines of position × frequency, in 1-D and 2-D.

Both lay the channels out as [cos | sin] halves, as the paper's listing does. Phases and their sines
are computed in float64 where the device has it, so that the last second of an hour of audio is as
exact as the first. They are rounded once, to float32 (to float64 if positions are float64). A
cosine is computed as the sine of a phase a quarter turn ahead, so that one operation makes all
channels.

    >>> tokens = sinusoid_1d(torch.arange(5.0), 64)                             # (5, 64)
    >>> audio = sinusoid_1d(frame_times([300], 0.01), 64, frequency_scale=30)   # (1, 300, 64)
    >>> patches = sinusoid_2d(patch_grid(14, 14), 384)                          # (196, 384)
    >>> x = Sinusoids(Sizes(dim=384, axes=2)).add(content, patch_grid(14, 14)[None])
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cape_plugins import fused
from cape_plugins.added import Added
from cape_plugins.checks import (
    check_count,
    check_positions,
    check_positive,
    is_number,
    is_traced,
)
from cape_plugins.options import option
from cape_plugins.places import at_least_float32, exact, widest


@dataclass(eq=False, repr=False)
class HasFrequencies:
    """The option of all that has frequencies: sinusoids here, rotations in rotary.py."""

    frequency_scale: float = option(
        1.0,
        "multiplies all frequencies; 1 for tokens and patches (section 3.1), 30 for seconds (4.2)",
    )


@dataclass(eq=False, repr=False)
class Sinusoids(HasFrequencies, Added):
    """``sinpos``, ``cape``, ``random``: adds [cos | sin] of position × frequency.

    In sequences as :func:`sinusoid_1d`, in images as :func:`sinusoid_2d`.

    Raises:
        ValueError: the number of channels is odd, or an option is out of range.
    """

    base: float = option(
        10_000.0, "base of the geometric series of frequencies (section 3.1)", axes=(1,)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dim(self.sizes.dim)
        check_frequencies(self.base, self.frequency_scale)

    def embedding(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """[cos | sin], (1 or B, N, dim), in ``dtype``, or in float32 if that is narrower."""
        return embed(positions, self._waves(positions), at_least_float32(dtype))

    def add(self, content: Tensor, positions: Tensor) -> Tensor:
        """(B, N, dim) + the embedding of positions (1 or B, N, axes), in content's dtype."""
        known, present = known_positions(positions)
        waves = sines(known, self._waves(positions), at_least_float32(content.dtype))
        if fused.usable(content, waves) and not waves.requires_grad:
            return fused.add_where(content, waves, present)
        return (content + waves * present).to(content.dtype)

    def _waves(self, positions: Tensor) -> Tensor:
        """``waves`` of :func:`sines`, (axes + 1, dim), on the positions' device."""
        dim, scale = self.sizes.dim, self.frequency_scale
        if self.sizes.axes == 2:
            return fused.constant(waves_2d, dim, scale, like=positions)
        return fused.constant(waves_1d, dim, self.base, scale, like=positions)


def sinusoid_1d(
    positions: Tensor, dim: int, *, base: float = 10_000.0, frequency_scale: float = 1.0
) -> Tensor:
    """Embed positions on a line (section 3.1): phase k is
    position · frequency_scale · base^(-2k/dim).

    Args:
        positions: (...) real numbers; NaN marks padding.
        dim: channels, even.
        base: base of the geometric series of frequencies, > 1; 10 000 as in the paper.
        frequency_scale: multiplies all frequencies; 1 for tokens, 30 for seconds (section 4.2).

    Returns:
        (..., dim) in the positions' dtype, float32 at least: [cos | sin], zeros at padding.

    Raises:
        ValueError: ``dim`` is odd or < 2, ``base`` or ``frequency_scale`` is out of range, or
            positions are infinite (on CUDA: :func:`cape_plugins.checks.check_values`).
    """
    check_dim(dim)
    check_frequencies(base, frequency_scale)
    check_positions(positions)
    waves = fused.constant(waves_1d, dim, base, frequency_scale, like=positions)
    return embed(exact(positions)[..., None], waves, at_least_float32(positions.dtype))


def sinusoid_2d(positions: Tensor, dim: int, *, frequency_scale: float = 1.0) -> Tensor:
    """Embed positions on a plane (section 3.1, equations 3–4).

    Phase j is π · frequency_scale · w_j · position, with
    w_j = 10^((j + 1) / (dim / 2)) · (cos j, sin j), j = 0 … dim/2 - 1, as in the paper's listing.

    Args:
        positions: (..., 2), along the height and along the width, in [-1, 1] for an image; NaN
            marks padding.
        dim: channels, even.
        frequency_scale: multiplies all frequencies; 1 in the paper, where w_j is at most 10 long.

    Returns, Raises:
        As :func:`sinusoid_1d`, and ValueError unless positions end in 2.
    """
    check_dim(dim)
    check_frequencies(10.0, frequency_scale)
    if positions.shape[-1] != 2:
        raise ValueError(f"2-D positions must be (..., 2), got shape {tuple(positions.shape)}")
    check_positions(positions)
    waves = fused.constant(waves_2d, dim, frequency_scale, like=positions)
    return embed(exact(positions), waves, at_least_float32(positions.dtype))


def embed(positions: Tensor, waves: Tensor, dtype: torch.dtype) -> Tensor:
    """[cos | sin] of positions (..., axes) by ``waves`` (axes + 1, C): (..., C) in ``dtype``.

    It is zero where a position is NaN on any axis.
    """
    known, present = known_positions(positions)
    return sines(known, waves, dtype) * present


def known_positions(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Positions (..., axes) with 0 for NaN, and a bool mask (..., 1): False if any axis is NaN."""
    present = positions == positions
    if positions.shape[-1] > 1:
        present = present.all(dim=-1, keepdim=True)
    return positions.nan_to_num(0.0), present


def sines(positions: Tensor, waves: Tensor, dtype: torch.dtype) -> Tensor:
    """Sines of phases, (..., C) in ``dtype``, for positions (..., axes) without NaN.

    ``waves`` are (axes + 1, C): one row for each axis with the radians per unit of position, and a
    last row with the phase at position 0, a quarter turn for a cosine. Phases and sines are
    computed in the dtype of ``waves``.
    """
    # elementwise rather than a matrix product, which autocast would run in half precision
    phase = waves[-1]  # (C,)
    for axis in range(waves.shape[0] - 1):
        phase = torch.addcmul(phase, positions[..., axis, None], waves[axis])  # (..., C)
    if fused.usable(phase) and not phase.requires_grad:
        return fused.sin(phase, dtype)
    return phase.sin().to(dtype)


def waves_1d(dim: int, base: float, frequency_scale: float, device: torch.device) -> Tensor:
    """``waves`` of :func:`embed` for :func:`sinusoid_1d`, (2, dim)."""
    return as_cosines_and_sines(frequencies_1d(dim, base, frequency_scale, device)[None])


def waves_2d(dim: int, frequency_scale: float, device: torch.device) -> Tensor:
    """``waves`` of :func:`embed` for :func:`sinusoid_2d`, (3, dim)."""
    return as_cosines_and_sines(frequencies_2d(dim, frequency_scale, device))


def as_cosines_and_sines(frequencies: Tensor) -> Tensor:
    """Radians per unit (axes, K) → ``waves`` (axes + 1, 2 K) of [cos | sin]."""
    quarter = torch.full_like(frequencies[:1], math.pi / 2)  # cos x = sin(x + π/2)
    cosines = torch.cat([frequencies, quarter])  # (axes + 1, K)
    sines = torch.cat([frequencies, torch.zeros_like(quarter)])
    return torch.cat([cosines, sines], dim=1)


def frequencies_1d(dim: int, base: float, frequency_scale: float, device: torch.device) -> Tensor:
    """Radians per unit of position of each phase of :func:`sinusoid_1d`, (dim / 2,)."""
    k = torch.arange(dim // 2, device=device, dtype=widest(device))
    return frequency_scale * torch.pow(base, k * (-2.0 / dim))


def frequencies_2d(dim: int, frequency_scale: float, device: torch.device) -> Tensor:
    """Radians per unit along the height and the width of :func:`sinusoid_2d`, (2, dim / 2)."""
    j = torch.arange(dim // 2, device=device, dtype=widest(device))
    radius = frequency_scale * math.pi * torch.pow(10.0, (j + 1) / (dim // 2))  # (dim / 2,)
    return torch.stack([radius * torch.cos(j), radius * torch.sin(j)])


def check_dim(dim: int) -> None:
    """Raise ValueError unless ``dim`` channels split into cosines and sines."""
    check_count("dim", dim)
    if dim % 2:
        raise ValueError(f"dim must be even (cosines and sines), got {dim}: {dim + 1} is the next")


def check_frequencies(base: float, frequency_scale: float) -> None:
    """Raise ValueError unless ``base`` > 1 and ``frequency_scale`` > 0, both finite."""
    if not is_traced():  # they may be symbolic; eager code and the modules' constructors checked
        if not (is_number(base) and base > 1):
            raise ValueError(f"base must be a finite number > 1, got {base!r}")
        check_positive("frequency_scale", frequency_scale)
