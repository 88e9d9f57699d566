"""Elementwise functions in as few kernels and bytes as eager mode allows.

Mixed dtypes cost eager mode a copy: bfloat16 content + float32 embedding is written in float32 and
then cast. Operations that write into a tensor of another dtype (``out=``) leave that out, but have
no gradient. So each function here has two ways of the same result: ``out=``, with a gradient of its
own, and plain operations for everybody who needs to see inside (:func:`is_plain`): compilers, which
fuse them anyway, tracing, torch.func, fake tensors.
"""

from typing import Any

import torch
from torch import Tensor

from cape_plugins.checks import is_plain

# PyTorch's memory-efficient attention copies a bias whose rows begin at other multiples
# (aten/src/ATen/native/transformers/attention.cpp, preprocess_mask). It is the one that takes a
# bias in float32, with dropout, and before torch 2.11; from then on cuDNN may take it on an H100.
ROW = 8


def multiply(first: Tensor, second: Tensor, dtype: torch.dtype) -> Tensor:
    """The product, taken in the wider of both dtypes and rounded to ``dtype``."""
    if _writes_any_dtype(first, second) and not (first.requires_grad or second.requires_grad):
        shape = torch.broadcast_shapes(first.shape, second.shape)
        return torch.mul(first, second, out=torch.empty(shape, dtype=dtype, device=first.device))
    return (first * second).to(dtype)


def multiply_into_rows(first: Tensor, second: Tensor, dtype: torch.dtype) -> Tensor:
    """:func:`multiply`, where rows begin at multiples of :data:`ROW` elements in memory."""
    if _writes_any_dtype(first, second) and not (first.requires_grad or second.requires_grad):
        shape = torch.broadcast_shapes(first.shape, second.shape)
        wide = shape[-1] + -shape[-1] % ROW
        rows = torch.empty((*shape[:-1], wide), dtype=dtype, device=first.device)
        if wide > shape[-1]:
            rows[..., shape[-1] :] = 0  # a kernel may read whole rows
        return torch.mul(first, second, out=rows[..., : shape[-1]])
    return (first * second).to(dtype)


def add_where(content: Tensor, added: Tensor, present: Tensor) -> Tensor:
    """Content + what is added, where it is present, in content's dtype.

    Args:
        content: (B, N, dim), any float dtype.
        added: (1 or B, N, dim), float32 at least, finite.
        present: (1 or B, N, 1) bool; content stays as it is elsewhere.

    Returns:
        (B, N, dim): the sum is taken in the wider dtype and rounded once.
    """
    if _writes_any_dtype(content, added, present) and not added.requires_grad:
        return _AddWhere.apply(content, added, present)
    return (content + added * present).to(content.dtype)


class _AddWhere(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, content: Tensor, added: Tensor, present: Tensor) -> Tensor:
        return torch.addcmul(content, added, present, out=torch.empty_like(content))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad, None, None


def _writes_any_dtype(*tensors: Tensor) -> bool:
    """Whether ``out=`` may be of another dtype: eager mode, on the devices where that is known."""
    return tensors[0].device.type in ("cpu", "cuda") and is_plain(*tensors)
