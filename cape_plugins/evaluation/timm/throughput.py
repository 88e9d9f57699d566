"""Images per second of a forward, by the protocol of the paper's figure 4."""

import time

import torch
from torch import Tensor, nn

from cape_plugins.evaluation.device import Runtime, memory_errors, synchronise

#: Largest batch tried where none is given; on the CPU memory is no limit to rely on.
MAX_BATCH = {"cuda": 8192, "cpu": 8}


def throughput(
    model: nn.Module,
    size: int,
    runtime: Runtime,
    max_batch: int | None = None,
    *,
    warm_up: int = 30,
    runs: int = 30,
) -> tuple[int, float]:
    """Time forwards of random square images with the largest batch that fits.

    Args:
        model: in eval mode, on the runtime's device.
        size: of the images in pixels.
        runtime: the device, and autocast if any.
        max_batch: largest batch tried. Default: ``MAX_BATCH``.
        warm_up, runs: forwards before and during the timing; the authors' 30 and 30.

    Returns:
        the batch size, and images per second: batch · runs / time of all runs.

    Raises:
        ValueError: not even one image fits the device's memory.
    """
    kind = runtime.device.type
    most = max_batch or MAX_BATCH.get(kind, MAX_BATCH["cuda"])
    advice = "give a smaller --max-batch or smaller images"
    with torch.inference_mode(), runtime.autocast(), memory_errors(advice):
        batch = _largest_batch(model, size, runtime.device, most) if kind != "cpu" else most
        images = torch.randn(batch, 3, size, size, device=runtime.device)
        for _ in range(warm_up):
            model(images)
        seconds = _time(model, images, runs)
    return batch, batch * runs / seconds


def _largest_batch(model: nn.Module, size: int, device: torch.device, most: int) -> int:
    """Doubled from 1 until the memory is full or ``most`` is reached."""
    fits, batch = 0, 1
    while fits < most:
        try:
            model(torch.randn(batch, 3, size, size, device=device))
            synchronise(device)
        except torch.OutOfMemoryError:
            break
        finally:
            # what the allocator keeps of smaller batches would leave less for the next
            if device.type == "cuda":
                torch.cuda.empty_cache()
        fits, batch = batch, min(2 * batch, most)
    if fits == 0:
        raise ValueError(f"not even one image of {size} × {size} pixels fits the memory")
    return fits


def _time(model: nn.Module, images: Tensor, runs: int) -> float:
    """Seconds that the forwards take, measured by the GPU's own clock where there is one."""
    if images.device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(images.device)
        start.record()
        for _ in range(runs):
            model(images)
        end.record()
        torch.cuda.synchronize(images.device)
        return start.elapsed_time(end) / 1000
    synchronise(images.device)
    began = time.perf_counter()
    for _ in range(runs):
        model(images)
    synchronise(images.device)
    return time.perf_counter() - began
