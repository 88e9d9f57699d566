"""Sinusoidal embeddings of positions: cosines and sines of position × frequency, in 1-D and 2-D.

Both lay the channels out as [cos | sin] halves, as the paper's listing does.
"""

import math

import torch
from torch import Tensor

from cape_plugins.positions import check_positions, check_positive


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
            positions are infinite (on CUDA see :func:`cape_plugins.positions.check_values`).
    """
    check_dim(dim)
    check_frequencies(base, frequency_scale)
    check_positions(positions)
    return embed_line(positions, dim, base, frequency_scale)


def embed_line(positions: Tensor, dim: int, base: float, frequency_scale: float) -> Tensor:
    """:func:`sinusoid_1d` without its checks; TorchScript compiles it."""
    positions, padding = _without_padding(positions)
    frequencies = frequencies_1d(dim, base, frequency_scale, positions.device)
    return _cos_sin(positions[..., None] * frequencies.to(positions.dtype), padding)


def sinusoid_2d(positions: Tensor, dim: int, *, frequency_scale: float = 1.0) -> Tensor:
    """Embed positions on a plane (section 3.1, equations 3–4).

    Phase j is π · frequency_scale · w_j · position, with
    w_j = 10^((j + 1) / (dim / 2)) · (cos j, sin j), j = 0 … dim/2 - 1, as in the paper's listing.

    Args:
        positions: (..., 2), along the height and along the width, in [-1, 1] for an image; NaN
            marks padding.
        dim: channels, even.
        frequency_scale: multiplies all frequencies; 1 in the paper, whose |w| run from 1 to 10.

    Returns:
        (..., dim) in the positions' dtype, float32 at least: [cos | sin], zeros at padding.

    Raises:
        ValueError: ``dim`` is odd or < 2, ``frequency_scale`` is out of range, positions do not
            end in 2, or are infinite (on CUDA see :func:`cape_plugins.positions.check_values`).
    """
    check_dim(dim)
    check_frequencies(10.0, frequency_scale)
    if positions.shape[-1] != 2:
        raise ValueError(f"2-D positions must be (..., 2), got shape {tuple(positions.shape)}")
    check_positions(positions)
    return embed_plane(positions, dim, frequency_scale)


def embed_plane(positions: Tensor, dim: int, frequency_scale: float) -> Tensor:
    """:func:`sinusoid_2d` without its checks; TorchScript compiles it."""
    positions, padding = _without_padding(positions)
    frequencies = frequencies_2d(dim, frequency_scale, positions.device)
    along_height, along_width = frequencies.to(positions.dtype).unbind()
    # elementwise rather than a matrix product, which autocast would run in half precision
    phase = positions[..., 0, None] * along_height + positions[..., 1, None] * along_width
    return _cos_sin(phase, padding.any(dim=-1))


def frequencies_1d(dim: int, base: float, frequency_scale: float, device: torch.device) -> Tensor:
    """Radians per unit of position of each phase, (dim / 2,); see :func:`sinusoid_1d`."""
    return frequency_scale * torch.pow(base, _arange(dim // 2, device) * (-2.0 / dim))


def frequencies_2d(dim: int, frequency_scale: float, device: torch.device) -> Tensor:
    """Radians per unit along the height and the width, (2, dim / 2); see :func:`sinusoid_2d`."""
    j = _arange(dim // 2, device)
    radius = frequency_scale * math.pi * torch.pow(10.0, (j + 1) / (dim // 2))
    return torch.stack([radius * torch.cos(j), radius * torch.sin(j)])


def check_dim(dim: int) -> None:
    """Raise ValueError unless ``dim`` channels split into cosines and sines."""
    if dim < 2 or dim % 2:
        raise ValueError(
            f"dim must be even and ≥ 2 (half cosines, half sines), got {dim}; "
            f"the nearest that works is {max(2, dim + 1)}"
        )


def check_frequencies(base: float, frequency_scale: float) -> None:
    """Raise ValueError unless :func:`sinusoid_1d` can make frequencies of them."""
    if torch.compiler.is_compiling():
        return  # they may be symbolic; eager code and the modules' constructors have checked
    if not (math.isfinite(base) and base > 1):
        raise ValueError(f"base must be finite and > 1, got {base}")
    check_positive("frequency_scale", frequency_scale)


def _arange(n: int, device: torch.device) -> Tensor:
    """0 … n-1 in float64 where the device has it, so that frequencies are rounded only once.

    Made anew in every call: a buffer would be cast by ``model.half()``.
    """
    wide = torch.float32 if device.type == "mps" else torch.float64
    return torch.arange(n, device=device, dtype=wide)


def _without_padding(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Positions in float32 at least with 0 for padding, whose gradient is then 0, and a mask."""
    positions = positions.to(torch.promote_types(positions.dtype, torch.float32))
    padding = positions.isnan()
    return positions.masked_fill(padding, 0.0), padding


def _cos_sin(phase: Tensor, padding: Tensor) -> Tensor:
    embedding = torch.cat([phase.cos(), phase.sin()], dim=-1)
    return embedding.masked_fill(padding[..., None], 0.0)
