"""Accuracy with positions re-scaled in testing, or with logits averaged over sizes: an evaluation.

    python studies/data/score_images.py --checkpoint run/last.pth.tar --data images/test \\
        --resolutions 160 384 --extents 1 ratio sqrt --csv scores.csv --items items.csv

The paper's Table 6 re-scales positions to [-γ, γ]: γ is a number, ratio (R / side of training) or
sqrt (its root). It changes nothing in models without γ: abspos, nopos, timm's rotary models. Table
1 averages the logits of R - STEP, R and R + STEP (--step 32). The condition is the resolution, then
γ where --extents are given.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from cape_plugins.positions import Positions
from cape_studies.command import script
from cape_studies.evaluate.output import Score, write
from cape_studies.evaluate.timm.evaluate import by_image, check, first_five
from cape_studies.evaluate.timm.images import loader, open_folder
from cape_studies.evaluate.timm.loading import Loaded, load
from cape_studies.evaluate.timm.options import TimmOptions


def main(
    checkpoint: str,
    data: Path,
    csv: Path,
    items: Path,
    resolutions: tuple[int, ...],
    split: str = "",
    extents: tuple[str, ...] = (),
    step: int = 0,
    crop_pct: float | None = None,
    batch_size: int = 256,
    workers: int = 4,
    device: str = "cpu",
) -> None:
    """Test.

    Args:
        checkpoint: of timm's train.py.
        data: folder of class folders.
        csv: file to write, with condition, metric, value, items.
        items: file to write, with the score of each image.
        resolutions: sides of the test images in pixels.
        split: sub-folder of data.
        extents: γ and its rules; default: the model's own.
        step: pixels between the sizes whose logits are averaged; 0: one size.
        crop_pct: of cape-timm-eval.
        batch_size: images at once.
        workers: processes that load images.
        device: cpu or cuda.

    Raises:
        ValueError: see cape-timm-eval.
    """
    for one in extents:
        gamma(one, 1, 1)
    around = (-step, 0, step) if step else (0,)
    sides = sorted({side + of for side in resolutions for of in around})
    more: dict[str, Any] = {
        "resolutions": sides,
        "device": device,
        "workers": workers,
        "overwrite": True,
    }
    options = TimmOptions(checkpoint=[checkpoint], data=[str(data)], csv=csv, items=items, **more)
    loaded, folder = load(checkpoint, options, options.place), open_folder(data / split)
    check(loaded, [folder], options)

    def scores() -> Iterator[Score]:
        for side, rule in product(resolutions, extents or [""]):
            hits = right(loaded, folder, [side + of for of in around], rule, options)
            about = {"condition": f"{side} {rule}".strip()}
            for metric, each in by_image(folder, hits).items():
                yield Score.of(about, metric, "percent", each)

    write(options, scores())


def gamma(rule: str, side: int, trained: int) -> float:
    """γ by a rule of Table 6.

    Raises:
        ValueError: there is no such rule.
    """
    known = {"ratio": side / trained, "sqrt": math.sqrt(side / trained)}
    found = known.get(rule) or float(rule)
    if not 0 < found < math.inf:
        raise ValueError(f"--extents: γ must be above 0, got {rule}")
    return found


def right(
    loaded: Loaded, folder: Any, sides: Sequence[int], rule: str, options: TimmOptions
) -> torch.Tensor:
    """Which of the first five classes of each image is right, (images, 5)."""
    placed = ((one, getattr(one, "position", None)) for one in loaded.model.modules())
    modules = [one for one, at in placed if isinstance(at, Positions) and at.has_positions]
    each = []
    for side in sides:
        for module in modules if rule else ():
            module.extent = gamma(rule, side, loaded.train_size)
        batches = loader(folder, range(len(folder)), (side, side), loaded, options)
        found = [(loaded.logits(pixels).cpu(), of.cpu()) for pixels, of in batches]
        logits, targets = map(torch.cat, zip(*found, strict=True))
        each.append(logits)
    # the authors sum log-probabilities, which gives the same order of classes for an image
    return first_five(torch.stack(each).mean(dim=0), targets, f"{loaded.checkpoint} {sides}")


if __name__ == "__main__":
    script(main)
