"""Accuracy against resolution, or against images per second, from the CSVs of an evaluation."""

# ruff: noqa: RUF009 - option() makes a field
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cape_plugins.evaluation import figure
from cape_plugins.evaluation.options import option
from cape_plugins.evaluation.output import read_rows
from cape_plugins.evaluation.timm.words import spoken

_NEEDED = ("model", "checkpoint", "dataset", "resolution", "extent", "tta", "strategy")
#: columns in which rows of one curve do not differ
_CONDITIONS = (
    *("model", "variant", "max_global_shift", "max_local_shift", "max_global_scale"),
    *("model_kwargs", "train_size", "extent", "tta", "tta_step", "ema", "abspos_antialias"),
    *("frequency_scale", "attention_logn"),
    *("crop_pct", "interpolation", "mean", "std", "precision"),
)
_LABELS = {
    "top1": "top-1 accuracy (%)",
    "top5": "top-5 accuracy (%)",
    "resolution": "image size (pixels)",
    "throughput": "images per second",
}


@dataclass(frozen=True, kw_only=True)
class CurveOptions(figure.PictureOptions):
    """Curves from what cape-timm-eval --csv wrote."""

    out: Path = option(".png, .pdf, .svg", Path("curves.png"))
    against: str = option("", "resolution", choices=["resolution", "throughput"])
    metric: str = option("", "top1", choices=["top1", "top5"])
    group: str | None = option(
        "what a search in the checkpoint's path finds (its first group, if any) is the name of its "
        "curve; checkpoints of one name are averaged as seeds, unless their options or the test "
        "differ (default: checkpoints whose records differ in the seed alone)",
        None,
        metavar="REGEX",
    )
    trained_at: Sequence[int] = option("sizes to mark", (), "R")


def read(paths: Sequence[Path]) -> list[dict[str, str]]:
    """The rows of CSVs with one resolution for all images (no size bins).

    Raises:
        ValueError: a file cannot be read, or was not written by cape-timm-eval, or is empty.
    """
    rows = [row for path in paths for row in read_rows(path, _NEEDED, "cape-timm-eval --csv")]
    rows = [row for row in rows if row["resolution"] and not row["strategy"]]
    if not rows:
        raise ValueError(f"no rows with a resolution in {', '.join(map(str, paths))}")
    return rows


def curves(
    rows: Sequence[dict[str, str]],
    *,
    against: str = "resolution",
    metric: str = "top1",
    group: str | None = None,
) -> dict[str, dict[str, dict[int, list[tuple[float, float]]]]]:
    """Rows sorted into curves: those that differ in the seed alone share one.

    Args:
        rows: from :func:`read`.
        against: ``resolution`` or ``throughput``.
        metric: ``top1`` or ``top5``.
        group: a regular expression; what it finds in a checkpoint's path takes the place of the
            model and the training's record. Default: checkpoints share a curve if the CSV has
            seeds for all of them, each another.

    Returns:
        path of the data set → name in the legend → resolution → (x, y) of each seed. The name is
        the model's and what differs between the curves, the same in all data sets.

    Raises:
        ValueError: a bad expression, one that a path does not match, or rows without the value.
    """
    column = "images_per_second" if against == "throughput" else "resolution"
    rows = [row for row in rows if row.get(column) and row.get(metric)]
    if not rows:
        raise ValueError(f"no rows with {column} and {metric}")
    names = _names([row["checkpoint"] for row in rows], group)
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        path = row["checkpoint"]
        own = (names[path],) if group else (Path(path).name, row.get("training") or "")
        key = *own, *(row.get(name) or "" for name in _CONDITIONS)
        groups.setdefault(key, []).append(row)
    found = [part for mine in groups.values() for part in _by_seed(mine, group)]
    found.sort(key=lambda mine: rows.index(mine[0]))
    points: dict[str, dict[str, dict[int, list[tuple[float, float]]]]] = {}
    for label, mine in zip(_labels(found, names), found, strict=True):
        for row in mine:
            curve = points.setdefault(row["dataset"], {}).setdefault(label, {})
            point = float(row[column]), float(row[metric])
            curve.setdefault(int(row["resolution"]), []).append(point)
    return {
        dataset: {label: dict(sorted(curve.items())) for label, curve in of.items()}
        for dataset, of in points.items()
    }


def main(argv: Sequence[str] | None = None) -> None:
    """``python -m cape_plugins.plot curves``."""
    figure.main("python -m cape_plugins.plot curves", CurveOptions, draw, argv)


