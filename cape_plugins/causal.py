"""Where the tokens of a decoder are, and masks: which keys each of them sees.

>>> positions, keys = place(3, past=2, device="cpu")
>>> positions, keys
(tensor([[2., 3., 4.]]), tensor([[0., 1., 2., 3., 4.]]))
>>> earlier(3, 5, "cpu")[0].int()
tensor([[1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1]], dtype=torch.int32)
"""

import math

import torch
from torch import Tensor

from cape_plugins.attention import PositionalAttention
from cape_plugins.checks import is_plain, is_traced
from cape_plugins.places import Device, counted


def place(
    tokens: int, past: int = 0, mask: Tensor | None = None, device: Device = None
) -> tuple[Tensor, Tensor]:
    """Positions of new tokens, (1 or B, tokens), and of all with those before, (1 or B, keys).

    They are counted from 0 on. A mask of keys, bool (B, 1, past + tokens), hides padding: tokens
    are counted without it, and its positions are NaN.
    """
    count = past + tokens
    keys = torch.arange(count, device=device, dtype=torch.float32)[None]
    if mask is not None and mask.dtype == torch.bool and mask.ndim == 3 and mask.shape[1] == 1:
        real = mask[:, 0].expand(-1, count)
        keys = counted(real).to(torch.float32).masked_fill(~real, math.nan)
    return keys[:, past:], keys


def earlier(queries: int, keys: int, device: Device = None) -> Tensor | None:
    """The mask of a decoder, bool (1, queries, keys), whose queries are the last of the keys.

    None where one query sees all.
    """
    if queries == 1:
        return None
    last = torch.arange(keys - queries, keys, device=device)[:, None]
    return (torch.arange(keys, device=device) <= last)[None]


def reads_keys(attention: PositionalAttention) -> bool:
    """Whether a variant changes scores, or the mask, besides queries and keys.

    Then layers need the positions of keys that a cache holds, and a host's own attention is not
    enough. Nothing else does: a step makes rows of new keys alone.
    """
    if attention.changes_scores or attention.prepares:  # where it may read parameters
        return True
    device = next((one.device for one in attention.buffers()), torch.device("cpu"))
    with device:  # whatever the default is
        where = torch.zeros(1, 1, attention.sizes.axes)
        mask = torch.ones(1, 1, 1, 1, dtype=torch.bool)
        try:
            given = attention.prepare(where, where, mask, torch.float32)
        except RuntimeError:  # it reads a buffer's value, which meta does not know
            return True
    return given.bias is not None or (given.mask is not None and given.mask is not mask)


def check_mask(mask: Tensor | None, queries: Tensor, keys: Tensor, needs_others: str = "") -> None:
    """Raise ValueError unless a mask is of queries and keys, and means what it does.

    A float mask of zeros and ones would be added to the scores. A mask that hides later tokens goes
    not with positions that depend on them: ``needs_others`` says what to do about these. Both are
    read on the CPU alone, and not in compiled code.
    """
    if mask is None or is_traced():
        return
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(
            f"mask must be bool, True where a query sees a key, or of a float dtype, added to "
            f"the scores; got {mask.dtype}: call its .bool()"
        )
    sizes = queries.shape[1], keys.shape[1]
    fits = mask.ndim in (3, 4) and all(
        is_ in (1, wanted) for is_, wanted in zip(mask.shape[-2:], sizes, strict=True)
    )
    if not fits:
        add = " (write mask[None])" if mask.ndim == 2 else ""
        raise ValueError(
            f"mask must be (1 or B, 1 or {sizes[0]}, 1 or {sizes[1]}), of queries and of keys, "
            f"or (1 or B, 1 or heads, …); got {list(mask.shape)}{add}"
        )
    if mask.device.type != "cpu" or not is_plain(mask):
        return
    if mask.is_floating_point():
        ones = mask == 1
        if bool(ones.any()) and bool((ones | (mask == 0)).all()):
            raise ValueError(
                "a mask of zeros and ones would be added to the scores, and hide nothing: give it "
                "as bool, by mask.bool()"
            )
    elif needs_others and 1 < mask.shape[-1] == mask.shape[-2] and not bool(mask.triu(1).any()):
        raise ValueError(
            "the mask hides later tokens, and positions depend on them: give causal=True, or "
            f"{needs_others}"
        )
