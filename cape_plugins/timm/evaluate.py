"""Accuracy (and speed) of image models over resolutions: ``python -m cape_plugins.timm.evaluate``.

Paper: section 4.1, Tables 2 and 6, figure 4, appendix B.2. Any timm classifier is taken: ours, the
abspos ``vit_*``/``deit_*`` and rotary ViTs, all treated alike. The command line is in
:mod:`cape_plugins.timm.evaluate_options`.
"""

import argparse
import contextlib
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from timm.data import resolve_data_config
from timm.utils.distributed import init_distributed_device_so, world_info_from_env

from cape_plugins.plot import canvas, curves
from cape_plugins.results import CsvFile, check_absent
from cape_plugins.timm import abspos_table, loading, results, size_bins, testset
from cape_plugins.timm.evaluate_options import build_parser, check, sources
from cape_plugins.timm.loading import Loaded, Source
from cape_plugins.timm.results import Row
from cape_plugins.timm.scoring import Runtime, Score, score
from cape_plugins.timm.testset import Folder, View, ViewDataset

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Condition:
    """One way of testing a model.

    Attributes:
        resolution: of square images in pixels; None where each image has its own.
        extent: the paper's γ: ``ratio``, ``sqrt`` or a number; None leaves the model's own.
        strategy: of :mod:`cape_plugins.timm.size_bins`; None scores all images together.
    """

    resolution: int | None
    extent: str | None = None
    strategy: str | None = None


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; ends with status 2 and one line on stderr if something is wrong."""
    parser = build_parser()
    args = parser.parse_args(argv)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    is_first = world_info_from_env()[1] == 0
    try:
        check(args)
        run(args)
    except (ValueError, ImportError) as error:
        # an error in a process that loads images brings its traceback along
        message = str(error).strip().splitlines()[-1]
        parser.exit(2, f"{parser.prog}: error: {message}\n" if is_first else None)
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def run(args: argparse.Namespace) -> list[Row]:
    """Evaluate; the arguments have passed :func:`check`.

    Returns:
        the rows, the same on every rank. The first rank prints and writes them.

    Raises:
        ValueError: something does not fit, found before any work and before a file is made.
    """
    is_first = world_info_from_env()[1] == 0
    csv_path, markdown_path, figure_path = outputs(args)
    check_absent([csv_path, markdown_path], args.overwrite)
    if figure_path is not None:
        canvas.check(figure_path, args.overwrite)
    folders = [testset.open_folder(root, args.split) for root in args.data]
    given = sources(args)
    for source in given:
        check_source(source, folders, args)

    runtime = start(args)
    rows: list[Row] = []
    csv_file = CsvFile(
        csv_path if is_first else None, Row, "overwrite" if args.overwrite else "new"
    )
    with contextlib.closing(csv_file):
        for source in given:
            for row in evaluate(loading.load(source), folders, runtime, args):
                rows.append(row)
                csv_file.add(row)
                if is_first:
                    print(results.line(row), flush=True)
    if is_first:
        table = results.markdown(rows)
        print(f"\n{table}")
        if markdown_path is not None:
            markdown_path.write_text(table, encoding="utf-8")
        if figure_path is not None:
            curves.draw([csv_path], figure_path, against="throughput")
    return rows


def outputs(args: argparse.Namespace) -> tuple[Path | None, Path | None, Path | None]:
    """Where the CSV, the Markdown and the figure go."""
    csv_path = args.csv or (args.out and f"{args.out}.csv")
    markdown_path = args.markdown or (args.out and f"{args.out}.md")
    figure = args.figure or (f"{args.out}.png" if args.out and args.throughput else None)
    figure = figure if args.data else None
    return tuple(Path(p) if p else None for p in (csv_path, markdown_path, figure))


def check_source(source: Source, folders: Sequence[Folder], args: argparse.Namespace) -> None:
    """Load a model once, to find out before any work whether everything fits.

    Raises:
        ValueError: it cannot be loaded, does not take a resolution, or has other classes.
    """
    loaded = loading.load(source)
    for condition in conditions(loaded, args):
        for size in view_sizes(condition, args):
            loading.check_size(loaded, size)
    for folder in folders:
        try:
            _class_index(loaded, folder, args)
        except ValueError as error:
            raise ValueError(f"{folder.root} with {source.checkpoint}: {error}") from error
    if args.size_bins and not _takes_rectangles(loaded):
        raise ValueError(f"{loaded.name} takes one image size only: --size-bins needs all sizes")
    if (loaded.train_args.get("in_chans") or 3) != 3:
        raise ValueError(f"{source.checkpoint} takes images of other than 3 channels")


def start(args: argparse.Namespace) -> Runtime:
    """Join torchrun's other processes, if there are any."""
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: PyTorch finds no CUDA device here")
    try:
        place = init_distributed_device_so(device)
    except RuntimeError as error:
        raise ValueError(f"--device {device}: {error}") from error
    return Runtime(
        torch.device(place["device"]),
        place["global_rank"],
        place["world_size"],
        getattr(torch, args.amp_dtype) if args.amp else None,
        args.batch_size,
        args.workers,
    )


def conditions(loaded: Loaded, args: argparse.Namespace) -> list[Condition]:
    """Every combination that is asked for, in order; γ only where the model has it."""
    extents: list[str | None] = args.extent or [None]
    if not extent_modules(loaded):
        extents = [None]
    resolutions = args.resolutions or [loaded.train_size]
    if args.size_bins is None:
        return [Condition(r, extent) for r in resolutions for extent in extents]
    return [
        Condition(r, extent, strategy)
        for strategy in args.size_bins
        for r in (resolutions if strategy == "fixed" else [None])
        for extent in extents
    ]


