"""Running a model over a test set and counting what it gets right, on one or several devices."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm import tqdm

from cape_plugins.timm.testset import ViewDataset, normalise


@dataclass(frozen=True)
class Runtime:
    """Where and how models run.

    Attributes:
        device: of this process.
        rank, world_size: of torchrun; each rank takes its share of the batches.
        amp_dtype: of autocast, None without.
        batch_size: images at once, at most.
        workers: processes that load images, per rank.
    """

    device: torch.device
    rank: int = 0
    world_size: int = 1
    amp_dtype: torch.dtype | None = None
    batch_size: int = 256
    workers: int = 0

    def autocast(self) -> Any:
        """The context that models run in."""
        if self.amp_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.amp_dtype)


@dataclass(frozen=True)
class Score:
    """What was counted.

    Attributes:
        images: number of images, each counted once.
        top1, top5: how many of them have their class first, among the first five.
    """

    images: int
    top1: int
    top5: int


def score(
    model: nn.Module,
    dataset: ViewDataset,
    runtime: Runtime,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    bins: Sequence[int] | None = None,
    before_view: Callable[[int], None] | None = None,
    title: str = "",
) -> list[Score]:
    """Count the right answers; the same on every rank, and for any number of ranks.

    Args:
        model: in eval mode, on the runtime's device.
        dataset: the images, the same on every rank.
        runtime: where to run.
        mean, std: per channel, of pixels in [0, 1].
        bins: a number of each image; scores are counted apart for each. Default: all in one.
        before_view: called with the view's number before the model sees it.
        title: of the progress bar.

    Returns:
        a Score for each bin from 0 to the largest.
    """
    bins = torch.as_tensor(bins if bins is not None else [0] * len(dataset), dtype=torch.long)
    count = torch.zeros(int(bins.max()) + 1, 3, dtype=torch.long, device=runtime.device)
    loader = dataset.loader(
        runtime.batch_size,
        rank=runtime.rank,
        world_size=runtime.world_size,
        workers=runtime.workers,
        pin_memory=runtime.device.type == "cuda",
    )
    hidden = True if runtime.rank else None  # None: shown on a terminal only
    with torch.inference_mode():
        for views, targets, numbers in tqdm(loader, desc=title, disable=hidden, leave=False):
            logits = _logits(model, views, runtime, mean, std, before_view)
            targets = targets.to(runtime.device)
            hits = logits.topk(min(5, logits.shape[1])).indices == targets[:, None]
            ones = torch.ones_like(targets)
            right = torch.stack([ones, hits[:, 0].long(), hits.any(dim=1).long()], dim=1)
            count.index_add_(0, bins[numbers].to(runtime.device), right)
    if runtime.world_size > 1:
        dist.all_reduce(count)
    return [Score(*row) for row in count.tolist()]


def _logits(
    model: nn.Module,
    views: Sequence[Tensor],
    runtime: Runtime,
    mean: Sequence[float],
    std: Sequence[float],
    before_view: Callable[[int], None] | None,
) -> Tensor:
    """Float32 (B, classes), averaged over the views.

    The authors' code sums log-probabilities instead. That ranks the classes alike, because the
    two differ by a constant per image.
    """
    total: Tensor | None = None
    for i, pixels in enumerate(views):
        if before_view is not None:
            before_view(i)
        images = normalise(pixels.to(runtime.device, non_blocking=True), mean, std)
        with runtime.autocast():
            logits = model(images)
        logits = (logits[0] if isinstance(logits, tuple) else logits).float()
        total = logits if total is None else total + logits
    assert total is not None
    return total / len(views)
