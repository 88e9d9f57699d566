"""Attention that stays as sharp with more keys than in training: logits × log N / log N_train.

A softmax over more tokens is flatter, whatever the positions are. Chiang & Cholak 2022,
https://arxiv.org/abs/2202.12172, multiply its logits by log N; Scalable-Softmax (Nakanishi 2025,
https://arxiv.org/abs/2501.19399) does too. The paper of CAPE has none of it.
"""

from typing import Any

import torch
from torch import Tensor


def check_logn(value: Any, name: str = "attention_logn") -> int:
    """What an option says: N_train, 0 for off.

    Raises:
        ValueError: neither an integer ≥ 2 nor 0 or None.
    """
    if value is None or (value == 0 and not isinstance(value, bool)):
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 2:
        raise ValueError(
            f"{name} must be the number of tokens of a training sample, an integer ≥ 2, or 0 for "
            f"off, got {value!r}"
        )
    return value


def scale_queries(query: Tensor, keys: int, mask: Tensor | None, trained: int) -> Tensor:
    """Queries × log N / log N_train, N the number of keys that each query sees.

    Args:
        query: (B, heads, queries, head_dim).
        keys: how many there are, padding included.
        mask: broadcastable to (B, heads, queries, keys): bool, True where a query sees a key, or
            added to the scores, then half of the least number or less hides a key. None: all
            are seen.
        trained: N_train.

    Returns:
        The queries in their dtype; the factor is float32.
    """
    if mask is None:
        seen = torch.full([1], keys, device=query.device, dtype=torch.float32)
    else:
        visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        seen = visible.expand(*visible.shape[:-1], keys).sum(dim=-1, keepdim=True).float()
    # a query that sees nothing, in padding, is not to become NaN
    # a tensor's logarithm: PyTorch 2.5 cannot compile that of a number
    then = torch.full([1], trained, device=query.device, dtype=torch.float32)
    factor = seen.clamp(min=1).log() / then.log()
    return (query * factor).to(query.dtype)
