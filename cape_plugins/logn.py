"""Attention that stays sharp with more keys than in training: logits × log N / log N_train.

A softmax over more tokens is flatter, whatever the positions are. Chiang & Cholak 2022,
https://arxiv.org/abs/2202.12172, multiply its logits by log N; Scalable-Softmax (Nakanishi 2025,
https://arxiv.org/abs/2501.19399) does too. The CAPE paper does not use it.

    >>> query = torch.randn(2, 6, 400, 64)      # (B, heads, queries, head_dim)
    >>> query = scale_queries(query, keys=400, mask=None, trained=197)
"""

from typing import Any

import torch
from torch import Tensor

HIDDEN = -1000.0  # a score this far below the others has no weight in any dtype


def check_logn(value: Any) -> None:
    """Raise ValueError unless ``attention_logn`` is an integer ≥ 2, or 0 or None for off."""
    is_count = isinstance(value, int) and value > 1
    if isinstance(value, bool) or not (is_count or value in (None, 0)):
        raise ValueError(
            "attention_logn must be the number of tokens of a training sample, an integer ≥ 2, or "
            f"0 for off, got {value!r}"
        )


def scale_queries(query: Tensor, keys: int, mask: Tensor | None, trained: int) -> Tensor:
    """Multiply each query by log N / log N_train, where N is the number of keys that it sees.

    Args:
        query: (B, heads, queries, head_dim); the result has its shape and dtype.
        keys: number of keys, padding included.
        mask: broadcastable to (B, heads, queries, keys). A bool mask is True where a query sees a
            key. A float mask is added to the scores, and -1000 or less hides a key: hosts use -1e4,
            -1e9, the dtype's smallest number or -inf. None: each query sees all keys.
        trained: N_train, the number of keys in training.
    """
    if mask is None:
        seen = torch.full([1], keys, device=query.device, dtype=torch.float32)
    else:
        visible = mask if mask.dtype == torch.bool else mask > HIDDEN
        seen = visible.expand(*visible.shape[:-1], keys).sum(dim=-1, keepdim=True).float()  # (…, 1)
    # a tensor's logarithm: PyTorch 2.5 cannot compile that of a number
    then = torch.full([1], trained, device=query.device, dtype=torch.float32)
    # at least 1: a query in padding may see nothing, and must not become NaN
    factor = seen.clamp(min=1).log() / then.log()
    return (query * factor).to(query.dtype)
