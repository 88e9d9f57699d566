"""Line plots of results: the mean over seeds with their range shaded, in panels side by side."""

# ruff: noqa: RUF009 - option() makes a field
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cape_plugins.evaluation import command
from cape_plugins.evaluation.options import Options, option
from cape_plugins.plot.canvas import check, pyplot, save

Kind = TypeVar("Kind", bound="PictureOptions")
MARKERS = "osD^vPX*<>"
_COLUMNS = 4  # panels side by side


@dataclass(frozen=True, kw_only=True)
class PictureOptions(Options):
    """A picture of CSVs."""

    csv: Sequence[Path] = option("that the evaluation wrote", metavar="CSV", flags=("csv",))
    out: Path = option(".png, .pdf, .svg")
    title: str = option("", "")
    overwrite: bool = option("replace a file that is there", False)


def main(
    prog: str, kind: type[Kind], draw: Callable[[Kind], None], argv: Sequence[str] | None
) -> None:
    """The command line of a picture; ends with status 2 and one line if something is wrong."""

    def work(options: Kind) -> None:
        check(options.out, options.overwrite)
        draw(options)
        print(options.out)

    command.main(prog, kind, work, argv)


@contextmanager
def axes(
    out: Path,
    x: str,
    y: str,
    titles: Sequence[str] = ("",),
    size: tuple[float, float] | None = None,
) -> Iterator[list[Any]]:
    """Empty axes to draw lines on; they get a grid, labels and a legend, and are saved.

    Args:
        out: the picture.
        x, y: labels of the axes.
        titles: of the panels, which share y.
        size: of the legend (its width) and of a panel, in inches. Default: one wide panel.

    Raises:
        ImportError: matplotlib is missing.
    """
    across = min(len(titles), _COLUMNS)
    down = math.ceil(len(titles) / across)
    inches = (9.0, 4.4) if size is None else (size[0] + size[1] * across, size[1] * down)
    figure, grid = pyplot().subplots(
        down, across, figsize=inches, sharey=True, squeeze=False, layout="constrained"
    )
    for unused in grid.flat[len(titles) :]:
        unused.set_axis_off()
    found = list(grid.flat[: len(titles)])
    yield found
    for axis, title in zip(found, titles, strict=True):
        axis.set_xlabel(x)
        axis.set_title(title, fontsize="medium")
        axis.grid(alpha=0.3)
    for axis in grid[:, 0]:
        axis.set_ylabel(y)
    handles, labels = found[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize="small")
    figure.draw_without_rendering()  # the layout decides which notes overlap
    for axis in found:
        _part(axis.texts)
    save(figure, out)


def line(
    axis: Any, x: Sequence[float], seeds: Sequence[Sequence[float]], label: str, **style: Any
) -> list[float]:
    """Draw the mean over seeds, their range shaded if they differ.

    Args:
        axis: to draw on.
        x: places.
        seeds: the values of all seeds at each place.
        label: in the legend.
        style: of the line, as matplotlib takes it.

    Returns:
        the means.
    """
    means = [sum(values) / len(values) for values in seeds]
    (drawn,) = axis.plot(x, means, label=label, **style)
    low, high = [min(values) for values in seeds], [max(values) for values in seeds]
    if low != high:
        axis.fill_between(x, low, high, color=drawn.get_color(), alpha=0.15, lw=0)
    return means


def notes(axis: Any, x: Sequence[float], y: Sequence[float], texts: Sequence[str]) -> None:
    """Write a text over or under each point of the line drawn last, in its colour."""
    style = dict(ha="center", size=7, color=axis.lines[-1].get_color())
    for text, *place in zip(texts, x, y, strict=True):
        axis.annotate(text, place, (0, 6), textcoords="offset points", **style)


def _part(notes: Sequence[Any]) -> None:
    """Raise or lower each note, by as little as it takes, until it is clear of those before."""
    taken: list[Any] = []
    for note in notes:
        for height in (6, -13, 15, -22, 24, -31, 33, -40, 42):  # points from the place
            note.xyann = (0, height)
            box = note.get_window_extent().padded(1)
            if not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)
