"""The figure of scores, to be read on light and on dark pages."""

from collections.abc import Callable
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

import matplotlib
from matplotlib.figure import Figure

from cape_studies.compare import Scores

LINES, MARKERS = ("-", "--", ":", "-."), "osD^vPX*<>"
GREY = "#767676"  # as far from white as from black
ASIDE = 0.2  # of the least distance of two conditions, over which their variants are spread
TEXT = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
STYLE: Any = {**dict.fromkeys(TEXT, GREY), "legend.framealpha": 0, "legend.fontsize": "medium"}

At = dict[tuple[str, str], float]  # (variant, condition) → where on the x-axis


def of_variant(index: int) -> dict[str, str]:
    """A variant's colour, line and marker: ten colours, then the same colours in dashes."""
    of_ten, tens = index % 10, index // 10 % len(LINES)
    return {"color": f"C{of_ten}", "ls": LINES[tens], "marker": MARKERS[of_ten]}


def places(axis: Any, scores: Scores) -> At:
    """The conditions' numbers, else their order."""
    conditions = scores.conditions
    try:
        places = {one: float(one) for one in conditions}
    except ValueError:
        places = {one: float(i) for i, one in enumerate(conditions)}
        axis.set_xlim(-0.5, len(conditions) - 0.5)
    turned = 30 if len(conditions) > 9 or sum(map(len, conditions)) > 50 else 0
    axis.set_xticks(list(places.values()), conditions, rotation=turned)
    for condition in scores.seen:
        axis.axvline(places[condition], color=GREY, alpha=0.25, lw=8, zorder=0)
    where = sorted(places.values())
    room = ASIDE * min((right - left for left, right in pairwise(where)), default=1)
    of = {name: i - (len(scores.variants) - 1) / 2 for i, name in enumerate(scores.variants)}
    apart = room / max(1, len(of) - 1)
    return {key: places[key[1]] + apart * of.get(key[0], 0) for key in scores.found}


def draw(
    scores: Scores, out: Path | IO[bytes], place: Callable[[Any, Scores], At] = places
) -> None:
    """Score against condition: a line for each variant, with its interval shaded.

    Conditions that are numbers stand at these numbers, others side by side. Conditions of training
    are grey. The line has a gap where a training has no score. The variants of a condition stand a
    little aside of each other, so that none hides another. The score of chance is a dotted line,
    where it is known.

    Args:
        scores: with the labels of their study's report.
        out: the picture.
        place: sets the x-axis, and gives where scores stand.
    """
    about = scores.result.report
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.8), layout="constrained")
        axis = figure.subplots()
        axis.set(xlabel=about.x_label, ylabel=about.y_label)
        axis.grid(alpha=0.3)
        at = place(axis, scores)
        for variant in scores.variants:
            _draw(axis, scores, variant, at)
        if scores.chance is not None:
            axis.axhline(scores.chance, color=GREY, ls=":", lw=1, label=scores.result.chance)
        figure.suptitle(about.title)
        figure.legend(loc="outside lower center", ncols=3)  # legible on a telephone
        figure.savefig(out, dpi=150, transparent=True)


def _draw(axis: Any, scores: Scores, variant: str, at: At) -> None:
    style: Any = of_variant(list(scores.result.variants).index(variant))
    found = [(at[v, c], one) for (v, c), one in scores.found.items() if v == variant]
    x, every = zip(*sorted(found, key=itemgetter(0)), strict=True)
    axis.plot(x, [one.value for one in every], **style, ms=4, label=variant)
    low, high = [one.low for one in every], [one.high for one in every]
    # the more bands, the paler: they must not hide the lines
    pale = min(0.15, 0.8 / len(scores.variants))
    axis.fill_between(x, low, high, color=style["color"], alpha=pale, lw=0)
    if len(x) == 1:  # a band has no width there
        axis.vlines(x, low, high, color=style["color"], alpha=0.5)
