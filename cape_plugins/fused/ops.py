"""The operator ``cape_plugins::add_sinusoid``.

Registered with torch.library, so that torch.compile, torch.export, autograd and autocast see one
operator over tensors and plain scalars.
"""

import importlib.util

import torch
from torch import Tensor

from cape_plugins.fused import cpu

HAS_TRITON = importlib.util.find_spec("triton") is not None


@torch.library.custom_op(
    "cape_plugins::add_sinusoid",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor content, Tensor positions, float base, float frequency_scale) -> Tensor",
)
def add_sinusoid(content: Tensor, positions: Tensor, base: float, frequency_scale: float) -> Tensor:
    """content (B, N, D) + embedding of positions (1 or B, N, axes), in content's dtype."""
    return cpu.add_sinusoid(content, positions, base, frequency_scale)


@add_sinusoid.register_kernel("cuda")
def _(content: Tensor, positions: Tensor, base: float, frequency_scale: float) -> Tensor:
    from cape_plugins.fused import cuda  # imports Triton

    return cuda.add_sinusoid(content, positions, base, frequency_scale)


@add_sinusoid.register_fake
def _(content: Tensor, positions: Tensor, base: float, frequency_scale: float) -> Tensor:
    return torch.empty(content.shape, dtype=content.dtype, device=content.device)


# d(content + embedding) / d(content) is 1: the gradient passes through and nothing is saved
add_sinusoid.register_autograd(lambda _, gradient: (gradient, None, None, None))
