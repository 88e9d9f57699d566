"""Attention that stays as sharp with more keys than in training: logits × log N / log N_train.

A softmax over more tokens is flatter, whatever the positions are. Chiang & Cholak 2022,
https://arxiv.org/abs/2202.12172, multiply its logits by log N; Scalable-Softmax (Nakanishi 2025,
https://arxiv.org/abs/2501.19399) does too. The paper of CAPE has none of it.

    >>> query = torch.randn(2, 6, 400, 64)      # (B, heads, queries, head_dim)
    >>> query = scale_queries(query, keys=400, mask=None, trained=197)
"""

from typing import Any

import torch
from torch import Tensor

HIDDEN = -1000.0  # a score this far below the others has no weight in any dtype


def check_logn(value: Any) -> None:
    """Raise ValueError unless N_train of an option is an integer ≥ 2, or 0 or None for off."""
    is_count = isinstance(value, int) and value > 1
    if isinstance(value, bool) or not (is_count or value in (None, 0)):
        raise ValueError(
            "attention_logn must be the number of tokens of a training sample, an integer ≥ 2, or "
            f"0 for off, got {value!r}"
        )


def scale_queries(query: Tensor, keys: int, mask: Tensor | None, trained: int) -> Tensor:
    """Queries × log N / log N_train, N the number of keys that each query sees.

    Args:
        query: (B, heads, queries, head_dim), returned in its dtype.
        keys: how many there are, padding included.
        mask: broadcastable to (B, heads, queries, keys): bool, True where a query sees a key, or
            added to the scores, then -1000 or less hides a key (hosts take -1e4, -1e9, the least
            number, -inf). None: all are seen.
        trained: N_train.
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
