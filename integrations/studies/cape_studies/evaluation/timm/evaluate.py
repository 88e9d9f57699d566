"""Accuracy (and speed) of image models over resolutions: ``cape-timm-eval``.

Paper: section 4.1, Tables 2 and 6, figure 4, appendix B.2. Any timm classifier is taken: ours, the
abspos ``vit_*``/``deit_*`` and rotary ViTs, all treated alike.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from timm.data import ImageDataset

from cape_plugins.timm.attention import use_logn
from cape_plugins.timm.positions import PatchPositions
from cape_studies.evaluation import command
from cape_studies.evaluation.device import open_device
from cape_studies.evaluation.output import Results, Score, check_absent
from cape_studies.evaluation.timm import size_bins
from cape_studies.evaluation.timm.images import Batches, open_folder, own_sizes
from cape_studies.evaluation.timm.loading import Loaded, load
from cape_studies.evaluation.timm.options import EXAMPLES, TimmOptions
from cape_studies.evaluation.timm.scoring import right_answers
from cape_studies.evaluation.timm.size_bins import LABELS, View
from cape_studies.evaluation.timm.throughput import throughput

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Condition:
    """How a model is tested.

    Attributes:
        images: of the test set; None for throughput alone.
        resolution: of square images, in pixels; None where each image has its own.
        sizes: that a square image is fed in: the resolution, with TTA two more.
        extent: the paper's γ: a number, ``ratio`` or ``sqrt``; empty for models without it.
        logn: N_train of the test, 0 for off; None: as trained.
        strategy: of size bins; else empty.
    """

    images: ImageDataset | None
    resolution: int | None
    sizes: list[int]
    extent: str
    logn: int | None
    strategy: str


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; ends with status 2 and one line on stderr if something is wrong."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    command.main("cape-timm-eval", TimmOptions, run, argv, examples=EXAMPLES)


def run(options: TimmOptions) -> None:
    """Evaluate, write and print.

    Raises:
        ValueError: something does not fit, found before any work and before a file is made; NaN or
            infinite logits; too little memory.
    """
    check_absent([options.csv_path, options.items], options.overwrite)
    splits = options.split or [None]
    folders = [open_folder(root, split) for root in options.data for split in splits]
    device = open_device(options.device)
    for given in options.checkpoint:
        check(load(given, options, device), folders, options)
    with Results(options.csv_path, options.items) as results:
        for given in options.checkpoint:
            for score in evaluate(load(given, options, device), folders, options):
                results.add(score)


def check(loaded: Loaded, folders: Sequence[ImageDataset], options: TimmOptions) -> None:
    """Try a model on an image of each size, before any work.

    Raises:
        ValueError: it does not take a size or log N, or has other classes than the images.
    """
    if options.extent and not extent_modules(loaded):
        _logger.warning("--extent has no effect on %s (%s)", loaded.checkpoint, loaded.name)
    for logn in options.attention_logn:
        use_logn(loaded.model, logn)
    sizes = {size for one in conditions(loaded, folders, options) for size in one.sizes}
    outputs = 0
    for size in sizes | ({2 * loaded.train_size} if options.strategies else set()):
        try:
            outputs = loaded.logits(torch.zeros(1, 3, size, size, device=loaded.device)).shape[1]
        except (RuntimeError, AssertionError, ValueError) as error:
            raise ValueError(
                f"{loaded.checkpoint} ({loaded.name}, trained at {loaded.train_size}) takes no "
                f"images of {size} × {size} pixels: {command.said(error)}"
            ) from error
    for folder in folders:
        classes = list(folder.reader.class_to_idx)
        if len(classes) != outputs:
            raise ValueError(
                f"{folder.reader.root} has images of {len(classes)} classes "
                f"({', '.join(classes[:5])} …), {loaded.checkpoint} knows {outputs}: give each "
                "class its folder, with an image in it"
            )


def conditions(
    loaded: Loaded, folders: Sequence[ImageDataset], options: TimmOptions
) -> list[Condition]:
    """Every combination that is asked for; γ where the model has it."""
    extents = options.extent if options.extent and extent_modules(loaded) else [""]
    squares: Sequence[int | None] = options.resolutions or [loaded.train_size]
    sets: Sequence[ImageDataset | None] = folders or [None]
    steps = (-options.tta_step, 0, options.tta_step) if options.tta else (0,)
    return [
        Condition(folder, size, [size + step for step in steps if size], extent, logn, strategy)
        for folder in sets
        for strategy in options.strategies or [""]
        for size in (squares if strategy in ("", "fixed") else [None])
        for extent in extents
        for logn in options.logns
    ]


def extent_modules(loaded: Loaded) -> list[PatchPositions]:
    """The parts of a model that have the paper's γ; none in abspos, nopos and timm's rotary."""
    found = [one for one in loaded.model.modules() if isinstance(one, PatchPositions)]
    return [one for one in found if one.settings.takes("extent")]


def gamma(rule: str, size: int, train_size: int) -> float:
    """γ by Table 6's rules: ``ratio`` is size / train_size, ``sqrt`` its root; or a number."""
    ratio = size / train_size
    return {"ratio": ratio, "sqrt": math.sqrt(ratio)}.get(rule) or float(rule)


