"""Running a model over a test set and counting what it gets right, on one or several devices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm import tqdm

from cape_plugins.evaluation import device
from cape_plugins.evaluation.timm.testset import ViewDataset, check_normalisation, normalise


@dataclass(frozen=True)
class Runtime(device.Runtime):
    """Where and how models run.

    Attributes:
        rank, world_size: of torchrun; each rank takes its share of the batches.
        batch_size: images at once, at most.
        workers: processes that load images, per rank.
    """

    rank: int = 0
    world_size: int = 1
    batch_size: int = 256
    workers: int = 0


class Hits(NamedTuple):
    """Of each image whether it was seen, and has its class first, among five; (N,) bool."""

    images: Tensor
    top1: Tensor
    top5: Tensor

    def of(self, chosen: Tensor) -> "Hits":
        """Those of some images only."""
        return Hits(*(each & chosen for each in self))


def score(
    model: nn.Module,
    dataset: ViewDataset,
    runtime: Runtime,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    before_view: Callable[[int], None],
    title: str = "",
) -> Hits:
    """Find the right answers; the same on every rank, and for any number of ranks.

    Args:
        model: in eval mode, on the runtime's device.
        dataset: the images, the same on every rank.
        runtime: where to run.
        mean, std: per channel, of pixels in [0, 1].
        before_view: called with the view's number before the model sees it.
        title: of the progress bar.

    Returns:
        those of all images of the dataset.

    Raises:
        ValueError: NaN or infinite logits, a mean or std that is none, or too little memory.
    """
    check_normalisation(mean, std)
    # beside the three of Hits, whether the logits are no numbers
    found = torch.zeros(len(dataset), 4, dtype=torch.uint8, device=runtime.device)
    loader = dataset.loader(
        runtime.batch_size,
        rank=runtime.rank,
        world_size=runtime.world_size,
        workers=runtime.workers,
        pin_memory=runtime.device.type == "cuda",
    )

    def logits_of(i: int, pixels: Tensor) -> Tensor:
        before_view(i)
        images = normalise(pixels.to(runtime.device, non_blocking=True), mean, std)
        with runtime.autocast():
            out = model(images)
        return (out[0] if isinstance(out, tuple) else out).float()

    hidden = True if runtime.rank else None  # None: shown on a terminal only
    advice = "give a smaller --batch-size or smaller images"
    with torch.inference_mode(), device.memory_errors(advice):
        for views, targets, numbers in tqdm(loader, desc=title, disable=hidden, leave=False):
            # The authors' code sums log-probabilities instead. That ranks the classes alike,
            # because the two differ by a constant per image.
            logits = torch.stack([logits_of(*view) for view in enumerate(views)]).mean(dim=0)
            targets = targets.to(runtime.device)
            hits = logits.topk(min(5, logits.shape[1])).indices == targets[:, None]
            ones = torch.ones_like(targets)
            broken = ~logits.isfinite().all(dim=1)
            right = torch.stack([ones, hits[:, 0], hits.any(dim=1), broken], dim=1)
            found[numbers.to(runtime.device)] = right.to(found.dtype)
    if runtime.world_size > 1:
        dist.all_reduce(found)
    images, _, _, broken = found.long().sum(dim=0).tolist()
    if broken:
        raise ValueError(
            f"{title.strip()}: NaN or infinite logits for {broken} of {images} images: "
            "leave out --amp or give --amp-dtype bfloat16; else the model itself is broken"
        )
    return Hits(*found.cpu().bool().unbind(dim=1)[:3])
