"""Accuracy and speed of image models over resolutions: ``cape-timm-eval``."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch
import torch.nn.functional as F
from timm.data import ImageDataset
from tqdm import tqdm

from cape_studies.command import said
from cape_studies.evaluate.output import Score, in_bins
from cape_studies.evaluate.timm.images import loader, open_folder, sizes
from cape_studies.evaluate.timm.loading import Loaded, load
from cape_studies.evaluate.timm.options import RUNS, WARM_UP, TimmOptions

OPTIONS = TimmOptions
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
    for size in [one for one in options.resolutions if isinstance(one, int)] or [loaded.train_size]:
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


def evaluate(
    loaded: Loaded, folders: Sequence[ImageDataset], options: TimmOptions
) -> Iterator[Score]:
    """The scores of one model under all conditions; see :func:`run`."""
    resolutions = options.resolutions or [loaded.train_size]
    sides = [one for one in resolutions if isinstance(one, int)] if options.throughput else []
    speeds = {side: throughput(loaded, side, options) for side in sides}
    for folder, resolution in product(folders, resolutions):
        root = folder.reader.root
        about: dict[str, object] = {
            "model": loaded.name,
            "checkpoint": loaded.checkpoint,
            "dataset": root,
            "split": Path(root).name,
            "resolution": resolution,
            "bin": "all",
            "moved": options.moved,
            "crop_pct": loaded.config["crop_pct"],
            "interpolation": loaded.config["interpolation"],
            "precision": "float16" if options.amp else "float32",
        }
        counted = right_answers(loaded, folder, resolution, options)
        every = sizes(folder, options.upright) if options.bins else [(1, 1)] * len(folder)
        yield from in_bins(about, counted, [*map(min, every)], options.bins, step=1)
        if isinstance(resolution, int) and (speed := speeds.get(resolution)):
            yield Score(about, "throughput", "number", speed, options.batch_size)


def throughput(loaded: Loaded, resolution: int, options: TimmOptions) -> float:
    """Images per second of the forward, of a batch that is on the device.

    On a CPU a second is one of a core's time, so that other work on the machine does not count.
    """
    clock = process_time if loaded.device.type == "cpu" else perf_counter

    def seconds(pixels: torch.Tensor) -> float:
        began = clock()
        loaded.logits(pixels).sum().item()  # waits for the device
        return clock() - began

    pixels = torch.rand(options.batch_size, 3, resolution, resolution, device=loaded.device)
    return options.batch_size / median([seconds(pixels) for _ in range(WARM_UP + RUNS)][WARM_UP:])


def shapes(
    folder: ImageDataset, resolution: int | str, patch: Shape, upright: bool = False
) -> Mapping[Shape, Sequence[int]]:
    """Shape in testing → the images that have it; ``original`` is their own, in whole patches."""
    if not isinstance(resolution, str):
        return {(resolution, resolution): range(len(folder))}
    found: dict[Shape, list[int]] = {}
    for i, (height, width) in enumerate(sizes(folder, upright)):
        high, wide = patch
        shape = max(1, height // high) * high, max(1, width // wide) * wide
        found.setdefault(shape, []).append(i)
    return found


def right_answers(
    loaded: Loaded, folder: ImageDataset, resolution: int | str, options: TimmOptions
) -> dict[str, list[tuple[str, int, int]]]:
    """Whether the class of an image came first, and whether it is among the first five.

    Args:
        loaded: the model.
        folder: of the images.
        resolution: side in pixels; or ``original``.
        options: of the command.

    Returns:
        ``top1`` and ``top5``: of each image its file, 1 or 0, and 1.

    Raises:
        ValueError: logits are NaN or infinite.
    """
    hits = torch.zeros(len(folder), 5, dtype=torch.int)
    title = f"{loaded.checkpoint} {resolution}"
    progress = tqdm(desc=title, total=len(folder), leave=False, disable=None)
    every = shapes(folder, resolution, loaded.patch, options.upright)
    for shape, indices in every.items():
        left = list(indices)
        for pixels, targets in loader(folder, indices, shape, loaded, options):
            now, left = left[: len(targets)], left[len(targets) :]
            hits[now] = first_five(loaded.logits(pixels), targets, title)
            progress.update(len(targets))
    progress.close()
    return by_image(folder, hits)


def first_five(logits: torch.Tensor, targets: torch.Tensor, title: str) -> torch.Tensor:
    """Logits (B, classes), classes (B,) → which of the first five is right, (B, 5), 1 or 0.

    Raises:
        ValueError: logits are NaN or infinite.
    """
    if not logits.isfinite().all():
        raise ValueError(
            f"{title}: NaN or infinite logits: leave out --amp. Without --amp it means that the "
            "training has failed"
        )
    found = logits.topk(min(5, logits.shape[1])).indices == targets[:, None]
    return F.pad(found.int(), (0, 5 - found.shape[1])).cpu()


def by_image(folder: ImageDataset, hits: torch.Tensor) -> dict[str, list[tuple[str, int, int]]]:
    """What :func:`right_answers` gives, of all images' :func:`first_five`."""
    right = {"top1": hits[:, 0].tolist(), "top5": hits.any(dim=1).int().tolist()}
    names = folder.filenames()
    return {k: [(n, hit, 1) for n, hit in zip(names, v, strict=True)] for k, v in right.items()}
