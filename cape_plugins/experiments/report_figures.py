"""A study's figure, and the curves of its trainings, for a light and a dark page."""

from pathlib import Path

from cape_plugins.evaluation import figure
from cape_plugins.experiments.report_intervals import Scores
from cape_plugins.experiments.report_read import Result
from cape_plugins.plot.canvas import pyplot

LINES = "-", "--", ":", "-."


def draw(result: Result, scores: Scores, out: Path, dark: bool) -> None:
    """Score against condition: a line a variant, its interval shaded, grey where all were trained.

    Args:
        result: the study's.
        scores: what is drawn.
        out: the picture.
        dark: for a dark page: transparent, with light text.
    """
    about, conditions = result.study.report, scores.conditions
    with (
        pyplot().style.context(_style(dark)),
        figure.axes(out, about.x_label, about.y_label, [about.title]) as (axis,),
    ):
        for at, condition in enumerate(conditions):
            if all((variant, condition) in scores.seen for variant in scores.variants):
                axis.axvspan(at - 0.5, at + 0.5, color="0.5", alpha=0.2, lw=0, zorder=0)
        for index, variant in enumerate(scores.variants):
            of = {at: scores.found.get((variant, one)) for at, one in enumerate(conditions)}
            found = [one for one in of.values() if one is not None]
            aside = 0.05 * index * (len(conditions) == 1)
            tested = [at + aside for at, one in of.items() if one is not None]
            color, line = _of_variant(index)
            style = {"color": color, "ls": line, "marker": figure.MARKERS[index % 10], "ms": 4}
            figure.line(axis, tested, [[one.value] for one in found], variant, **style)
            low, high = [one.low for one in found], [one.high for one in found]
            alpha = min(0.15, 0.8 / len(scores.variants))  # many bands hide the lines
            axis.fill_between(tested, low, high, color=color, alpha=alpha, lw=0)
            if len(conditions) == 1:  # where no band can be seen
                axis.vlines(tested, low, high, color=color, alpha=0.5)
        axis.set_xticks(range(len(conditions)), conditions)
        axis.set_xlim(-0.5, len(conditions) - 0.5)


def draw_training(result: Result, out: Path, dark: bool) -> None:
    """The training's loss, or what else was measured first: a line a run, coloured by variant."""
    names = [name for run in result.runs for name in dict.fromkeys(run.metrics["name"])]
    name = next((one for one in ["loss", *names] if one in names and "loss" in one), names[0])
    drawn: set[str] = set()
    with (
        pyplot().style.context(_style(dark)),
        figure.axes(out, "updates", name, [""]) as (axis,),
    ):
        for run in result.runs:
            rows = run.metrics[run.metrics["name"] == name]
            label = "" if run.variant in drawn else run.variant
            color, line = _of_variant(list(result.study.variants).index(run.variant))
            axis.plot(rows["step"], rows["value"], color=color, ls=line, lw=1, label=label or "_")
            drawn.add(run.variant)


def _of_variant(index: int) -> tuple[str, str]:
    """Its colour and line: ten colours, the next ten variants in dashes."""
    return f"C{index % 10}", LINES[index // 10 % len(LINES)]


def _style(dark: bool) -> list[str | dict[str, object]]:
    cycle = pyplot().rcParamsDefault["axes.prop_cycle"]
    clear = {"savefig.transparent": True, "legend.framealpha": 0, "axes.prop_cycle": cycle}
    return ["dark_background", clear] if dark else []
