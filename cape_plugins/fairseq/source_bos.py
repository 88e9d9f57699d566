"""Begin each source sentence with BOS, so that it starts where the target does.

fairseq gives the decoder a first token (EOS) but the encoder none. The model inserts it, rather
than a task, because fairseq-generate and its like take the task from their command line, not from
the checkpoint.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def prepend_bos(tokens: Tensor, *, bos: int, padding_idx: int) -> tuple[Tensor, Tensor]:
    """Insert BOS before the first real token of each row, unless it is BOS already.

    One column is added on the left in any case (a shape must not depend on the data), so token j
    is found at j + 1 afterwards; a row that begins with BOS gets padding there.

    Args:
        tokens: (B, N) token numbers, N ≥ 1, padded on either side.
        bos: the number of BOS.
        padding_idx: the number of the padding token.

    Returns:
        (B, N + 1) tokens, and a (B, N + 1) mask of the inserted ones.
    """
    first = tokens.ne(padding_idx).int().argmax(dim=1, keepdim=True)
    missing = tokens.gather(1, first).ne(bos)
    # after the shift by one, index `first` is the last one before the first real token
    inserted = torch.zeros_like(F.pad(tokens, (1, 0)), dtype=torch.bool)
    inserted = inserted.scatter(1, first, missing)
    tokens = F.pad(tokens, (1, 0), value=padding_idx).masked_fill(inserted, bos)
    return tokens, inserted
