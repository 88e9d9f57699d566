"""Tables of scores, of differences from the baseline, and of ours beside the paper's."""

from collections.abc import Mapping
from dataclasses import dataclass

from cape_plugins.evaluation import table
from cape_plugins.experiments.report_intervals import RESAMPLES, SEEDS, Interval, Scores


@dataclass(frozen=True)
class Table:
    """Cells between double stars are bold, as in Markdown."""

    title: str
    header: list[str]
    body: list[list[str]]
    legend: str

    def markdown(self) -> str:
        """With its title and legend."""
        return f"### {self.title}\n\n{table.table(self.header, self.body)}\n{self.legend}\n"


def tables(scores: Scores) -> list[Table]:
    """Scores, differences from the baseline and, where it has any, the paper's numbers."""
    arrow = f"{'↑ higher' if scores.higher else '↓ lower'} is better."
    title = f"{', '.join(dict.fromkeys([scores.evaluation, scores.metric]))} {arrow[0]}"
    arrow += " In bold: conditions seen in training." if scores.seen else ""
    found = [_grid(scores, scores.found, title, arrow)]
    if scores.differences:
        pairs = f"{title}, difference from {scores.baseline}"
        found.append(_grid(scores, scores.differences, pairs, "Of the same seed and items.", "+"))
    body, digits = [], _digits(scores)
    for row in scores.paper:
        ours = scores.found.get((row.variant, row.condition))
        if ours is not None:
            theirs = f"{row.value:g}" + (f" ± {row.spread:g}" if row.spread is not None else "")
            less = _cell(Interval(ours.value - row.value), digits, "+")
            mine = _cell(ours, digits)
            body.append([row.variant, row.condition, mine, theirs, less, row.source])
    if body:
        header = ["variant", "condition", "ours", "paper", "ours − paper", "source"]
        found.append(Table(f"{title}, beside the paper", header, body, ""))
    return found


def _grid(
    scores: Scores,
    found: Mapping[tuple[str, str], Interval],
    title: str,
    legend: str,
    sign: str = "",
) -> Table:
    """Variants down, conditions across, and what the brackets are."""
    body = []
    for variant in scores.variants:
        mine = [found.get((variant, condition)) for condition in scores.conditions]
        seeds = sorted({one.seeds for one in mine if one is not None})
        texts = [_cell(one, _digits(scores), sign) for one in mine]
        for i, condition in enumerate(scores.conditions):
            if texts[i] and (variant, condition) in scores.seen:
                texts[i] = f"**{texts[i]}**"
        if seeds:
            body.append([variant, "–".join(map(str, seeds)), *texts])
    ways = []
    if any(one.seeds >= SEEDS for one in found.values()):
        ways.append("over seeds by Student's t")
    if few := {one.seeds for one in found.values() if one.seeds < SEEDS and one.known}:
        of = {(1,): "one seed", (2,): "two seeds", (1, 2): "one or two seeds"}[tuple(sorted(few))]
        ways.append(f"of {of} over test items by a bootstrap of {RESAMPLES:,} resamples")
    legend += f" Brackets: 95 % interval {'; '.join(ways)}." if ways else ""
    if any(one.items for one in found.values()):
        legend += " Parentheses: the same over test items, of the mean of the seeds."
    if not all(one.known for one in found.values()):
        legend += f" No brackets: fewer than {SEEDS} seeds, without (the same) test items."
    return Table(title, ["variant", "seeds", *scores.conditions], body, legend)


def _cell(one: Interval | None, digits: int, sign: str = "") -> str:
    """``+2.34 [+1.10, +3.58] (+1.50, +3.20)``."""
    if one is None:
        return ""
    text = "{} [{}, {}]" if one.known else "{}"
    numbers = [*one[:3], *(one.items or ())]
    text += " ({}, {})" if one.items else ""
    return text.format(*(f"{number:{sign}.{digits}f}" for number in numbers)).replace("-", "−")


def _digits(scores: Scores) -> int:
    """Two decimals from 10 on, else three."""
    return 2 if max((abs(one.value) for one in scores.found.values()), default=0) >= 10 else 3
