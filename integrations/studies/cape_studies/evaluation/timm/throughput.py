"""Images per second of a forward, by the protocol of the paper's figure 4."""

import torch
from torch.utils.benchmark import Timer

from cape_studies.evaluation.device import memory_errors
from cape_studies.evaluation.timm.loading import Loaded


def throughput(loaded: Loaded, size: int, max_batch: int | None, runs: int) -> tuple[int, float]:
    """Time forwards of random square images with the largest batch that fits.

    Args:
        loaded: the model.
        size: of the images in pixels.
        max_batch: tried first, then its halves. Default: 8192, on the CPU 8, where memory is no
            limit to rely on.
        runs: forwards during the timing, and as many before it; the authors' 30.

    Returns:
        the batch size, and images per second: batch · runs / time of all runs.

    Raises:
        ValueError: not even one image fits the device's memory.
    """
    batch = max_batch or (8 if loaded.device.type == "cpu" else 8192)
    advice = "not even one image fits: give smaller images"
    with memory_errors(advice):
        while True:
            try:
                images = torch.randn(batch, 3, size, size, device=loaded.device)
                for _ in range(runs):
                    loaded.logits(images)
                break
            except torch.OutOfMemoryError:
                if batch == 1:
                    raise
                batch, images = batch // 2, None
                torch.cuda.empty_cache()
        threads = torch.get_num_threads()  # Timer would take one
        timer = Timer(
            "logits(images)", globals=dict(logits=loaded.logits, images=images), num_threads=threads
        )
        return batch, batch / timer.timeit(runs).mean  # waits for the GPU
