"""Pictures of an evaluation: WER over duration, test set, length of pieces and throughput."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cape_plugins.espnet.evaluation.results import Row
from cape_plugins.plot.canvas import pyplot, save

_MARKERS = "osD^vPX*<>"
_X_LABELS = {
    "bins": "duration (s)",
    "sets": "test set",
    "segments": "longest piece (s)",
    "hops": "seconds of audio per second",
}
_WHOLE = "whole"  # among the lengths of pieces
_COLUMNS = 4  # panels side by side


def kinds(*, bins: int, sets: int, segments: int, hops: int) -> list[str]:
    """The pictures that an evaluation of so many edges, test sets, … is worth."""
    found = []
    if hops:
        return ["hops"]
    if segments > 1:
        return ["segments"]
    if bins:
        found.append("bins")
    if sets > 1:
        found.append("sets")
    return found


def draw(kind: str, rows: Sequence[Row], out: Path) -> None:
    """Draw one picture, a line per model; a panel per test set (``sets``: one panel).

    Args:
        kind: ``bins``, ``sets``, ``segments`` or ``hops``.
        rows: of the evaluation, in its order.
        out: the picture.

    Raises:
        ImportError: matplotlib is missing.
    """
    plt = pyplot()
    panels = ["all"] if kind == "sets" else list(dict.fromkeys(row.test_set for row in rows))
    columns = min(len(panels), _COLUMNS)
    lines_of_panels = math.ceil(len(panels) / columns)
    figure, grid = plt.subplots(
        *(lines_of_panels, columns),
        figsize=(2.4 + 3.6 * columns, 3.6 * lines_of_panels),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    axes = grid.flat[: len(panels)]
    for unused in grid.flat[len(panels) :]:
        unused.set_axis_off()
    names = list(dict.fromkeys(_name(kind, row) for row in rows))
    for panel, axis in zip(panels, axes, strict=True):
        shown = [row for row in rows if kind == "sets" or row.test_set == panel]
        _panel(kind, shown, names, axis)
        axis.set_xlabel(_X_LABELS[kind])
        axis.grid(alpha=0.3)
        if kind != "sets":
            axis.set_title(panel, fontsize="medium")
    for axis in grid[:, 0]:
        axis.set_ylabel("WER (%)")
    grid[0, 0].set_ylim(bottom=0)
    figure.legend(axes[0].get_lines(), names, loc="outside right upper", fontsize="small")
    save(figure, out)


def _panel(kind: str, rows: Sequence[Row], names: Sequence[str], axis: Any) -> None:
    rows = [row for row in rows if (row.bin == "all") != (kind == "bins") and row.wer is not None]
    places: list[str] = []
    if kind != "hops":
        places = list(dict.fromkeys(_place(kind, row) for row in rows))
        axis.set_xticks(range(len(places)), places)
        axis.set_xlim(-0.3, len(places) - 0.7)
    for number, name in enumerate(names):
        mine = [row for row in rows if _name(kind, row) == name]
        y = [row.wer for row in mine]
        if kind == "hops":
            x = [row.throughput for row in mine]
            for row in mine:
                axis.annotate(
                    f"{row.hop_ms:g}", (row.throughput, row.wer), (0, 6),
                    textcoords="offset points", ha="center", size=7,
                )  # fmt: skip
        else:
            x = [places.index(_place(kind, row)) for row in mine]
        marker = _MARKERS[number % len(_MARKERS)]
        axis.plot(x, y, color=f"C{number}", marker=marker, ms=5, lw=1.5, label=name, clip_on=False)


def _name(kind: str, row: Row) -> str:
    """Of a line: hops of several lengths of pieces are lines of their own."""
    if kind == "hops" and row.segment is not None:
        return f"{row.model}, {row.segment:g} s"
    return row.model


def _place(kind: str, row: Row) -> str:
    if kind == "bins":
        return row.bin
    if kind == "sets":
        return row.test_set
    return _WHOLE if row.segment is None else f"{row.segment:g}"
