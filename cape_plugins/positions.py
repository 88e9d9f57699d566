"""Positions of tokens, audio frames and image patches.

A position is a float32 (or float64) number. NaN marks padding; it survives augmentation and its
embedding is zero.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def token_positions(
    lengths: Tensor | Sequence[int],
    max_length: int | None = None,
    *,
    spacing: float = 1.0,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Positions of tokens: token i of each sequence sits at ``i * spacing``.

    Args:
        lengths: (B,) integers, tokens per sequence, padding excluded.
        max_length: padded length N in tokens. Default: the longest sequence, which reads
            ``lengths.max()`` and so synchronises with the device; models should pass it.
        spacing: distance between neighbouring tokens. The paper scales the source of a
            translation by the ratio of target to source tokens (section 3.3).
        device: where the positions are made. Default: the device of ``lengths``.
        dtype: float64 is worth it for fractions that run far, such as an hour in seconds.

    Returns:
        (B, N) of the dtype, rounded once, NaN beyond each length.

    Raises:
        ValueError: ``lengths`` is not one-dimensional and integer, is negative or exceeds
            ``max_length`` (on CUDA see :func:`check_values`), or ``spacing`` is not finite and
            positive.
    """
    check_positive("spacing", spacing)
    lengths = torch.as_tensor(lengths, device=device)
    if lengths.numel() == 0:
        lengths = lengths.long()  # as_tensor([]) is a float
    if lengths.ndim != 1 or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ValueError(
            f"lengths must be a (B,) tensor of integers, got shape {tuple(lengths.shape)} "
            f"of {lengths.dtype}"
        )
    if max_length is None:
        max_length = int(lengths.max()) if lengths.numel() else 0
    check_values(
        lengths,
        lambda: (lengths >= 0) & (lengths <= max_length),
        f"lengths must lie in [0, max_length={max_length}]",
    )
    index = torch.arange(max_length, device=lengths.device)
    positions = (index.to(widest(index.device)) * float(spacing)).to(dtype)
    return torch.where(index < lengths[:, None], positions, math.nan)  # (B, N)


def frame_times(
    lengths: Tensor | Sequence[int],
    frame_shift: float,
    max_length: int | None = None,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Times of audio frames: frame i of each utterance sits at ``i * frame_shift`` seconds.

    Args:
        lengths: (B,) integers, frames per utterance, padding excluded.
        frame_shift: seconds between neighbouring frames.
        max_length: padded length N in frames; see :func:`token_positions`.
        device: where the times are made. Default: the device of ``lengths``.
        dtype: see :func:`token_positions`; float32 is off by up to 0.12 ms after an hour.

    Returns:
        (B, N) seconds of the dtype, NaN beyond each length.

    Raises:
        ValueError: as :func:`token_positions`, or ``frame_shift`` is not finite and positive.
    """
    check_positive("frame_shift", frame_shift, unit=" seconds")
    return token_positions(lengths, max_length, spacing=frame_shift, device=device, dtype=dtype)


def patch_grid(
    height: int,
    width: int,
    *,
    extent: float = 1.0,
    device: torch.device | str | None = None,
) -> Tensor:
    """Centres of image patches; each axis runs on its own from ``-extent`` to ``extent``.

    Args:
        height, width: grid size in patches.
        extent: the paper's γ (Table 6); 1 in training.
        device: where the grid is made.

    Returns:
        (height · width, 2) float32, row-major; column 0 runs along the height, column 1 along the
        width. An axis of one patch sits at 0.

    Raises:
        ValueError: a size below 1, or ``extent`` is not finite and positive.
    """
    check_positive("extent", extent)
    if height < 1 or width < 1:
        raise ValueError(f"a patch grid needs at least 1 × 1 patches, got {height} × {width}")
    return grid_positions(height, width, extent, torch.device("cpu" if device is None else device))


def grid_positions(height: int, width: int, extent: float, device: torch.device) -> Tensor:
    """:func:`patch_grid` without its checks; TorchScript compiles it."""
    rows = _axis(height, extent, device)[:, None].expand(height, width)
    columns = _axis(width, extent, device)[None, :].expand(height, width)
    return torch.stack([rows, columns], dim=-1).reshape(height * width, 2)


# at most eight: an image model sees one size or few after another
@functools.lru_cache(maxsize=8)
def kept_grid(height: int, width: int, extent: float, device: torch.device) -> Tensor:
    """:func:`grid_positions`, kept for the next forward of eager code on the CPU."""
    with torch.inference_mode(False):
        return grid_positions(height, width, extent, device)


def _axis(patches: int, extent: float, device: torch.device) -> Tensor:
    # arange, not linspace: linspace freezes the number of patches under torch.export
    steps = torch.arange(1 - patches, patches, 2, device=device)
    return steps.to(torch.float32) / max(patches - 1, 1) * extent


def widest(device: torch.device) -> torch.dtype:
    """Float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def check_positive(name: str, value: float, *, unit: str = "") -> None:
    """Raise ValueError unless the value is finite and positive."""
    if not (is_number(value) and value > 0):
        raise ValueError(f"{name} must be finite and > 0{unit}, got {value!r}")


def is_number(value: Any) -> bool:
    """Whether a setting is a finite real number."""
    # not `float | int`: Dynamo of torch 2.5 cannot trace a union
    is_real = isinstance(value, (float, int)) and not isinstance(value, bool)
    return is_real and -math.inf < value < math.inf


def check_values(values: Tensor, ok: Callable[[], Tensor], rule: str) -> None:
    """Raise ValueError unless all values keep a rule.

    On CUDA nothing waits for the device: a broken rule ends the process there with "device-side
    assert triggered", at a later call as every error on a GPU; ``CUDA_LAUNCH_BLOCKING=1`` shows
    the call. Code that is compiled, traced or transformed by torch.func is not checked.

    Args:
        values: what is looked at.
        ok: makes a bool tensor in the values' shape, true where they keep the rule.
        rule: what is allowed, in words.
    """
    if not _is_eager(values):
        return
    if values.device.type == "cuda":
        torch._assert_async(ok().all(), rule)
    elif values.device.type == "cpu" and not bool((kept := ok()).all()):
        where = (~kept).nonzero()[0].tolist()
        raise ValueError(f"{rule}, got {values[tuple(where)].item():g} at index {where}")


def can_look_at(tensor: Tensor) -> bool:
    """Whether a check may read values: eager on the CPU, where no device must be waited for."""
    return _is_eager(tensor) and tensor.device.type == "cpu"


def _is_eager(tensor: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or in_transform(tensor):
        return False
    return type(tensor) is Tensor  # no FakeTensor, no proxy


def in_transform(tensor: Tensor) -> bool:
    """Whether torch.func (vmap, grad, …) has wrapped the tensor."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def check_positions(positions: Tensor) -> None:
    """Raise ValueError for infinite positions; see :func:`check_values`."""
    check_values(
        positions,
        lambda: ~positions.isinf(),
        "positions must be finite, or NaN for padding",
    )
