"""Accuracy against resolution, or against images per second, from the CSVs of an evaluation."""

# ruff: noqa: RUF009 - option() makes a field
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cape_plugins.evaluation import figure
from cape_plugins.evaluation.options import option
from cape_plugins.evaluation.output import read_rows

_NEEDED = ("model", "checkpoint", "dataset", "resolution", "extent", "tta", "strategy")
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
        "curve; checkpoints of one name (seeds) are averaged, with their range shaded",
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
) -> dict[str, dict[int, list[tuple[float, float]]]]:
    """Rows sorted into curves.

    Args:
        rows: from :func:`read`.
        against: ``resolution`` or ``throughput``.
        metric: ``top1`` or ``top5``.
        group: a regular expression; what it finds in a checkpoint's path names its curve.
            Default: the model, with the checkpoint's folder where a model has several.

    Returns:
        name in the legend → resolution → (x, y) of each checkpoint that has the name.

    Raises:
        ValueError: a bad expression, one that a path does not match, or rows without the value.
    """
    column = "images_per_second" if against == "throughput" else "resolution"
    rows = [row for row in rows if row.get(column) and row.get(metric)]
    if not rows:
        raise ValueError(f"no rows with {column} and {metric}")
    names = _names(rows, group)
    shown = [
        key
        for key in ("dataset", "extent", "tta")
        if len({row[key] for row in rows if row[key]}) > 1
    ]
    points: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for row in rows:
        parts = [names[row["model"], row["checkpoint"]]]
        parts += [_described(key, row[key]) for key in shown if row[key]]
        curve = points.setdefault(", ".join(part for part in parts if part), {})
        point = float(row[column]), float(row[metric])
        curve.setdefault(int(row["resolution"]), []).append(point)
    return {name: dict(sorted(found.items())) for name, found in points.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """``python -m cape_plugins.plot curves``."""
    figure.main("python -m cape_plugins.plot curves", CurveOptions, draw, argv)


def draw(options: CurveOptions) -> None:
    """Draw the curves of CSVs: means over the checkpoints of a name, their range shaded.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: as :func:`read` and :func:`curves`.
    """
    against, metric = options.against, options.metric
    found = curves(read(options.csv), against=against, metric=metric, group=options.group)
    labels = _LABELS[against], _LABELS[metric]
    with figure.axes(options.out, *labels, [options.title]) as (axis,):
        for i, (name, curve) in enumerate(found.items()):
            points = curve.values()
            x = [sum(x for x, _ in point) / len(point) for point in points]
            y = figure.line(
                *(axis, x, [[y for _, y in point] for point in points], name),
                marker=figure.MARKERS[i % len(figure.MARKERS)],
                ms=5,
            )
            if against == "throughput":
                figure.notes(axis, x, y, [f"{size}²" for size in curve])
        if against == "throughput":
            from matplotlib.ticker import LogFormatter

            axis.set_xscale("log")
            for set_formatter in (axis.xaxis.set_major_formatter, axis.xaxis.set_minor_formatter):
                set_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
            return
        sizes = sorted(set().union(*found.values()))
        axis.set_xticks(sizes, [str(size) for size in sizes], rotation=45 if len(sizes) > 9 else 0)
        for size in options.trained_at:
            label = "trained at" if size == options.trained_at[0] else None
            axis.axvline(size, color="0.8", lw=6, zorder=0, label=label)


def _names(rows: Sequence[dict[str, str]], group: str | None) -> dict[tuple[str, str], str]:
    """(model, checkpoint) → name of its curve."""
    pairs = list(dict.fromkeys((row["model"], row["checkpoint"]) for row in rows))
    if group is None:
        models = [model for model, _ in pairs]
        return {
            (model, path): model
            if models.count(model) == 1
            else f"{model} ({Path(path).parent.name}/{Path(path).name})"
            for model, path in pairs
        }
    try:
        expression = re.compile(group)
    except re.error as error:
        raise ValueError(f"--group {group!r} is no regular expression: {error}") from error
    names = {}
    for model, path in pairs:
        match = expression.search(path)
        if match is None:
            raise ValueError(f"--group {group!r} finds nothing in {path}")
        names[model, path] = match[1] if expression.groups else match[0]
    return names


def _described(key: str, value: str) -> str:
    if key == "tta":
        return "TTA" if value == "1" else ""
    return f"γ {value}" if key == "extent" else Path(value).name
