"""Accuracy (and speed) of image models over resolutions: ``cape-timm-eval``.

Paper: section 4.1, Tables 2 and 6, figure 4, appendix B.2. Any timm classifier is taken: ours, the
abspos ``vit_*``/``deit_*`` and rotary ViTs, all treated alike.
"""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from timm.data import resolve_data_config
from timm.utils.distributed import init_distributed_device_so, world_info_from_env

from cape_plugins.evaluation import command, items
from cape_plugins.evaluation.device import default_device, open_device
from cape_plugins.evaluation.output import CsvFile, check_absent, matching, read_begun
from cape_plugins.evaluation.table import publish
from cape_plugins.evaluation.timm import (
    abspos_table,
    curves,
    loading,
    results,
    size_bins,
    testset,
    throughput,
)
from cape_plugins.evaluation.timm.conditions import row_of
from cape_plugins.evaluation.timm.curves import CurveOptions
from cape_plugins.evaluation.timm.loading import Loaded, Source
from cape_plugins.evaluation.timm.options import EXAMPLES, TimmOptions
from cape_plugins.evaluation.timm.results import Row, Scored
from cape_plugins.evaluation.timm.scoring import Runtime, score
from cape_plugins.evaluation.timm.testset import Folder, View, ViewDataset
from cape_plugins.plot import canvas
from cape_plugins.timm.attention import use_logn
from cape_plugins.variants import VARIANTS

_logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; ends with status 2 and one line on stderr if something is wrong."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    is_first = world_info_from_env()[1] == 0
    try:
        command.main("cape-timm-eval", TimmOptions, run, argv, examples=EXAMPLES, shown=is_first)
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def run(options: TimmOptions) -> list[Row]:
    """Evaluate.

    Returns:
        the rows, the same on every rank. The first rank prints and writes them.

    Raises:
        ValueError: something does not fit, found before any work and before a file is made.
    """
    is_first = world_info_from_env()[1] == 0
    csv_path, figure_path = options.csv_path, options.figure_path
    kept = options.overwrite or options.resume
    check_absent([csv_path], kept, ", or --resume to continue it")
    check_absent([options.markdown_path, options.items], kept)
    if figure_path is not None:
        canvas.check(figure_path, kept)
    known: list[Row] = []
    if options.resume:
        known = read_begun(csv_path, Row, "this cape-timm-eval", options.checkpoint)
    folders = [testset.open_folder(root, options.split) for root in options.data]
    if options.strategies:
        check_sizes(folders)
    for source in options.sources:
        check_source(source, folders, options)

    runtime = start(options)
    rows: list[Row] = []
    scored: list[Scored] = []
    csv_file = CsvFile(csv_path if is_first else None, Row, options.overwrite, options.resume)
    with csv_file:
        for source in options.sources:
            for row, of in evaluate(loading.load(source), folders, runtime, options, known):
                rows.append(row)
                scored += [] if of is None else [of]
                if row not in known:
                    csv_file.add(row)
                if is_first:
                    print(results.line(row), flush=True)
    if is_first:
        publish(results.markdown(rows), options.markdown_path)
        if options.items is not None:
            found = ((one.row, one.items()) for one in scored)
            items.write(options.items, results.TOLD, items.RATIO, found)
        if figure_path is not None and csv_path is not None:
            curves.draw(CurveOptions(csv=[csv_path], out=figure_path, against="throughput"))
    return rows


def check_source(source: Source, folders: Sequence[Folder], options: TimmOptions) -> None:
    """Load a model once, to find out before any work whether everything fits.

    Raises:
        ValueError: it cannot be loaded, does not take a resolution, or has other classes.
    """
    loaded = loading.load(source)
    try:
        for logn in options.attention_logn:
            use_logn(loaded.model, logn)
    except ValueError as error:
        raise ValueError(f"--attention-logn with {source.checkpoint}: {error}") from error
    for row in conditions(loaded, options):
        for size in view_sizes(row, options):
            loading.check_size(loaded, size)
    for folder in folders:
        try:
            _class_index(loaded, folder, options)
        except ValueError as error:
            raise ValueError(f"{folder.root} with {source.checkpoint}: {error}") from error
    if (options.strategies or options.seq_lens) and not loading.takes_rectangles(loaded):
        wanted = "--seq-lens" if options.seq_lens else "--size-bins"
        raise ValueError(f"{loaded.name} takes one image size only: {wanted} needs all sizes")
    if options.seq_lens and loading.patch_size(loaded.model) is None:
        raise ValueError(f"{loaded.name} has no patches of one size, which --seq-lens counts")
    if (loaded.train_args.get("in_chans") or 3) != 3:
        raise ValueError(f"{source.checkpoint} takes images of other than 3 channels")


