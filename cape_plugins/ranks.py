"""Random numbers for positions when several processes train together."""

import torch


def generator_of_rank(device: torch.device) -> torch.Generator | None:
    """A generator for this process; None (the device's own generator) if it is the only process.

    fairseq gives all ranks one seed before each update, and ESPnet before each epoch, so that all
    ranks would draw equal shifts. Here each rank adds its number to a seed drawn on the CPU. A
    resumed training repeats the draws, and nothing waits for a device. The host's CPU generator,
    which dropout and layer drop use too, gives up one number.
    """
    ranks = torch.distributed
    if not (ranks.is_available() and ranks.is_initialized()) or ranks.get_world_size() == 1:
        return None
    seed = int(torch.randint(2**31, ())) + ranks.get_rank()
    return torch.Generator(device).manual_seed(seed)