def evaluate(
    loaded: Loaded, folders: Sequence[ImageDataset], options: TimmOptions
) -> Iterator[Score]:
    """The scores of one model under all conditions; see :func:`run`."""
    modules = extent_modules(loaded)
    speed: dict[int, tuple[int, float]] = {}
    for one in conditions(loaded, folders, options):
        if one.logn is not None:
            use_logn(loaded.model, one.logn)
        about: dict[str, object] = {
            "model": loaded.name,
            "checkpoint": loaded.checkpoint,
            "dataset": one.images.reader.root if one.images else "",
            "split": Path(one.images.reader.root).name if one.images else "",
            "resolution": one.resolution,
            "extent": one.extent or (f"{modules[0].extent:g}" if modules else ""),
            "logn": one.logn,
            "tta": options.tta_step if options.tta else 0,
            "strategy": one.strategy,
            "bin": "",
            "crop_pct": loaded.config["crop_pct"],
            "interpolation": loaded.config["interpolation"],
            "precision": options.amp_dtype if options.amp else "float32",
        }
        if options.throughput and (size := one.resolution):
            if size not in speed:
                speed[size] = throughput(loaded, size, options.max_batch, options.runs)
            batch, value = speed[size]
            yield Score(about, "images_per_second", "number", value, batch)
        if one.images is not None:
            yield from accuracy(one, one.images, about, loaded, options)


def accuracy(
    one: Condition,
    folder: ImageDataset,
    about: dict[str, object],
    loaded: Loaded,
    options: TimmOptions,
) -> Iterator[Score]:
    """Top-1 and top-5 under a condition; with size bins of each bin, then of all together."""
    crop_pct = loaded.config["crop_pct"]
    views: list[list[View | None]] = [
        [View(size, size, crop_pct)] * len(folder) for size in one.sizes
    ]
    bins: list[int | None] = []
    if one.strategy:
        own = own_sizes(folder)
        bins = [size_bins.bin_of(*size) for size in own]
        settings = dict(crop_pct=crop_pct, resolution=one.resolution)
        views = [[size_bins.view_of(one.strategy, *size, **settings) for size in own]]

    def set_extent(view: int) -> None:
        for module in extent_modules(loaded) if one.extent else []:
            size = one.sizes[view] if one.sizes else loaded.train_size
            module.extent = gamma(one.extent, size, loaded.train_size)

    right = right_answers(
        loaded,
        [Batches(folder, each, loaded, options.batch_size) for each in views],
        options.workers,
        before_view=set_extent,
        title=f"{loaded.checkpoint} {one.strategy} {one.resolution or ''}".strip(),
    )
    names, numbers = folder.filenames(), sorted(right)
    groups = {label: [i for i in numbers if bins[i] == n] for n, label in enumerate(LABELS) if bins}
    groups["all" if bins else ""] = numbers
    if not numbers:
        raise ValueError(f"{folder.reader.root} has no image that --size-bins {one.strategy} feeds")
    for label, members in groups.items():
        for which, metric in enumerate(("top1", "top5")):
            if members:
                items = [(names[i], right[i][which], 1) for i in members]
                yield Score.of({**about, "bin": label}, metric, "percent", items)