def draw(options: CurveOptions) -> None:
    """Draw the curves of CSVs, a panel per data set: means over seeds, their range shaded.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: as :func:`read` and :func:`curves`.
    """
    against, metric = options.against, options.metric
    found = curves(read(options.csv), against=against, metric=metric, group=options.group)
    names = list(dict.fromkeys(name for of in found.values() for name in of))
    titles = _short(found) if len(found) > 1 else [options.title]
    size = (4.0, 4.2) if len(found) > 1 else None
    labels = _LABELS[against], _LABELS[metric]
    with figure.axes(options.out, *labels, titles, size) as panels:
        if len(found) > 1 and options.title:
            panels[0].figure.suptitle(options.title)
        for axis, of in zip(panels, found.values(), strict=True):
            for i, name in enumerate(names):
                _draw(axis, i, name, of.get(name, {}), against)
            _ticks(axis, of.values(), options)


def _draw(axis: Any, i: int, name: str, curve: dict[int, Any], against: str) -> None:
    points = curve.values()
    x = [sum(x for x, _ in point) / len(point) for point in points]
    style = dict(color=f"C{i}", marker=figure.MARKERS[i % len(figure.MARKERS)], ms=5)
    y = figure.line(axis, x, [[y for _, y in point] for point in points], name, **style)
    if against == "throughput":
        figure.notes(axis, x, y, [f"{size}²" for size in curve])


def _ticks(axis: Any, found: Iterable[Any], options: CurveOptions) -> None:
    if options.against == "throughput":
        from matplotlib.ticker import LogFormatter

        axis.set_xscale("log")
        for set_formatter in (axis.xaxis.set_major_formatter, axis.xaxis.set_minor_formatter):
            set_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        return
    sizes = sorted(set().union(*found))
    axis.set_xticks(sizes, [str(size) for size in sizes], rotation=45 if len(sizes) > 9 else 0)
    for size in options.trained_at:
        label = "trained at" if size == options.trained_at[0] else None
        axis.axvline(size, color="0.8", lw=6, zorder=0, label=label)


def _by_seed(rows: list[dict[str, str]], group: str | None) -> list[list[dict[str, str]]]:
    """Rows of equal conditions: together if their checkpoints differ in the seed, else apart."""
    seeds = {row["checkpoint"]: row.get("seed") or "" for row in rows}
    if group or (all(seeds.values()) and len(set(seeds.values())) == len(seeds)):
        return [rows]
    return [[row for row in rows if row["checkpoint"] == path] for path in seeds]


def _labels(found: Sequence[list[dict[str, str]]], names: dict[str, str]) -> list[str]:
    """A name for each curve: the model and the conditions that have several values."""
    first = [rows[0] for rows in found]
    conditions = [_described(row) for row in first]
    every = dict.fromkeys(name for described in conditions for name in described)
    shown = [name for name in every if len({d[name] for d in conditions if d.get(name)}) > 1]

    def label(i: int, place: str = "") -> str:
        row, described = first[i], conditions[i]
        parts = [(names[row["checkpoint"]] or row["model"]) + place]
        for name in shown:
            if name != "variant" or described[name] not in row["model"]:
                parts.append(spoken(name, described.get(name, "")))
        return ", ".join(part for part in dict.fromkeys(parts) if part)

    labels = [label(i) for i in range(len(found))]
    for place in (  # as much as tells them apart
        lambda row: "/".join(Path(row["checkpoint"]).parts[-2:]),
        lambda row: row["checkpoint"],
        lambda row: ", ".join(f"{name} {value}" for name, value in row.items() if value),
    ):
        for i in [i for i, one in enumerate(labels) if labels.count(one) > 1]:
            labels[i] = label(i, f" ({place(first[i])})")
    return labels


def _described(row: dict[str, str]) -> dict[str, str]:
    """Condition → value as the legend has it: each of the model's arguments for itself."""
    found = {name: row.get(name) or "" for name in _CONDITIONS}
    del found["model"], found["model_kwargs"]
    for argument in (row.get("model_kwargs") or "").split():
        name, _, value = argument.partition("=")
        # the others have columns of their own
        if name not in {*found, "pos", "img_size", "dynamic_img_size"}:
            found[name] = value
    return found


def _names(paths: Iterable[str], group: str | None) -> dict[str, str]:
    """Checkpoint → the name that the group finds; empty without a group."""
    if group is None:
        return dict.fromkeys(paths, "")
    try:
        expression = re.compile(group)
    except re.error as error:
        raise ValueError(f"--group {group!r} is no regular expression: {error}") from error
    names = {}
    for path in paths:
        match = expression.search(path)
        if match is None:
            raise ValueError(f"--group {group!r} finds nothing in {path}")
        names[path] = match[1] if expression.groups else match[0]
    return names


def _short(paths: Iterable[str]) -> list[str]:
    """As many of the last parts of paths, two at least, as tell them apart."""
    paths = list(paths)
    parts = [Path(path).parts for path in paths]
    for n in range(2, max(map(len, parts))):
        names = ["/".join(part[-n:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return paths
