"""Accuracy of image models over resolutions: ``cape-timm-eval``."""

import logging
import math
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import torch
from timm.data import ImageDataset
from tqdm import tqdm

from cape_studies.command import Diverged, said
from cape_studies.evaluate.output import Score
from cape_studies.evaluate.timm.images import loader, open_folder
from cape_studies.evaluate.timm.loading import Loaded, load
from cape_studies.evaluate.timm.options import TimmOptions

OPTIONS = TimmOptions
_logger = logging.getLogger(__name__)


def run(options: TimmOptions) -> Iterator[Score]:
    """The scores of all models.

    Raises:
        ValueError: something does not fit, which is found before any work; or logits are NaN or
            infinite.
    """
    splits: Sequence[str | None] = options.split or [None]
    folders = [open_folder(root, split) for root in options.data for split in splits]
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
    squares = options.resolutions or [loaded.train_size]
    outputs = 0
    for size in dict.fromkeys(size for square in squares for size in views_of(square, options)):
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
                "class a folder with an image"
            )


def views_of(resolution: int, options: TimmOptions) -> list[int]:
    """The sides in pixels at which an image is tested: the resolution, with TTA two more."""
    steps = (-options.tta_step, 0, options.tta_step) if options.tta else (0,)
    return [resolution + step for step in steps]


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
    conditions = product(
        folders,
        options.resolutions or [loaded.train_size],
        (modules and options.extent) or [None],
    )
    for folder, resolution, extent in conditions:
        root = folder.reader.root
        about: dict[str, object] = {
            "model": loaded.name,
            "checkpoint": loaded.checkpoint,
            "dataset": root,
            "split": Path(root).name,
            "resolution": resolution,
            "extent": f"{extent:g}" if isinstance(extent, float) else extent or own,
            "moved": options.moved,
            "tta": options.tta_step if options.tta else 0,
            "crop_pct": loaded.config["crop_pct"],
            "interpolation": loaded.config["interpolation"],
            "precision": "float16" if options.amp else "float32",
        }
        sizes = views_of(resolution, options)
        extents = [gamma(extent, size, loaded.train_size) for size in sizes] if extent else []
        right = right_answers(loaded, folder, sizes, extents, options)
        for metric, hits in zip(("top1", "top5"), right, strict=True):
            items = [(name, hit, 1) for name, hit in zip(folder.filenames(), hits, strict=True)]
            yield Score.of(about, metric, "percent", items)


def right_answers(
    loaded: Loaded,
    folder: ImageDataset,
    sizes: Sequence[int],
    extents: Sequence[float],
    options: TimmOptions,
) -> tuple[list[int], list[int]]:
    """For each image, whether its class came first, and whether it is among the first five.

    Args:
        loaded: the model.
        folder: of the images.
        sizes: sides in pixels; the logits of several are averaged.
        extents: the paper's γ at each size; empty: as trained.
        options: of the command.

    Returns:
        for each image 1 or 0; twice.

    Raises:
        ValueError: logits are NaN or infinite.
    """
    first: list[int] = []
    five: list[int] = []
    broken = 0
    title = f"{loaded.checkpoint} {sizes[len(sizes) // 2]}"
    loaders = [loader(folder, size, loaded, options) for size in sizes]
    steps = tqdm(zip(*loaders, strict=True), title, len(loaders[0]), leave=False, disable=None)
    for given in steps:
        each = []
        targets = given[0][1]
        for i, (pixels, _) in enumerate(given):
            for module in loaded.extent_modules if extents else []:
                module.extent = extents[i]
            each.append(loaded.logits(pixels))
        # the authors sum log-probabilities, which gives the same order of classes for an image
        logits = torch.stack(each).mean(dim=0)
        hits = logits.topk(min(5, logits.shape[1])).indices == targets[:, None]
        first += hits[:, 0].int().tolist()
        five += hits.any(dim=1).int().tolist()
        broken += int((~logits.isfinite()).any(dim=1).sum())
    if broken:
        raise Diverged(
            f"{title}: NaN or infinite logits for {broken} of {len(first)} images: leave out "
            "--amp. Without --amp it means that the training has failed"
        )
    return first, five
