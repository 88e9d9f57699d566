"""Random numbers for positions when several processes train together."""

import torch
from torch import Tensor

# the part behind the point of the golden ratio: its multiples are spread evenly over [0, 1)
_GOLDEN = 0.6180339887498949


def of_rank(draws: Tensor) -> Tensor:
    """Numbers uniform in [0, 1) as this process's own, uniform too; the first process keeps them.

    fairseq gives all ranks one seed before each update, ESPnet before each epoch, and transformers
    one to all. So all would draw equal shifts. Here each rank moves the numbers round by its own
    step, as systematic sampling does: a seed repeats them, no generator is made, nothing waits for
    a device, and torch.compile takes it whole.
    """
    ranks = torch.distributed
    if not (ranks.is_available() and ranks.is_initialized()) or ranks.get_rank() == 0:
        return draws
    return torch.frac(draws + (ranks.get_rank() * _GOLDEN) % 1.0)
