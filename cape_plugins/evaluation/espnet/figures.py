"""Pictures of an evaluation: WER over duration, test set, length of pieces and throughput."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cape_plugins.evaluation import figure
from cape_plugins.evaluation.espnet.options import WHOLE, EspnetOptions
from cape_plugins.evaluation.espnet.results import Row

_X_LABELS = {
    "bins": "duration (s)",
    "sets": "test set",
    "segments": "longest piece (s)",
    "hops": "seconds of audio per second",
}


def outputs(options: EspnetOptions) -> dict[str, Path]:
    """The kinds of pictures that an evaluation is worth, and where they go."""
    if options.hops:
        kinds = ["hops"]
    elif len(options.segment) > 1:
        kinds = ["segments"]
    else:
        kinds = ["bins"] if options.bins else []
        kinds += ["sets"] if len(options.data) > 1 else []
    drawn = options.out is not None and not options.no_plots
    return {kind: Path(f"{options.out}.{kind}.png") for kind in kinds} if drawn else {}


def draw(kind: str, rows: Sequence[Row], out: Path) -> None:
    """Draw one picture, a line per model; a panel per test set (``sets``: one panel).

    Args:
        kind: ``bins``, ``sets``, ``segments`` or ``hops``.
        rows: of the evaluation, in its order.
        out: the picture.

    Raises:
        ImportError: matplotlib is missing.
    """
    titles = [""] if kind == "sets" else list(dict.fromkeys(row.test_set for row in rows))
    names = list(dict.fromkeys(_name(kind, row) for row in rows))
    with figure.axes(out, _X_LABELS[kind], "WER (%)", titles, size=(2.4, 3.6)) as panels:
        for title, axis in zip(titles, panels, strict=True):
            _panel(kind, [row for row in rows if row.test_set == title or not title], names, axis)
        panels[0].set_ylim(bottom=0)


def _panel(kind: str, rows: Sequence[Row], names: Sequence[str], axis: Any) -> None:
    rows = [row for row in rows if (row.bin == "all") != (kind == "bins") and row.wer is not None]
    places = list(dict.fromkeys(_place(kind, row) for row in rows))
    if kind != "hops":
        axis.set_xticks(range(len(places)), places)
        axis.set_xlim(-0.3, len(places) - 0.7)
    for number, name in enumerate(names):
        mine = [row for row in rows if _name(kind, row) == name]
        hops = kind == "hops"
        if hops:  # as given, or as measured, the line would fold back
            mine.sort(key=lambda row: row.throughput or 0)
        x = [row.throughput or 0 if hops else places.index(_place(kind, row)) for row in mine]
        marker = figure.MARKERS[number % len(figure.MARKERS)]
        style = dict(color=f"C{number}", marker=marker, ms=5, lw=1.5, clip_on=False)
        y = figure.line(axis, x, [[row.wer or 0] for row in mine], name, **style)
        if hops:
            figure.notes(axis, x, y, [f"{row.hop_ms:g}" for row in mine])


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
    return WHOLE if row.segment is None else f"{row.segment:g}"