def check_sizes(folders: Sequence[Folder]) -> None:
    """Say how many images are below the first size bin; raise ValueError if all of a folder are."""
    for folder in folders:
        left_out = sum(size_bins.bin_of(*size) is None for size in folder.sizes)
        text = (
            f"{folder.root}: {left_out} of {len(folder.paths)} images are smaller than "
            f"{size_bins.BINS[0][0]} pixels, where the size bins start"
        )
        if left_out == len(folder.paths):
            raise ValueError(f"{text}: leave out --size-bins")
        if left_out and world_info_from_env()[1] == 0:
            _logger.warning("%s: left out", text)


def start(options: TimmOptions) -> Runtime:
    """Join torchrun's other processes, if there are any."""
    device = options.device or default_device()
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: PyTorch finds no CUDA device here")
    try:
        place = init_distributed_device_so(device)
    except (RuntimeError, AttributeError) as error:  # the latter: npu without its plug-in
        raise ValueError(f"--device {device}: {error}") from error
    return Runtime(
        open_device(place["device"]),
        getattr(torch, options.amp_dtype) if options.amp else None,
        place["global_rank"],
        place["world_size"],
        options.batch_size,
        options.workers,
    )


def conditions(loaded: Loaded, options: TimmOptions) -> list[Row]:
    """A row for every combination that is asked for, to be filled; γ where the model has it."""
    row = _row(loaded, options)
    extents = options.extent if options.extent and extent_modules(loaded) else [""]
    resolutions: Sequence[int | None] = options.resolutions or [loaded.train_size]
    if options.seq_lens:
        resolutions = options.resolutions
    return [
        replace(row, seq_len=length, extent=extent, attention_logn=logn)
        for length in options.seq_lens
        for extent in extents
        for logn in options.logns
    ] + [
        replace(row, resolution=resolution, extent=extent, strategy=strategy, attention_logn=logn)
        for strategy in options.strategies or [""]
        for resolution in (resolutions if strategy in ("", "fixed") else [None])
        for extent in extents
        for logn in options.logns
    ]


def view_sizes(row: Row, options: TimmOptions) -> list[int]:
    """Sizes in pixels that a condition feeds, where they do not depend on the image."""
    if row.resolution is None:
        return []
    steps = (-options.tta_step, 0, options.tta_step) if options.tta else (0,)
    return [row.resolution + step for step in steps]


def extent_modules(loaded: Loaded) -> list[Any]:
    """The parts of a model that have the paper's γ; none in abspos, nopos and timm's rotary."""
    return [
        module
        for module in loaded.model.modules()
        if hasattr(module, "extent") and "extent" in VARIANTS[module.pos].options
    ]


def gamma(rule: str, size: int, train_size: int) -> float:
    """γ by Table 6's rules: ``ratio`` is size / train_size, ``sqrt`` its root; or a number."""
    ratio = size / train_size
    return {"ratio": ratio, "sqrt": math.sqrt(ratio)}.get(rule) or float(rule)


def evaluate(
    loaded: Loaded,
    folders: Sequence[Folder],
    runtime: Runtime,
    options: TimmOptions,
    known: Sequence[Row] = (),
) -> Iterator[tuple[Row, Scored | None]]:
    """Test one model under all conditions, but those that have their rows already.

    Returns:
        rows, each with the images that it counts, unless it was known or has throughput only.
    """
    if options.extent and not extent_modules(loaded) and runtime.rank == 0:
        _logger.warning("--extent has no effect on %s (%s)", loaded.checkpoint, loaded.name)
    loaded.model.to(runtime.device)
    if not options.abspos_antialias and abspos_table.has_table(loaded.model):
        abspos_table.without_antialias(loaded.model)
    speed: dict[int | None, tuple[int, float]] = {}
    if options.throughput:
        for size in options.resolutions or [loaded.train_size]:
            speed[size] = throughput.throughput(
                *(loaded.model, size, runtime, options.max_batch),
                warm_up=options.runs,
                runs=options.runs,
            )
            if not folders:
                row = replace(_row(loaded, options), resolution=size)
                row.batch_size, row.images_per_second = speed[size]
                yield row, None
    for folder in folders:
        index = _class_index(loaded, folder, options)
        for row in conditions(loaded, options):
            row.dataset = folder.root
            if done := matching(known, _identity(row, loaded)):
                yield from ((row, None) for row in done)
                continue
            row.batch_size, row.images_per_second = speed.get(row.resolution, (None, None))
            for scored in _score(row, loaded, folder, index, runtime, options):
                yield scored.row, scored


