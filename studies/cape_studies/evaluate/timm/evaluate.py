"""Accuracy and speed of image models over resolutions: ``cape-timm-eval``."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch
from timm.data import ImageDataset
from tqdm import tqdm

from cape_studies.command import said
from cape_studies.evaluate.output import Score, in_bins
from cape_studies.evaluate.timm.images import loader, open_folder, sizes
from cape_studies.evaluate.timm.loading import Loaded, load
from cape_studies.evaluate.timm.options import RUNS, WARM_UP, TimmOptions

OPTIONS = TimmOptions
_logger = logging.getLogger(__name__)

Shape = tuple[int, int]  # height and width in pixels


def run(options: TimmOptions) -> Iterator[Score]:
    """The scores of all models.

    Raises:
        ValueError: something does not fit, which is found before any work; or logits are NaN or
            infinite.
    """
    roots = [Path(root, split) for root in options.data for split in options.split or [""]]
    folders = [open_folder(root) for root in roots]
    place = options.place
    models = [load(given, options, place) for given in options.checkpoint]
    for loaded in models:
        check(loaded, folders, options)
    for loaded in models:
        yield from evaluate(loaded, folders, options)


def check(loaded: Loaded, folders: Sequence[ImageDataset], options: TimmOptions) -> None:
    """Run a model on an empty image of each size.

    Raises:
        ValueError: the model does not take a size, or has other classes than the images.
    """
    if options.extent and not loaded.extent_modules:
        _logger.warning("--extent has no effect on %s (%s)", loaded.checkpoint, loaded.name)
    sides = [one for one in options.resolutions if isinstance(one, int)] or [loaded.train_size]
    for size in dict.fromkeys(side + step for side in sides for step in steps(options)):
        try:
            loaded.logits(torch.zeros(1, 3, size, size, device=loaded.device))
        except (RuntimeError, AssertionError, ValueError) as error:
            raise ValueError(
                f"{loaded.checkpoint} (trained at {loaded.train_size}) takes no images of "
                f"{size} × {size} pixels: {said(error)}"
            ) from error
    for folder in folders:
        classes = folder.reader.class_to_idx
        if len(classes) != loaded.model.num_classes:
            raise ValueError(
                f"{folder.reader.root} has images of {len(classes)} classes "
                f"({', '.join([*classes][:5])} …), {loaded.checkpoint} knows "
                f"{loaded.model.num_classes}: give each class a folder with an image"
            )


def steps(options: TimmOptions) -> tuple[int, ...]:
    """What is added to a resolution: nothing, with TTA also the step to both sides."""
    return (-options.tta, 0, options.tta) if options.tta else (0,)


def gamma(rule: float | str, size: int, train_size: int) -> float:
    """γ: a number, or by a rule of Table 6: ``ratio`` is size / train_size, ``sqrt`` its root."""
    ratio = size / train_size
    return {"ratio": ratio, "sqrt": math.sqrt(ratio)}.get(str(rule)) or float(rule)


def evaluate(
    loaded: Loaded, folders: Sequence[ImageDataset], options: TimmOptions
) -> Iterator[Score]:
    """The scores of one model under all conditions; see :func:`run`."""
    modules = loaded.extent_modules
    own = f"{modules[0].extent:g}" if modules else ""
    resolutions = options.resolutions or [loaded.train_size]
    sides = [one for one in resolutions if isinstance(one, int)] if options.throughput else []
    speeds = {side: throughput(loaded, side, options) for side in sides}
    conditions = product(folders, resolutions, (modules and options.extent) or [None])
    for folder, resolution, extent in conditions:
        root = folder.reader.root
        about: dict[str, object] = {
            "model": loaded.name,
            "checkpoint": loaded.checkpoint,
            "dataset": root,
            "split": Path(root).name,
            "resolution": resolution,
            "bin": "all",
            "extent": f"{extent:g}" if isinstance(extent, float) else extent or own,
            "moved": options.moved,
            "tta": options.tta or 0,
            "crop_pct": loaded.config["crop_pct"],
            "interpolation": loaded.config["interpolation"],
            "precision": "float16" if options.amp else "float32",
        }
        counted = right_answers(loaded, folder, resolution, extent, options)
        shorter = [min(one) for one in sizes(folder)] if options.bins else [1] * len(folder)
        yield from in_bins(about, counted, shorter, options.bins, step=1)
        if isinstance(resolution, int) and (speed := speeds.get(resolution)):
            yield Score(about, "throughput", "number", speed, options.batch_size)


def throughput(loaded: Loaded, resolution: int, options: TimmOptions) -> float:
    """Images per second of the forward, of a batch that is on the device; with TTA of all sizes.

    On a CPU a second is one of a core's time, so that other work on the machine does not count.
    """
    clock = process_time if loaded.device.type == "cpu" else perf_counter

    def seconds(pixels: torch.Tensor) -> float:
        began = clock()
        loaded.logits(pixels).sum().item()  # waits for the device
        return clock() - began

    needed = 0.0
    for side in (resolution + step for step in steps(options)):
        pixels = torch.rand(options.batch_size, 3, side, side, device=loaded.device)
        needed += median([seconds(pixels) for _ in range(WARM_UP + RUNS)][WARM_UP:])
    return options.batch_size / needed


def shapes(
    folder: ImageDataset, resolution: int | str, patch: Shape
) -> Mapping[Shape, Sequence[int]]:
    """Shape in testing → the images that have it; ``original`` is their own, in whole patches."""
    if not isinstance(resolution, str):
        return {(resolution, resolution): range(len(folder))}
    found: dict[Shape, list[int]] = {}
    for i, (height, width) in enumerate(sizes(folder)):
        high, wide = patch
        shape = max(1, height // high) * high, max(1, width // wide) * wide
        found.setdefault(shape, []).append(i)
    return found


def right_answers(
    loaded: Loaded,
    folder: ImageDataset,
    resolution: int | str,
    extent: float | str | None,
    options: TimmOptions,
) -> dict[str, list[tuple[str, int, int]]]:
    """Whether the class of an image came first, and whether it is among the first five.

    Args:
        loaded: the model.
        folder: of the images.
        resolution: side in pixels, with TTA the one in the middle, whose logits are averaged with
            those of the others; or ``original``.
        extent: the paper's γ or its rule; None: as trained.
        options: of the command.

    Returns:
        ``top1`` and ``top5``: of each image its file, 1 or 0, and 1.

    Raises:
        ValueError: logits are NaN or infinite.
    """
    names = folder.filenames()
    hits = torch.zeros(len(names), 5, dtype=torch.int)
    title = f"{loaded.checkpoint} {resolution}"
    progress = tqdm(desc=title, total=len(names), leave=False, disable=None)
    for (height, width), indices in shapes(folder, resolution, loaded.patch).items():
        views = [(height + step, width + step) for step in steps(options)]
        loaders = [loader(folder, indices, view, loaded, options) for view in views]
        left = list(indices)
        for given in zip(*loaders, strict=True):
            targets = given[0][1]
            each = []
            for (side, _), (pixels, _) in zip(views, given, strict=True):
                if extent is not None:
                    for module in loaded.extent_modules:
                        module.extent = gamma(extent, side, loaded.train_size)
                each.append(loaded.logits(pixels))
            # the authors sum log-probabilities, which gives the same order of classes for an image
            logits = torch.stack(each).mean(dim=0)
            if not logits.isfinite().all():
                raise ValueError(
                    f"{title}: NaN or infinite logits: leave out --amp. Without --amp it means "
                    "that the training has failed"
                )
            found = logits.topk(min(5, logits.shape[1])).indices == targets[:, None]
            now, left = left[: len(targets)], left[len(targets) :]
            hits[now, : found.shape[1]] = found.int().cpu()
            progress.update(len(targets))
    progress.close()
    right = {"top1": hits[:, 0].tolist(), "top5": hits.any(dim=1).int().tolist()}
    return {k: [(n, hit, 1) for n, hit in zip(names, v, strict=True)] for k, v in right.items()}