def view_sizes(condition: Condition, args: argparse.Namespace) -> list[int]:
    """Sizes in pixels that a condition feeds, where they do not depend on the image."""
    if condition.resolution is None:
        return []
    if not args.tta:
        return [condition.resolution]
    return [condition.resolution + step for step in (-args.tta_step, 0, args.tta_step)]


def extent_modules(loaded: Loaded) -> list[Any]:
    """The parts of a model that have the paper's γ; none in abspos, rotary and nopos models."""
    return [
        module
        for module in loaded.model.modules()
        if hasattr(module, "extent") and getattr(module, "variant", "") != "nopos"
    ]


def gamma(rule: str, size: int | None, train_size: int) -> float:
    """γ by Table 6's rules: ``ratio`` is size / train_size, ``sqrt`` its root; or a number."""
    if rule not in ("ratio", "sqrt"):
        return float(rule)
    assert size is not None
    return size / train_size if rule == "ratio" else math.sqrt(size / train_size)


def evaluate(
    loaded: Loaded, folders: Sequence[Folder], runtime: Runtime, args: argparse.Namespace
) -> Iterator[Row]:
    """Test one model under all conditions."""
    if args.extent and not extent_modules(loaded) and runtime.rank == 0:
        _logger.warning("--extent has no effect on %s (%s)", loaded.checkpoint, loaded.name)
    loaded.model.to(runtime.device)
    if not args.abspos_antialias and abspos_table.has_table(loaded.model):
        abspos_table.without_antialias(loaded.model)
    speed: dict[int, tuple[int, float]] = {}
    if args.throughput:
        from cape_plugins.timm.throughput import throughput

        for size in args.resolutions or [loaded.train_size]:
            speed[size] = throughput(
                *(loaded.model, size, runtime, args.max_batch), warm_up=args.runs, runs=args.runs
            )
            if not folders:
                row = Row(loaded.name, loaded.checkpoint, resolution=size)
                row.batch_size, row.images_per_second = speed[size]
                yield row
    for folder in folders:
        index = _class_index(loaded, folder, args)
        for condition in conditions(loaded, args):
            for row in _score(loaded, folder, index, condition, runtime, args):
                if condition.resolution in speed:
                    row.batch_size, row.images_per_second = speed[condition.resolution]
                yield row


def _score(
    loaded: Loaded,
    folder: Folder,
    index: dict[str, int],
    condition: Condition,
    runtime: Runtime,
    args: argparse.Namespace,
) -> list[Row]:
    config = _data_config(loaded, args)
    patch = loading.patch_size(loaded.model) or (1, 1)
    sizes = view_sizes(condition, args)
    bins = None
    if condition.strategy is None:
        views = [tuple(View(size, size, config["crop_pct"], patch) for size in sizes)]
        views *= len(folder.paths)
    else:
        bins = [size_bins.bin_of(*size) for size in folder.sizes]
        views = size_bins.views_of(
            condition.strategy,
            folder.sizes,
            patch=patch,
            crop_pct=config["crop_pct"],
            resolution=condition.resolution,
        )
    gammas = [0.0] * len(sizes)
    if condition.extent is not None:
        train_size = args.train_size or loaded.train_size
        gammas = [gamma(condition.extent, size, train_size) for size in sizes or [None]]

    def set_extent(view: int) -> None:
        if condition.extent is not None:
            for module in extent_modules(loaded):
                module.extent = gammas[view]

    began = time.monotonic()
    scores = score(
        loaded.model,
        ViewDataset(folder, index, views, config["interpolation"]),
        runtime,
        mean=config["mean"],
        std=config["std"],
        bins=bins,
        before_view=set_extent,
        title=f"{loaded.checkpoint} {condition.strategy or ''} {condition.resolution or ''}",
    )
    row = Row(
        loaded.name,
        loaded.checkpoint,
        folder.root,
        condition.resolution,
        extent=condition.extent or "",
        gamma=gammas[0] if condition.extent is not None and len(gammas) == 1 else None,
        tta=int(args.tta),
        strategy=condition.strategy or "",
        seconds=time.monotonic() - began,
    )
    if condition.extent is None and (modules := extent_modules(loaded)):
        row.gamma = modules[0].extent
        row.extent = f"{row.gamma:g}"
    if bins is None:
        return [results.scored(row, scores[0])]
    total = Score(*(sum(values) for values in zip(*map(_counts, scores), strict=True)))
    named = [*zip(size_bins.LABELS, scores, strict=False), ("all", total)]
    return [results.scored(row, found, name) for name, found in named if found.images]


def _counts(found: Score) -> tuple[int, int, int]:
    return found.images, found.top1, found.top5


def _class_index(loaded: Loaded, folder: Folder, args: argparse.Namespace) -> dict[str, int]:
    class_map = testset.read_class_map(args.class_map, folder.root) if args.class_map else None
    return testset.class_index(
        folder.classes,
        loaded.num_classes,
        class_map=class_map,
        allow_missing=args.allow_missing_classes,
    )


def _data_config(loaded: Loaded, args: argparse.Namespace) -> dict[str, Any]:
    """timm's data config: the command line, else the training's arguments, else the model's."""
    wanted = {}
    for key in ("crop_pct", "interpolation", "mean", "std"):
        mine = getattr(args, key)
        wanted[key] = mine if mine is not None else loaded.train_args.get(key)
    return resolve_data_config(wanted, model=loaded.model)


def _takes_rectangles(loaded: Loaded) -> bool:
    try:
        loading.check_size(loaded, 2 * loaded.train_size)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    main()
