"""Positions of tokens, audio frames and image patches.

A position is a float32 or float64 number. NaN marks padding: it stays NaN in augmentation, and
its embedding is zero. Integers are accepted too and become float64.

    >>> token_positions([3, 1])                     # (2, 3) tokens
    tensor([[0., 1., 2.],
            [0., nan, nan]])
    >>> seconds = frame_times([300], frame_shift=0.01)  # (1, 300)
    >>> grid = patch_grid(14, 14)                   # (196, 2), each axis from -1 to 1
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cape_plugins.checks import check_count, check_positive, check_values, is_traced

Device = torch.device | str | None
Generator = torch.Generator | None


def token_positions(
    lengths: Tensor | Sequence[int],
    max_length: int | None = None,
    *,
    spacing: float = 1.0,
    device: Device = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Positions of tokens: token i of each sequence is at ``i * spacing``.

    Args:
        lengths: (B,) integers, tokens per sequence, padding excluded.
        max_length: padded length N in tokens. Default: the longest sequence; on a GPU that waits
            for the device, so models should pass it.
        spacing: distance between neighbouring tokens. The paper scales the source of a
            translation by the ratio of target to source tokens (section 3.3).
        device: device of the positions. Default: that of ``lengths``.
        dtype: dtype of the positions, float32 or float64; they are rounded once. After an hour,
            float32 seconds are off by up to 0.12 ms.

    Returns:
        (B, N), NaN beyond each length.

    Raises:
        ValueError: ``spacing`` is not finite and > 0; ``dtype`` is neither float32 nor float64;
            ``max_length`` is not an integer ≥ 0; ``lengths`` is not a one-dimensional tensor of
            integers; a length is negative or exceeds ``max_length`` (on CUDA:
            :func:`cape_plugins.checks.check_values`).
    """
    check_positive("spacing", spacing)
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    lengths = torch.as_tensor(lengths, device=device)
    if lengths.numel() == 0:
        lengths = lengths.long()  # as_tensor([]) is a float
    if lengths.ndim != 1 or lengths.is_floating_point() or lengths.dtype == torch.bool:
        got = f"shape {tuple(lengths.shape)} of {lengths.dtype}"
        raise ValueError(f"lengths must be a (B,) tensor of integers, got {got}")
    if max_length is None:
        max_length = int(lengths.max()) if lengths.numel() else 0
    check_count("max_length", max_length, least=0)
    rule = f"lengths must lie in [0, max_length={max_length}]"
    check_values(lengths, lambda: (lengths >= 0) & (lengths <= max_length), rule)
    index = torch.arange(max_length, device=lengths.device)
    positions = (index.to(widest(index.device)) * float(spacing)).to(dtype)
    return torch.where(index < lengths[:, None], positions, math.nan)  # (B, N)


def frame_times(
    lengths: Tensor | Sequence[int],
    frame_shift: float,
    max_length: int | None = None,
    *,
    device: Device = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Times of audio frames, (B, N) seconds: frame i of each utterance is at ``i * frame_shift``.

    ``frame_shift`` is the spacing of :func:`token_positions`; see there for the other arguments.

    Raises:
        ValueError: ``frame_shift`` is not finite and > 0, or as :func:`token_positions`.
    """
    check_positive("frame_shift", frame_shift, unit=" seconds")
    return token_positions(lengths, max_length, spacing=frame_shift, device=device, dtype=dtype)


def patch_grid(height: int, width: int, *, extent: float = 1.0, device: Device = None) -> Tensor:
    """Centres of image patches; each axis runs on its own from ``-extent`` to ``extent``.

    Args:
        height, width: grid size in patches.
        extent: the paper's γ (Table 6); 1 in training.
        device: where the grid is made. Default: the CPU.

    Returns:
        (height · width, 2) float32, row by row; column 0 runs along the height, column 1 along the
        width. An axis of one patch is at 0.

    Raises:
        ValueError: a size is not an integer ≥ 1, or ``extent`` is not finite and > 0.
    """
    check_count("height in patches", height)
    check_count("width in patches", width)
    if not is_traced():
        check_positive("extent", extent)
    axes = []
    for patches in (height, width):
        # arange, not linspace, which freezes the number of patches under torch.export
        steps = torch.arange(1 - patches, patches, 2, device=device)
        axes.append(steps.to(torch.float32) / max(patches - 1, 1) * extent)
    return torch.cartesian_prod(*axes)  # (H · W, 2)


def counted(real: Tensor) -> Tensor:
    """Which token of its row each is, padding left out: bool (B, N) → whole numbers (B, N).

    Whole, as CUDA's sums of floats vary; ONNX has none of bools. Before the first token it is -1.
    """
    return real.cumsum(dim=1, dtype=torch.int64) - 1


def with_axes(positions: Tensor) -> Tensor:
    """Positions (B, N[, axes]) as (B, N, axes), in the dtype of :func:`exact`."""
    wide = exact(positions)
    return wide if positions.ndim == 3 else wide[..., None]


def exact(positions: Tensor) -> Tensor:
    """Positions in a dtype that holds them exactly: float32 at least, float64 for integers.

    Integers may be seconds since 1970; float32 would round a whole minute of them to one position.
    """
    if positions.is_floating_point():
        return positions.to(at_least_float32(positions.dtype))
    return positions.to(widest(positions.device))


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Float64 for float64, else float32: the dtype of augmented positions and of embeddings."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def widest(device: torch.device) -> torch.dtype:
    """Float64 where the device has it, float32 on MPS."""
    return torch.float32 if device.type == "mps" else torch.float64
