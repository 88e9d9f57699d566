"""Loss against the position in the target, from the CSVs of ``cape-fairseq-eval loss``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cape_plugins.plot.canvas import pyplot, save
from cape_plugins.plot.rows import read as read_rows

_NEEDED = ("model", "checkpoint", "data", "subset", "position", "loss", "sentences")


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
            key = tuple(row[column] for column in ("model", "checkpoint", "data", "subset"))
            found.setdefault(key, {})[int(row["position"])] = (
                float(row["loss"]),
                int(row["sentences"]),
            )
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
    averages = []
    for i in range(len(sums)):
        span = slice(max(0, i - before), i - before + window)
        averages.append(sum(sums[span]) / sum(series.sentences[span]))
    return averages


def draw(
    paths: Sequence[Path],
    out: Path,
    *,
    window: int = 9,
    min_sentences: int = 10,
    trained_to: int | None = None,
    title: str = "",
) -> None:
    """Draw losses over positions; seeds of a name are averaged, with their range shaded.

    Args:
        paths: CSVs that ``cape-fairseq-eval loss`` wrote.
        out: the picture.
        window: positions of the moving average, 1 for none.
        min_sentences: positions that fewer sentences reach are left out (noise).
        trained_to: the longest target of the training, in tokens, to be marked.
        title: of the picture.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: as :func:`read`, a value below 1, or no position with enough sentences.
    """
    for name, value in (("window", window), ("min_sentences", min_sentences)):
        if value < 1:
            raise ValueError(f"{name} must be ≥ 1, got {value}")
    if trained_to is not None and trained_to < 1:
        raise ValueError(f"trained_to must be ≥ 1, got {trained_to}")
    curves: dict[str, list[list[float]]] = {}
    for series in read(paths):
        enough = sum(n >= min_sentences for n in series.sentences)  # they only get fewer
        if not enough:
            raise ValueError(
                f"no position is reached by {min_sentences} sentences, but by "
                f"{series.sentences[0]}: give a smaller --min-sentences"
            )
        curves.setdefault(series.name, []).append(smoothed(series, window)[:enough])
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(9.0, 4.4), layout="constrained")
    for name, seeds in curves.items():
        length = min(map(len, seeds))
        columns = [[seed[i] for seed in seeds] for i in range(length)]
        positions = range(1, length + 1)
        (line,) = axis.plot(positions, [sum(c) / len(c) for c in columns], lw=1.4, label=name)
        if len(seeds) > 1:
            axis.fill_between(
                positions,
                [min(c) for c in columns],
                [max(c) for c in columns],
                color=line.get_color(),
                alpha=0.15,
                lw=0,
            )
    if trained_to is not None:
        axis.axvline(trained_to, color="0.6", ls="--", lw=1.2, label="longest in training")
    axis.set_xlabel("position in the target (tokens)")
    axis.set_ylabel("negative log loss (nats)")
    axis.set_title(title, fontsize="medium")
    axis.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    save(figure, out)
