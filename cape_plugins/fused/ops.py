"""The operators ``cape_plugins::add_sinusoid`` and ``cape_plugins::add_augmented_sinusoid``.

Registered with torch.library, so that torch.compile, torch.export, autograd and autocast see one
operator over tensors and plain scalars.
"""

import importlib.util
from typing import Any

import torch
from torch import Tensor

from cape_plugins.augment import Augmentation, Draw
from cape_plugins.fused import cpu

HAS_TRITON = importlib.util.find_spec("triton") is not None


@torch.library.custom_op(
    "cape_plugins::add_sinusoid",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor content, Tensor positions, float base, float scale) -> Tensor",
)
def add_sinusoid(content: Tensor, positions: Tensor, base: float, scale: float) -> Tensor:
    """content (B, N, D) + embedding of positions (1 or B, N, axes), in content's dtype."""
    return cpu.add_sinusoid(content, positions, base, scale)


@add_sinusoid.register_kernel("cuda")
def _(*arguments: Any) -> Tensor:
    from cape_plugins.fused import cuda  # imports Triton

    return cuda.add_sinusoid(*arguments)


@torch.library.custom_op(
    "cape_plugins::add_augmented_sinusoid",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor content, Tensor positions, Tensor seed, Tensor? shift, Tensor? global_scale, "
    "float max_global_shift, Tensor max_local_shift, float max_global_scale, float base, "
    "float scale) -> Tensor",
)
def add_augmented_sinusoid(
    content: Tensor,
    positions: Tensor,
    seed: Tensor,
    shift: Tensor | None,
    global_scale: Tensor | None,
    max_global_shift: float,
    max_local_shift: Tensor,
    max_global_scale: float,
    base: float,
    scale: float,
) -> Tensor:
    """content + embedding of (positions + Δ + ε) · λ, drawn from the seed.

    Args:
        content: (B, N, D).
        positions: (1 or B, N, axes), centred if they shall be.
        seed: (1,) int64, on content's device; each device draws its own numbers from it.
        shift, global_scale: Δ (B, axes) and λ (B,); both or none. None: drawn too.
        max_global_shift, max_global_scale: as in Augmentation.
        max_local_shift: (axes,) float32. A tensor, because in images it depends on the size: a
            number would be a constant of the graph, and torch.compile make one for each size.
        base, scale: frequencies where axes is 1.
    """
    batch, _, axes = positions.expand(content.shape[0], -1, -1).shape
    generator = torch.Generator().manual_seed(int(seed))  # on the CPU: no device to wait for
    augmentation = Augmentation(
        max_global_shift, tuple(max_local_shift.tolist()), max_global_scale, mean_normalize=False
    )
    if shift is None or global_scale is None:
        draw = augmentation.draw(batch, axes, generator=generator)
    else:
        draw = Draw(shift, global_scale)
    positions = augmentation.apply(positions.expand(batch, -1, -1), draw, generator=generator)
    return cpu.add_sinusoid(content, positions, base, scale)


@add_augmented_sinusoid.register_kernel("cuda")
def _(*arguments: Any) -> Tensor:
    from cape_plugins.fused import cuda

    return cuda.add_augmented_sinusoid(*arguments)


@add_sinusoid.register_fake
@add_augmented_sinusoid.register_fake
def _fake(content: Tensor, *_: object) -> Tensor:
    return torch.empty(content.shape, dtype=content.dtype, device=content.device)


# d(content + embedding) / d(content) is 1: the gradient passes through and nothing is saved
add_sinusoid.register_autograd(lambda _, gradient: (gradient, *[None] * 3))
add_augmented_sinusoid.register_autograd(lambda _, gradient: (gradient, *[None] * 9))
