"""Positions of tokens in padded batches, and the BOS with which a source begins.

Source and target start with a token (BOS, EOS) at 0; section 3.3 of the paper multiplies source
positions by α, so that equal positions are about equally far into both sentences.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from cape_plugins.places import counted


def positions_in_batch(
    tokens: Tensor, padding_idx: int, spacing: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Positions of tokens padded on either side, and the mask of their padding.

    Args:
        tokens: (B, N).
        padding_idx: index of padding.
        spacing: between neighbouring tokens; the first real token of each row sits at 0.

    Returns:
        Positions (B, N) in float32, NaN at padding; a mask, bool (B, 1, N), False at padding.
    """
    real = tokens.ne(padding_idx)
    index = counted(real).to(torch.float32)
    if spacing != 1.0:
        index = index * spacing
    return torch.where(real, index, math.nan), real[:, None]


def prepend_bos(tokens: Tensor, *, bos: int, padding_idx: int) -> tuple[Tensor, Tensor]:
    """Insert BOS before the first real token of each row, unless it is BOS already.

    The model inserts BOS, not the task: fairseq-generate takes the task from its command line, not
    from the checkpoint. One column is always added on the left, because a shape must not depend on
    the data. So token j moves to j + 1, and a row that begins with BOS already gets padding.

    Args:
        tokens: (B, N), N ≥ 1, padded on either side.
        bos: index of BOS.
        padding_idx: index of padding.

    Returns:
        Tokens (B, N + 1), and a bool tensor (B, N + 1), True at each inserted BOS.
    """
    first = tokens.ne(padding_idx).int().argmax(dim=1, keepdim=True)
    missing = tokens.gather(1, first).ne(bos)
    # after the shift by one, index `first` is the last one before the first real token
    inserted = torch.zeros_like(F.pad(tokens, (1, 0)), dtype=torch.bool)
    inserted = inserted.scatter(1, first, missing)
    tokens = F.pad(tokens, (1, 0), value=padding_idx).masked_fill(inserted, bos)
    return tokens, inserted