def _identity(row: Row, loaded: Loaded) -> dict[str, Any]:
    """The columns that tell a condition, without what is measured; as _score fills them in."""
    modules = extent_modules(loaded)
    own = f"{modules[0].extent:g}" if modules else ""
    measured = {"gamma", "bin", "top1", "top5", "images", "seconds"}
    measured |= {"batch_size", "images_per_second"}
    told = {key: value for key, value in vars(row).items() if key not in measured}
    return {**told, "extent": row.extent or own}


def _score(
    row: Row,
    loaded: Loaded,
    folder: Folder,
    index: dict[str, int],
    runtime: Runtime,
    options: TimmOptions,
) -> Iterator[Scored]:
    """The row with what was found, or with size bins a row for each."""
    if row.attention_logn is not None:
        use_logn(loaded.model, row.attention_logn)
    config = _data_config(loaded, options)
    patch = loading.patch_size(loaded.model) or (1, 1)
    sizes = view_sizes(row, options)
    if row.strategy:
        view = dict(patch=patch, crop_pct=config["crop_pct"], resolution=row.resolution)
        views = [size_bins.view_of(row.strategy, *size, **view) for size in folder.sizes]
    elif row.seq_len:
        views = [(testset.view_of_length(size, row.seq_len, patch),) for size in folder.sizes]
    else:
        own = tuple(View(size, size, config["crop_pct"], patch) for size in sizes)
        views = [own] * len(folder.paths)
    modules, gammas = extent_modules(loaded), []
    if row.extent:
        train_size = options.train_size or loaded.train_size
        gammas = [gamma(row.extent, size, train_size) for size in sizes or [train_size]]
        row.gamma = gammas[0] if len(gammas) == 1 else None
    elif modules:
        row.gamma = modules[0].extent
        row.extent = f"{row.gamma:g}"

    def set_extent(view: int) -> None:
        if gammas:
            for module in modules:
                module.extent = gammas[view]

    began = time.monotonic()
    hits = score(
        loaded.model,
        ViewDataset(folder, index, views, config["interpolation"]),
        runtime,
        mean=config["mean"],
        std=config["std"],
        before_view=set_extent,
        title=f"{loaded.checkpoint} {row.strategy} {row.resolution or ''}",
    )
    row.seconds = time.monotonic() - began
    named = [("", hits)]
    if row.strategy:
        bins = torch.tensor([size_bins.bin_of(*size) or 0 for size in folder.sizes])
        named = [(name, hits.of(bins == i)) for i, name in enumerate(size_bins.LABELS)]
        named.append(("all", hits))
    for name, found in named:
        images, top1, top5 = (int(each.sum()) for each in found)
        if images:
            of_bin = replace(row, bin=name, images=images)
            of_bin.top1, of_bin.top5 = 100 * top1 / images, 100 * top5 / images
            yield Scored(of_bin, folder, found)


def _class_index(loaded: Loaded, folder: Folder, options: TimmOptions) -> dict[str, int]:
    return testset.class_index(
        folder.classes,
        loaded.num_classes,
        empty=folder.empty,
        class_map=testset.read_class_map(options.class_map, folder.root),
        allow_missing=options.allow_missing_classes,
    )


def _row(loaded: Loaded, options: TimmOptions) -> Row:
    return row_of(loaded, options, _data_config(loaded, options))


def _data_config(loaded: Loaded, options: TimmOptions) -> dict[str, Any]:
    """timm's data config: the command line, else the training's arguments, else the model's."""
    names = ("crop_pct", "interpolation", "mean", "std")
    wanted = {name: getattr(options, name) or loaded.train_args.get(name) for name in names}
    return resolve_data_config(wanted, model=loaded.model)
