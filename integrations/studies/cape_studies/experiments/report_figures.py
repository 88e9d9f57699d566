"""The figure of scores, to be read on light and on dark pages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from cape_studies.experiments.report_scores import Scores

LINES, MARKERS = ("-", "--", ":", "-."), "osD^vPX*<>"
GREY = "#767676"  # as far from white as from black
TEXT = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
STYLE: Any = {**dict.fromkeys(TEXT, GREY), "legend.framealpha": 0, "legend.fontsize": "small"}


def draw(panels: Sequence[Scores], out: Path, title: str) -> None:
    """Score against condition: a line a variant, its interval shaded, the paper's as crosses.

    Of fewer than three trainings each is a dot. What all variants were trained on is grey. There is
    no line where a training lacks its score.

    Args:
        panels: what is drawn, side by side.
        out: the picture.
        title: over it.
    """
    about, width = panels[0].result.about, 9.0 if len(panels) == 1 else 2.4 + 3.6 * len(panels)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, 4.4), layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, scores in zip(axes, panels, strict=True):
            axis.set(xlabel=about.x_label, title=scores.evaluation if len(panels) > 1 else "")
            axis.grid(alpha=0.3)
            places = _places(axis, scores.conditions)
            for condition, place in places.items():
                if all((variant, condition) in scores.seen for variant in scores.variants):
                    axis.axvline(place, color=GREY, alpha=0.25, lw=8, zorder=0)
            for variant in scores.variants:
                _draw(axis, scores, variant, places)
        axes[0].set_ylabel(about.y_label)
        figure.suptitle(title)
        named = [zip(*axis.get_legend_handles_labels(), strict=True) for axis in axes]
        lines = {label: line for pairs in named for line, label in pairs}
        figure.legend(lines.values(), lines.keys(), loc="outside right upper")
        figure.savefig(out, dpi=150, transparent=True)


def of_variant(index: int) -> dict[str, str]:
    """Its colour and line: ten colours, the next ten variants in dashes."""
    return {"color": f"C{index % 10}", "ls": LINES[index // 10 % len(LINES)]}


def _draw(axis: Any, scores: Scores, variant: str, places: dict[str, float]) -> None:
    index = scores.result.variants.index(variant)
    style, color = of_variant(index), f"C{index % 10}"
    found = {places[c]: one for (v, c), one in scores.found.items() if v == variant}
    x = sorted(found)
    marker = MARKERS[index % 10] if len(x) <= 30 else ""
    label = f"{variant} †" if scores.lacking[variant] else variant
    axis.plot(x, [found[at].value for at in x], **style, marker=marker, ms=4, label=label)
    low, high = [found[at].low for at in x], [found[at].high for at in x]
    # many bands hide the lines
    axis.fill_between(x, low, high, color=color, alpha=min(0.15, 0.8 / len(scores.variants)), lw=0)
    axis.vlines(x, low, high, color=color, alpha=0.5 if len(x) == 1 else 0)
    few = [(at, value) for at in x if not found[at].known for value in found[at].each]
    if any(len(one.each) > 1 for one in found.values()):
        axis.scatter(*zip(*few, strict=True), color=color, s=4) if few else None
    paper = [
        (places[row.condition], row.value)
        for row in scores.paper
        if row.variant == variant
        if row.condition in places
    ]
    if paper:
        axis.plot(
            *zip(*paper, strict=True), color=color, ls="", marker="x", label=f"{variant}, paper"
        )


def _places(axis: Any, conditions: Sequence[str]) -> dict[str, float]:
    """Where conditions are on the x axis: at their numbers, else side by side."""
    try:
        places = {one: float(one) for one in conditions}
    except ValueError:
        places = {one: float(i) for i, one in enumerate(conditions)}
        axis.set_xlim(-0.5, len(conditions) - 0.5)
    if len(conditions) <= 20:
        axis.set_xticks(
            list(places.values()), conditions, rotation=30 if len(conditions) > 9 else 0
        )
    return places
