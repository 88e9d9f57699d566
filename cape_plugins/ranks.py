"""Random numbers of positions where several processes train together."""

import torch


def generator_of_rank(device: torch.device) -> torch.Generator | None:
    """Random numbers of this process alone; None, the device's own, where there is but one.

    fairseq seeds all ranks alike before each update, from its number, and ESPnet before each epoch:
    they would all shift alike. Here each adds its rank to a seed drawn on the CPU, so that resuming
    draws the same, no device is waited for, and of the host's other random numbers (dropout, layer
    drop) one is taken.
    """
    ranks = torch.distributed
    if not (ranks.is_available() and ranks.is_initialized()) or ranks.get_world_size() == 1:
        return None
    seed = int(torch.randint(2**31, ())) + ranks.get_rank()
    return torch.Generator(device).manual_seed(seed)
