"""Accuracy against resolution, or against images per second, from the CSVs of an evaluation."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cape_plugins.plot.canvas import pyplot, save
from cape_plugins.plot.rows import read as read_rows

_NEEDED = ("model", "checkpoint", "dataset", "resolution", "extent", "tta", "strategy")
_LABELS = {
    "top1": "top-1 accuracy (%)",
    "top5": "top-5 accuracy (%)",
    "resolution": "image size (pixels)",
    "throughput": "images per second",
}


@dataclass(frozen=True)
class Curve:
    """One line of the picture.

    Attributes:
        name: in the legend.
        points: resolution → (x, y) of each checkpoint that has the name.
    """

    name: str
    points: dict[int, list[tuple[float, float]]]


def read(paths: Sequence[Path]) -> list[dict[str, str]]:
    """The rows of CSVs with one resolution for all images (no size bins).

    Raises:
        ValueError: a file cannot be read, or was not written by cape-timm-eval, or is empty.
    """
    rows = []
    for path in paths:
        found = read_rows(path, _NEEDED, "cape-timm-eval --csv")
        rows += [row for row in found if row["resolution"] and not row["strategy"]]
    if not rows:
        raise ValueError(f"no rows with a resolution in {', '.join(map(str, paths))}")
    return rows


def curves(
    rows: Sequence[dict[str, str]],
    *,
    against: str = "resolution",
    metric: str = "top1",
    group: str | None = None,
) -> list[Curve]:
    """Rows sorted into curves.

    Args:
        rows: from :func:`read`.
        against: ``resolution`` or ``throughput``.
        metric: ``top1`` or ``top5``.
        group: a regular expression; what it finds in a checkpoint's path names its curve.
            Default: the model, with the checkpoint's folder where a model has several.

    Raises:
        ValueError: a bad expression, one that a path does not match, or rows without the value.
    """
    column = "images_per_second" if against == "throughput" else "resolution"
    rows = [row for row in rows if row.get(column) and row.get(metric)]
    if not rows:
        raise ValueError(f"no rows with {column} and {metric}")
    names = _names(rows, group)
    shown = [key for key in ("dataset", "extent", "tta") if _varies(rows, key)]
    points: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for row in rows:
        parts = [names[row["model"], row["checkpoint"]]]
        parts += [_described(key, row[key]) for key in shown if row[key]]
        curve = points.setdefault(", ".join(part for part in parts if part), {})
        curve.setdefault(int(row["resolution"]), []).append(
            (float(row[column]), float(row[metric]))
        )
    return [Curve(name, dict(sorted(found.items()))) for name, found in points.items()]


def draw(
    paths: Sequence[Path],
    out: Path,
    *,
    against: str = "resolution",
    metric: str = "top1",
    group: str | None = None,
    trained_at: Sequence[int] = (),
    title: str = "",
) -> None:
    """Draw the curves of CSVs: means over the checkpoints of a name, their range shaded.

    Args:
        paths: CSVs that ``cape-timm-eval`` wrote.
        out: the picture.
        against, metric, group: see :func:`curves`.
        trained_at: image sizes in pixels to mark.
        title: of the picture.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: as :func:`read` and :func:`curves`.
    """
    found = curves(read(paths), against=against, metric=metric, group=group)
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(9.0, 4.4), layout="constrained")
    markers = "osD^vPX*<>"
    for i, curve in enumerate(found):
        points = list(curve.points.values())
        x = [_mean([x for x, _ in point]) for point in points]
        y = [_mean([y for _, y in point]) for point in points]
        (line,) = axis.plot(
            x, y, marker=markers[i % len(markers)], markersize=5, lw=1.5, label=curve.name
        )
        low, high = ([f(y for _, y in point) for point in points] for f in (min, max))
        if low != high:
            axis.fill_between(x, low, high, color=line.get_color(), alpha=0.15, lw=0)
        if against == "throughput":
            for size, px, py in zip(curve.points, x, y, strict=True):
                axis.annotate(
                    f"{size}²", (px, py), (0, 6), textcoords="offset points", ha="center", size=7
                )
    if against == "throughput":
        from matplotlib.ticker import LogFormatter

        axis.set_xscale("log")
        for set_formatter in (axis.xaxis.set_major_formatter, axis.xaxis.set_minor_formatter):
            set_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    else:
        sizes = sorted({size for curve in found for size in curve.points})
        axis.set_xticks(sizes, [str(size) for size in sizes], rotation=45 if len(sizes) > 9 else 0)
        for size in trained_at:
            axis.axvline(size, color="0.8", lw=6, zorder=0)
        if trained_at:
            axis.plot([], [], color="0.8", lw=6, label="trained at")
    axis.set_xlabel(_LABELS[against])
    axis.set_ylabel(_LABELS[metric])
    axis.set_title(title, fontsize="medium")
    axis.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    save(figure, out)


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


def _varies(rows: Sequence[dict[str, str]], key: str) -> bool:
    return len({row[key] for row in rows if row[key]}) > 1


def _described(key: str, value: str) -> str:
    if key == "tta":
        return "TTA" if value == "1" else ""
    return f"γ {value}" if key == "extent" else Path(value).name


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
