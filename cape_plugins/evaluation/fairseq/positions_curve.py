"""Loss against the position in the target, from the CSVs of ``cape-fairseq-eval loss``."""

# ruff: noqa: RUF009 - option() makes a field
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cape_plugins.evaluation import figure
from cape_plugins.evaluation.options import Options, option
from cape_plugins.evaluation.output import read_rows

_NEEDED = ("model", "checkpoint", "data", "subset", "position", "loss", "sentences")


@dataclass(frozen=True, kw_only=True)
class CurveOptions(Options):
    """What is drawn of losses over positions."""

    window: int = option("moving average (default: 9; 1: none)", 9, least=1)
    min_sentences: int = option("leave out positions that fewer sentences reach", 10, least=1)
    trained_to: int | None = option("longest target in training, to be marked", None, least=1)


@dataclass(frozen=True, kw_only=True)
class PositionOptions(CurveOptions, figure.PictureOptions):
    """Curves from what cape-fairseq-eval loss --csv wrote.

    Models of one name (seeds) are averaged, with their range shaded.
    """

    out: Path = option(".png, .pdf, .svg", Path("positions.png"))


@dataclass(frozen=True)
class Series:
    """Losses of one checkpoint on one test set.

    Attributes:
        name: in the legend; several seeds of a model share it.
        losses: entry i is the mean at position i + 1, in nats.
        sentences: entry i is how many reach position i + 1.
    """

    name: str
    losses: list[float]
    sentences: list[int]


def read(paths: Sequence[Path]) -> list[Series]:
    """The series of CSVs; with several test sets, these are named too.

    Raises:
        ValueError: a file cannot be read, was not written by cape-fairseq-eval, or is empty.
    """
    found: dict[tuple[str, ...], dict[int, tuple[float, int]]] = {}
    for path in paths:
        for row in read_rows(path, _NEEDED, "cape-fairseq-eval loss"):
            points = found.setdefault(tuple(row[column] for column in _NEEDED[:4]), {})
            points[int(row["position"])] = float(row["loss"]), int(row["sentences"])
    if not found:
        raise ValueError(f"no rows in {', '.join(map(str, paths))}")
    several = len({key[2:] for key in found}) > 1
    series = []
    for (model, _, data, subset), points in found.items():
        ordered = [points[position] for position in sorted(points)]
        name = f"{model}, {Path(data).name} {subset}" if several else model
        series.append(Series(name, [loss for loss, _ in ordered], [n for _, n in ordered]))
    return series


def smoothed(series: Series, window: int) -> list[float]:
    """Moving average over ``window`` positions, each position weighed by its sentences.

    The window is centred; at both ends it is what is left of it.
    """
    sums = [loss * n for loss, n in zip(series.losses, series.sentences, strict=True)]
    before = (window - 1) // 2
    spans = [slice(max(0, i - before), i - before + window) for i in range(len(sums))]
    return [sum(sums[span]) / sum(series.sentences[span]) for span in spans]


def main(argv: Sequence[str] | None = None) -> None:
    """``python -m cape_plugins.plot positions``."""
    figure.main("python -m cape_plugins.plot positions", PositionOptions, draw, argv)


def draw(options: PositionOptions) -> None:
    """Draw losses over positions; seeds of a name are averaged, with their range shaded.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: as :func:`read`, or no position with enough sentences.
    """
    curves: dict[str, list[list[float]]] = {}
    for series in read(options.csv):
        enough = sum(n >= options.min_sentences for n in series.sentences)  # they only get fewer
        if not enough:
            raise ValueError(
                f"no position is reached by {options.min_sentences} sentences, but by "
                f"{series.sentences[0]}: give a smaller --min-sentences"
            )
        curves.setdefault(series.name, []).append(smoothed(series, options.window)[:enough])
    labels = "position in the target (tokens)", "negative log loss (nats)"
    with figure.axes(options.out, *labels, [options.title]) as (axis,):
        for name, seeds in curves.items():
            values = list(zip(*seeds, strict=False))  # to the end of the shortest
            figure.line(axis, range(1, len(values) + 1), values, name, lw=1.4)
        if options.trained_to is not None:
            axis.axvline(
                options.trained_to, color="0.6", ls="--", lw=1.2, label="longest in training"
            )
