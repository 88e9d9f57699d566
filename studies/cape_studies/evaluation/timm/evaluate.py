"""Accuracy of image models over resolutions, and how fast they are: ``cape-timm-eval``."""

import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from timm.data import ImageDataset
from torch.utils.benchmark import Timer
from tqdm import tqdm

from cape_plugins.timm.attention import use_logn
from cape_studies.evaluation.command import said
from cape_studies.evaluation.output import Score
from cape_studies.evaluation.timm import size_bins
from cape_studies.evaluation.timm.images import Batches, open_folder, own_sizes
from cape_studies.evaluation.timm.loading import Loaded, load
from cape_studies.evaluation.timm.options import TimmOptions
from cape_studies.evaluation.timm.size_bins import LABELS, View

OPTIONS = TimmOptions
_logger = logging.getLogger(__name__)


def run(options: TimmOptions) -> Iterator[Score]:
    """The scores of all models.

    Raises:
        ValueError: something does not fit, found before any work; NaN or infinite logits.
    """
    splits: Sequence[str | None] = options.split or [None]
    folders = [open_folder(root, split) for root in options.data for split in splits]
    place = options.place
    for given in options.checkpoint:
        check(load(given, options, place), folders, options)
    for given in options.checkpoint:
        yield from evaluate(load(given, options, place), folders, options)


def check(loaded: Loaded, folders: Sequence[ImageDataset], options: TimmOptions) -> None:
    """Try a model on an image of each size.

    Raises:
        ValueError: it does not take a size or log N, or has other classes than the images.
    """
    if options.extent and not loaded.extent_modules:
        _logger.warning("--extent has no effect on %s (%s)", loaded.checkpoint, loaded.name)
    for logn in options.attention_logn:
        use_logn(loaded.model, logn)
    sizes = {2 * loaded.train_size} if options.strategies else set()
    if not options.strategies or "fixed" in options.strategies:
        for square in options.resolutions or [loaded.train_size]:
            sizes |= {*views_of(square, options)}
    outputs = 0
    for size in sizes:
        try:
            outputs = loaded.logits(torch.zeros(1, 3, size, size, device=loaded.device)).shape[1]
        except (RuntimeError, AssertionError, ValueError) as error:
            raise ValueError(
                f"{loaded.checkpoint} ({loaded.name}, trained at {loaded.train_size}) takes no "
                f"images of {size} × {size} pixels: {said(error)}"
            ) from error
    for folder in folders:
        classes = list(folder.reader.class_to_idx)
        if len(classes) != outputs:
            raise ValueError(
                f"{folder.reader.root} has images of {len(classes)} classes "
                f"({', '.join(classes[:5])} …), {loaded.checkpoint} knows {outputs}: give each "
                "class its folder, with an image in it"
            )


def views_of(resolution: int, options: TimmOptions) -> list[int]:
    """The sizes in pixels that a square image is fed in: the resolution, with TTA two more."""
    steps = (-options.tta_step, 0, options.tta_step) if options.tta else (0,)
    return [resolution + step for step in steps]


def gamma(rule: float | str, size: int, train_size: int) -> float:
    """γ by Table 6's rules: ``ratio`` is size / train_size, ``sqrt`` its root; or a number."""
    ratio = size / train_size
    return {"ratio": ratio, "sqrt": math.sqrt(ratio)}.get(str(rule)) or float(rule)


def evaluate(
    loaded: Loaded, folders: Sequence[ImageDataset], options: TimmOptions
) -> Iterator[Score]:
    """The scores of one model under all conditions; see :func:`run`."""
    modules = loaded.extent_modules
    own = f"{modules[0].extent:g}" if modules else ""
    squares: Sequence[int | None] = options.resolutions or [loaded.train_size]
    conditions = (
        (folder, strategy, size, extent, logn)
        for folder in folders
        for strategy in options.strategies or [""]
        for size in (squares if strategy in ("", "fixed") else [None])  # or each image's own
        for extent in (modules and options.extent) or [None]
        for logn in options.logns
    )

    for folder, strategy, size, extent, logn in conditions:
        if logn is not None:
            use_logn(loaded.model, logn)
        root = folder.reader.root
        about: dict[str, object] = {
            "model": loaded.name,
            "checkpoint": loaded.checkpoint,
            "dataset": root,
            "split": Path(root).name,
            "resolution": size,
            "extent": f"{extent:g}" if isinstance(extent, float) else extent or own,
            "logn": logn,
            "tta": options.tta_step if options.tta else 0,
            "strategy": strategy,
            "bin": "",
            "crop_pct": loaded.config["crop_pct"],
            "interpolation": loaded.config["interpolation"],
            "precision": "float16" if options.amp else "float32",
        }
        if options.throughput and size:
            batch, value = throughput(loaded, size, options.max_batch, options.runs)
            yield Score(about, "images_per_second", "number", value, batch)
        yield from accuracy(loaded, folder, extent, about, options)


def accuracy(
    loaded: Loaded, folder: ImageDataset, extent: Any, about: Any, options: TimmOptions
) -> Iterator[Score]:
    """Top-1 and top-5 under a condition; with size bins of each bin, then of all together."""
    crop_pct, strategy, resolution = (about[key] for key in ("crop_pct", "strategy", "resolution"))
    sizes = views_of(resolution, options) if resolution else [loaded.train_size]
    views: list[list[View | None]] = [[View(size, size, crop_pct)] * len(folder) for size in sizes]
    bins: list[int | None] = []
    if strategy:
        own = own_sizes(folder)
        bins = [size_bins.bin_of(*size) for size in own]
        views = [[size_bins.view_of(strategy, *size, crop_pct, resolution) for size in own]]
    right = right_answers(
        loaded,
        [Batches(folder, each, loaded, options.batch_size) for each in views],
        [gamma(extent, size, loaded.train_size) for size in sizes] if extent else [],
        options.workers,
        f"{loaded.checkpoint} {strategy} {resolution or ''}".strip(),
    )
    names, numbers = folder.filenames(), sorted(right)
    if not numbers:
        raise ValueError(f"{folder.reader.root} has no image that --size-bins {strategy} feeds")
    groups = {label: [i for i in numbers if bins[i] == n] for n, label in enumerate(LABELS) if bins}
    groups["all" if bins else ""] = numbers
    for label, members in groups.items():
        for which, metric in enumerate(("top1", "top5") if members else ()):
            items = [(names[i], right[i][which], 1) for i in members]
            yield Score.of({**about, "bin": label}, metric, "percent", items)


def right_answers(
    loaded: Loaded, views: Sequence[Batches], extents: Sequence[float], workers: int, title: str
) -> dict[int, tuple[int, int]]:
    """Number of each image that is fed → whether its class came first, and among five: 1 or 0.

    ``views`` are the same images in one way, or in several, whose logits are averaged; ``extents``
    the paper's γ of each way, none: as trained.

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
        # the authors sum log-probabilities: a constant per image more, so the same ranks
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
    """The largest batch that fits of ``max_batch`` and its halves, and its images per second.

    They are random squares of ``size`` pixels, timed in ``runs`` forwards, after as many.
    """
    # on the CPU memory is no limit to rely on
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
