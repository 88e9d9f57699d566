"""Sinusoidal embeddings of positions: cosines and sines of position × frequency, in 1-D and 2-D.

Both lay the channels out as [cos | sin] halves, as the paper's listing does. Phases are taken in
float64 where the device has it and reduced to one turn there, so that an hour of audio is as exact
as its first second; cosine and sine follow in float32 (float64 if given).

    >>> tokens = sinusoid_1d(torch.arange(5.0), 64)                             # (5, 64)
    >>> audio = sinusoid_1d(frame_times([300], 0.01), 64, frequency_scale=30)   # (1, 300, 64)
    >>> patches = sinusoid_2d(patch_grid(14, 14), 384)                          # (196, 384)
"""

import math

import torch
from torch import Tensor

from cape_plugins.checks import check_count, check_positions, check_positive, is_traced
from cape_plugins.positions import widest


def sinusoid_1d(
    positions: Tensor, dim: int, *, base: float = 10_000.0, frequency_scale: float = 1.0
) -> Tensor:
    """Embed positions on a line (section 3.1): phase k is
    position · frequency_scale · base^(-2k/dim).

    Args:
        positions: (...) real numbers; NaN marks padding.
        dim: channels, even.
        base: of the geometric series of frequencies, > 1; the paper's (and Transformer's) 10 000.
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
    frequencies = frequencies_1d(dim, base, frequency_scale, positions.device)[None]
    return embed(positions[..., None], frequencies)


def sinusoid_2d(positions: Tensor, dim: int, *, frequency_scale: float = 1.0) -> Tensor:
    """Embed positions on a plane (section 3.1, equations 3–4).

    Phase j is π · frequency_scale · w_j · position, with
    w_j = 10^((j + 1) / (dim / 2)) · (cos j, sin j), j = 0 … dim/2 - 1, as in the paper's listing.

    Args:
        positions: (..., 2), along the height and along the width, in [-1, 1] for an image; NaN
            marks padding.
        dim: channels, even.
        frequency_scale: multiplies all frequencies; 1 in the paper, whose lengths run from 1 to 10.

    Returns, Raises:
        As :func:`sinusoid_1d`, and ValueError unless positions end in 2.
    """
    check_dim(dim)
    check_frequencies(10.0, frequency_scale)
    if positions.shape[-1] != 2:
        raise ValueError(f"2-D positions must be (..., 2), got shape {tuple(positions.shape)}")
    check_positions(positions)
    return embed(positions, frequencies_2d(dim, frequency_scale, positions.device))


def embed(positions: Tensor, frequencies: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """[cos | sin] of positions (..., axes) × frequencies (axes, K), in radians: (..., 2 K).

    It is zero where a position is NaN on any axis, in ``dtype``, by default the positions', float32
    at least.
    """
    padding = positions.isnan().any(dim=-1, keepdim=True)  # (..., 1)
    cos, sin = cos_sin(positions.masked_fill(padding, 0.0), frequencies, dtype)  # (..., K)
    return torch.cat([cos, sin], dim=-1).masked_fill(padding, 0.0)


def cos_sin(
    positions: Tensor, frequencies: Tensor, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines (..., K) of positions (..., axes), none NaN; arguments as :func:`embed`."""
    if dtype is None:
        dtype = torch.promote_types(positions.dtype, torch.float32)
    turns, wide = frequencies / math.tau, positions.to(frequencies.dtype)
    # elementwise rather than a matrix product, which autocast would run in half precision
    phase = wide[..., 0, None] * turns[0]  # (..., K), in turns
    for axis in range(1, turns.shape[0]):
        phase = phase + wide[..., axis, None] * turns[axis]
    phase = ((phase - phase.round()) * math.tau).to(dtype)
    return phase.cos(), phase.sin()


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
    """Raise ValueError unless :func:`sinusoid_1d` can make frequencies of these."""
    if not is_traced():  # they may be symbolic; eager code and the modules' constructors checked
        if not (math.isfinite(base) and base > 1):
            raise ValueError(f"base must be finite and > 1, got {base}")
        check_positive("frequency_scale", frequency_scale)
