"""content + sinusoids of positions in one pass, without ever holding the (B, N, D) embedding.

The content is read once and the sum written once; backward is the identity and saves nothing. On
the CPU a compiled function (torch in cache-sized chunks where there was no compiler), on CUDA a
Triton kernel. The plain path, :func:`cape_plugins.sinusoid_1d` and an addition, is the reference;
it serves TorchScript, tracing, ONNX, torch.func (vmap, grad, …), forward-mode derivatives, other
devices, float64 content, positions that want gradients, and everything with
``CAPE_PLUGINS_FUSED=0`` (read when this module is imported).
"""

import os

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cape_plugins.fused import ops
from cape_plugins.positions import check_positions, in_transform
from cape_plugins.sinusoid import check_dim, check_frequencies, embed_line, embed_plane

ENABLED = os.environ.get("CAPE_PLUGINS_FUSED", "1") != "0"


def add_sinusoid(
    content: Tensor, positions: Tensor, *, base: float = 10_000.0, frequency_scale: float = 1.0
) -> Tensor:
    """Add the sinusoidal embedding of positions to content.

    Args:
        content: (B, N, D), any float dtype, D even.
        positions: (B, N) on a line, or (1, N) to share them; (B, N, 2), (1, N, 2) or (N, 2) on a
            plane. Float32, or float64 whose precision is used; NaN marks padding, to which
            nothing is added.
        base: of the frequencies on a line, see :func:`cape_plugins.sinusoid_1d`.
        frequency_scale: multiplies all frequencies.

    Returns:
        (B, N, D) in content's dtype, rounded once.

    Raises:
        ValueError: shapes that do not fit, D is odd, or positions are infinite (on CUDA see
            :func:`cape_plugins.positions.check_values`).
    """
    positions = _check(content, positions)
    check_frequencies(base, frequency_scale)
    return add_unchecked(content, positions, base, frequency_scale)


def add_unchecked(
    content: Tensor, positions: Tensor, base: float, frequency_scale: float
) -> Tensor:
    """:func:`add_sinusoid` without its checks; TorchScript compiles it.

    Args:
        content: (B, N, D).
        positions: (B, N, axes) or (1, N, axes), float32 or float64.
        base: of the frequencies where axes is 1.
        frequency_scale: multiplies all frequencies.
    """
    if torch.jit.is_scripting():
        return _plain(content, positions, base, frequency_scale)
    elif takes_op(content, positions):
        return ops.add_sinusoid(content, positions, base, frequency_scale)
    else:
        return _plain(content, positions, base, frequency_scale)


def takes_op(content: Tensor, positions: Tensor) -> bool:
    """Whether the fused operator serves these tensors here; otherwise the plain path does."""
    if not ENABLED or torch.jit.is_tracing() or torch.onnx.is_in_onnx_export():
        return False
    if content.dtype == torch.float64 or positions.requires_grad:
        return False
    if not torch.compiler.is_compiling():
        # PyTorch's custom operators know neither torch.func nor forward-mode derivatives
        if in_transform(content) or in_transform(positions):
            return False
        if forward_ad._current_level >= 0:
            return False
    if content.device.type == "cuda":
        return ops.HAS_TRITON
    return content.device.type == "cpu"


def add_embedding(content: Tensor, embedding: Tensor) -> Tensor:
    """Their sum in content's dtype; TorchScript compiles it.

    Half-precision content is promoted to the embedding's float32: one rounding, at the end.
    """
    return (content + embedding).to(content.dtype)


def _plain(content: Tensor, positions: Tensor, base: float, frequency_scale: float) -> Tensor:
    dim = content.shape[2]
    # float64 content deserves phases in float64
    positions = positions.to(torch.promote_types(positions.dtype, content.dtype))
    if positions.shape[2] == 1:
        embedding = embed_line(positions[..., 0], dim, base, frequency_scale)
    else:
        embedding = embed_plane(positions, dim, frequency_scale)
    return add_embedding(content, embedding)


def _check(content: Tensor, positions: Tensor) -> Tensor:
    """Positions as (1 or B, N, axes) in float32 at least."""
    if content.ndim != 3 or not content.is_floating_point():
        raise ValueError(
            f"content must be (B, N, D) of a float dtype, got shape {tuple(content.shape)} of "
            f"{content.dtype}"
        )
    batch, length, dim = content.shape
    check_dim(dim)
    shape = tuple(positions.shape)
    if positions.ndim == 2:
        on_line = shape[1] == length and shape[0] in (1, batch)
        on_plane = shape == (length, 2)
        if on_line and on_plane:  # a batch of two pairs
            raise ValueError(
                f"positions of shape {shape} could be (B, N) on a line or (N, 2) on a plane: "
                "give (B, N, 1) or (1, N, 2)"
            )
        positions = positions[None] if on_plane else positions[..., None]
    given = positions.shape
    if (
        positions.ndim != 3
        or given[0] not in (1, batch)
        or given[1] != length
        or given[2] not in (1, 2)
    ):
        raise ValueError(
            f"content of shape {tuple(content.shape)} needs positions ({batch}, {length}) or "
            f"({batch}, {length}, 2), or 1 in place of {batch}, or ({length}, 2); got {shape}"
        )
    check_positions(positions)
    return positions.to(torch.promote_types(positions.dtype, torch.float32))
