"""Which images of a test set a model gets right, and how fast it is (the paper's figure 4)."""

from collections.abc import Sequence

import torch
from torch.utils.benchmark import Timer
from tqdm import tqdm

from cape_studies.evaluation.timm.images import Batches
from cape_studies.evaluation.timm.loading import Loaded


def right_answers(
    loaded: Loaded, views: Sequence[Batches], extents: Sequence[float], workers: int, title: str
) -> dict[int, tuple[int, int]]:
    """Number of each image that is fed → whether its class came first, and among five: 1 or 0.

    Args:
        loaded: the model.
        views: the same images in one way, or in several, whose logits are averaged.
        extents: the paper's γ of each way; none: as trained.
        workers: processes that load images of one way.
        title: of the progress bar.

    Raises:
        ValueError: NaN or infinite logits.
    """
    found: dict[int, tuple[int, int]] = {}
    broken = 0
    loaders = [one.loader(loaded.device, workers) for one in views]
    steps = zip(views[0].members, *loaders, strict=True)
    for members, *given in tqdm(steps, title, len(views[0]), leave=False, disable=None):
        each, targets = [], given[0][1]
        for i, (pixels, _) in enumerate(given):
            for module in loaded.extent_modules if extents else []:
                module.extent = extents[i]
            each.append(loaded.logits(pixels))
        # The authors' code sums log-probabilities instead. That ranks the classes alike,
        # because the two differ by a constant per image.
        logits = torch.stack(each).mean(dim=0)
        hits = logits.topk(min(5, logits.shape[1])).indices == targets[:, None]
        right = torch.stack([hits[:, 0], hits.any(dim=1)], dim=1).int().tolist()
        found |= dict(zip(members, map(tuple, right), strict=True))
        broken += int((~logits.isfinite()).any(dim=1).sum())
    if broken:
        raise ValueError(
            f"{title}: NaN or infinite logits for {broken} of {len(found)} images: leave out "
            "--amp; else the model itself is broken, its training failed"
        )
    return found


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
    """
    batch = max_batch or (8 if loaded.device.type == "cpu" else 8192)
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
    names = dict(logits=loaded.logits, images=images)
    threads = torch.get_num_threads()  # Timer would take one
    timer = Timer("logits(images)", globals=names, num_threads=threads)
    return batch, batch / timer.timeit(runs).mean  # waits for the GPU
