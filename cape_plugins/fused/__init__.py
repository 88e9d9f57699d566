"""content + embedding(positions) in one pass, without ever holding the (B, N, D) embedding.

The content is read once and the sum written once; backward is the identity and saves nothing. On
the CPU a small compiled kernel (or torch in cache-sized chunks), on CUDA a Triton kernel. The plain
path, :func:`cape_plugins.sinusoid_1d` and an addition, is the reference; it serves TorchScript,
tracing, ONNX, torch.func (vmap, grad, …), other devices, float64 content, positions that want
gradients, and everything with ``CAPE_PLUGINS_FUSED=0`` (read when this module is imported).
"""

import os

import torch
from torch import Tensor

from cape_plugins.augment import Augmentation, Draw, centre
from cape_plugins.fused import ops
from cape_plugins.positions import check_positions, in_transform
from cape_plugins.sinusoid import check_dim, check_frequencies, embed_line, embed_plane

ENABLED = os.environ.get("CAPE_PLUGINS_FUSED", "1") != "0"


def add_sinusoid(
    content: Tensor, positions: Tensor, *, base: float = 10_000.0, scale: float = 1.0
) -> Tensor:
    """Add the sinusoidal embedding of positions to content.

    Args:
        content: (B, N, D), any float dtype, D even.
        positions: (B, N) on a line, or (1, N) to share them; (B, N, 2), (1, N, 2) or (N, 2) on a
            plane. Float32, or float64 whose precision is used; NaN marks padding, to which
            nothing is added.
        base, scale: frequencies on a line, see :func:`cape_plugins.sinusoid_1d`.

    Returns:
        (B, N, D) in content's dtype, rounded once.

    Raises:
        ValueError: shapes that do not fit, D is odd, or positions are infinite (looked for on the
            CPU only).
    """
    positions = _check(content, positions)
    check_frequencies(base, scale)
    return _add_sinusoid(content, positions, base, scale)


def add_augmented_sinusoid(
    content: Tensor,
    positions: Tensor,
    augmentation: Augmentation,
    draw: Draw | None = None,
    *,
    generator: torch.Generator | None = None,
    base: float = 10_000.0,
    scale: float = 1.0,
) -> Tensor:
    """CAPE in training: augment the positions, then :func:`add_sinusoid`.

    On CUDA the random numbers are drawn inside the kernel (Philox), from a seed that torch's
    generator gives; elsewhere they are torch's own.

    Args:
        content, positions, base, scale: as :func:`add_sinusoid`; (B, N, 1) is (B, N) too.
        augmentation: the settings.
        draw: Δ and λ of each sample. Default: drawn here.
        generator: source of randomness on content's device.

    Returns:
        (B, N, D) in content's dtype.

    Raises:
        ValueError: as :func:`add_sinusoid` and :meth:`cape_plugins.Augmentation.apply`.
    """
    positions = _check(content, positions)
    check_frequencies(base, scale)
    batch, axes = content.shape[0], positions.shape[2]
    if _op_draws(content) and takes_op(content, positions):
        if augmentation.mean_normalize:
            positions = centre(positions)
        if draw is not None:
            augmentation.check_draw(draw, batch, axes)
        seed = torch.randint(
            1 << 31, (1,), dtype=torch.int64, device=content.device, generator=generator
        )
        return ops.add_augmented_sinusoid(
            content,
            positions,
            seed,
            None if draw is None else draw.shift,
            None if draw is None else draw.scale,
            augmentation.max_global_shift,
            _local_shifts(augmentation, axes, content.device),
            augmentation.max_global_scale,
            base,
            scale,
        )
    if draw is None:
        draw = augmentation.draw(batch, axes, device=content.device, generator=generator)
    positions = augmentation.apply(positions.expand(batch, -1, -1), draw, generator=generator)
    return _add_sinusoid(content, positions, base, scale)


def _op_draws(content: Tensor) -> bool:
    """Whether the operator draws the random numbers itself, or torch's operations before it."""
    return content.device.type == "cuda"


def _local_shifts(augmentation: Augmentation, axes: int, device: torch.device) -> Tensor:
    """(axes,) float32, made on the device: copied there it would be waited for."""
    shifts = [torch.full((1,), s, device=device) for s in augmentation.local_shifts(axes)]
    return torch.cat(shifts)


def takes_op(content: Tensor, positions: Tensor) -> bool:
    """Whether the fused operator serves these tensors here; otherwise the plain path does."""
    if not ENABLED or torch.jit.is_tracing() or torch.onnx.is_in_onnx_export():
        return False
    if content.dtype == torch.float64 or positions.requires_grad:
        return False
    if not torch.compiler.is_compiling() and (in_transform(content) or in_transform(positions)):
        return False  # torch.func cannot differentiate custom operators
    if content.device.type == "cuda":
        return ops.HAS_TRITON
    return content.device.type == "cpu"


def add_embedding(content: Tensor, embedding: Tensor) -> Tensor:
    """Their sum in content's dtype; TorchScript compiles it.

    Half-precision content is promoted to the embedding's float32: one rounding, at the end.
    """
    return (content + embedding).to(content.dtype)


def _add_sinusoid(content: Tensor, positions: Tensor, base: float, scale: float) -> Tensor:
    if not takes_op(content, positions):
        return _plain(content, positions, base, scale)
    return ops.add_sinusoid(content, positions, base, scale)


def _plain(content: Tensor, positions: Tensor, base: float, scale: float) -> Tensor:
    dim = content.shape[2]
    if positions.shape[2] == 1:
        embedding = embed_line(positions[..., 0], dim, base, scale)
    else:
        embedding = embed_plane(positions, dim)
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
