"""Which images of a test set a model gets right."""

from collections.abc import Callable, Sequence

import torch
from tqdm import tqdm

from cape_studies.evaluation.device import memory_errors
from cape_studies.evaluation.timm.images import Batches
from cape_studies.evaluation.timm.loading import Loaded


def right_answers(
    loaded: Loaded,
    views: Sequence[Batches],
    workers: int,
    *,
    before_view: Callable[[int], None],
    title: str = "",
) -> dict[int, tuple[int, int]]:
    """Number of each image that is fed → whether its class came first, and among five: 1 or 0.

    Args:
        loaded: the model.
        views: the same images in one way, or in several, whose logits are averaged.
        workers: processes that load images of one way.
        before_view: called with the way's number before the model sees it.
        title: of the progress bar.

    Raises:
        ValueError: NaN or infinite logits, or too little memory.
    """
    found: dict[int, tuple[int, int]] = {}
    broken = 0
    loaders = [one.loader(loaded.device, workers) for one in views]
    steps = zip(views[0].members, *loaders, strict=True)
    with memory_errors("give a smaller --batch-size or smaller images"):
        for members, *given in tqdm(steps, title, len(views[0]), leave=False, disable=None):
            each, targets = [], given[0][1]
            for i, (pixels, _) in enumerate(given):
                before_view(i)
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
            f"{title}: NaN or infinite logits for {broken} of {len(found)} images: leave out --amp "
            "or give --amp-dtype bfloat16; else the model itself is broken, its training failed"
        )
    return found
