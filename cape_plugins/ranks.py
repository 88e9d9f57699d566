"""Random numbers for positions when several processes train together."""

import torch
from torch import Tensor

# Odd, so that each of the 2^24 numbers that torch.rand makes in float32 goes to one of its own.
_APART = 2 * 9973


def of_rank(draws: Tensor) -> Tensor:
    """Numbers uniform in [0, 1) as this process's own, uniform too; the first process keeps them.

    fairseq gives all ranks one seed before each update, ESPnet before each epoch, and transformers
    one to all. So all would draw equal shifts. Here each rank takes the part behind the point of
    the numbers times an odd factor of its own, as a linear congruential generator does: a seed
    repeats them, no generator is made, nothing waits for a device, and torch.compile takes it
    whole.
    """
    ranks = torch.distributed
    if not (ranks.is_available() and ranks.is_initialized()) or ranks.get_rank() == 0:
        return draws
    factor = 1 + _APART * ranks.get_rank()
    return torch.frac(draws.double() * factor).to(draws.dtype)  # float32 would lose their last bits
