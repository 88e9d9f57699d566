"""Tables of scores, of differences from the baseline, and of ours beside the paper's."""

from collections.abc import Mapping
from dataclasses import dataclass

from tabulate import tabulate

from cape_studies.experiments.report_scores import TRAININGS, Score, Scores

NO_SCORE = "†"
ALONE = "‡"  # an interval over trainings alone, in a table that has others too


@dataclass(frozen=True)
class Table:
    """Cells between double stars are bold, as in Markdown."""

    title: str
    header: list[str]
    body: list[list[str]]
    legend: str

    def markdown(self) -> str:
        """With its title and legend."""
        body = tabulate(self.body, self.header, tablefmt="github", disable_numparse=True)
        return f"### {self.title}\n\n{body}\n\n{self.legend}\n"


def tables(scores: Scores) -> list[Table]:
    """Scores, differences from the baseline and, where it has any, the paper's numbers."""
    arrow = f"{'↑ higher' if scores.higher else '↓ lower'} is better."
    title = f"{', '.join(dict.fromkeys([scores.evaluation, scores.metric]))} {arrow[0]}"
    if (many := len(scores.conditions)) > 50:
        return [Table(title, [], [], f"{many} conditions: see the figure and scores.csv.")]
    arrow += " In bold: conditions seen in training." if scores.seen else ""
    found = [_grid(scores, scores.found, title, arrow)]
    if scores.differences:
        pairs = f"{title}, difference from {scores.baseline}"
        found.append(_grid(scores, scores.differences, pairs, "Of the same seeds.", "+"))
    body, digits = [], _digits(scores)
    for row in scores.paper:
        ours = scores.found.get((row.variant, row.condition))
        if ours is not None:
            theirs = f"{row.value:g}" + (f" ± {row.spread:g}" if row.spread is not None else "")
            less = "" if ours.missing else _number(ours.value - row.value, digits, "+")
            body.append([row.variant, row.condition, cell(ours, digits), theirs, less, row.source])
    if body:
        header = ["variant", "condition", "ours", "paper", "ours − paper", "source"]
        found.append(Table(f"{title}, beside the paper", header, body, ""))
    return found


def _grid(
    scores: Scores, found: Mapping[tuple[str, str], Score], title: str, legend: str, sign: str = ""
) -> Table:
    """Variants down, conditions across, and what brackets, parentheses and marks are."""
    ways = {one.items for one in found.values() if one.known}
    lacking = {variant: seeds for variant, seeds in scores.lacking.items() if seeds}
    body = []
    for variant in scores.variants:
        mine = {c: found[variant, c] for c in scores.conditions if (variant, c) in found}
        texts = []
        for condition in scores.conditions:
            one = mine.get(condition)
            text = cell(one, _digits(scores), sign) if one else ""
            text += ALONE if one and one.known and not one.items and len(ways) > 1 else ""
            texts.append(f"**{text}**" if text and (variant, condition) in scores.seen else text)
        if mine:
            about = [", ".join(map(str, sorted(lacking.get(variant, []))))] if lacking else []
            counts = sorted({len(one.each) for one in mine.values()})
            body.append([variant, "–".join(map(str, counts)), *about, *texts])
    if any(1 < len(one.each) < TRAININGS for one in found.values()):
        legend += " Parentheses: each training; of fewer than three there is no interval."
    if True in ways:
        legend += " Brackets: 95 % interval over trainings and test items, by a bootstrap of both."
    if False in ways:
        mark = f"{ALONE}: the" if len(ways) > 1 else "Brackets: 95 %"
        legend += f" {mark} interval over trainings alone (Student's t), without test items."
    if lacking:
        legend += f" {NO_SCORE} A training has no score there: those of the others, and no mean."
    about = ["seeds without a score"] if lacking else []
    return Table(title, ["variant", "trainings", *about, *scores.conditions], body, legend)


def cell(one: Score, digits: int, sign: str = "") -> str:
    """``+2.34 [+1.10, +3.58]``, of few trainings ``+2.34 (+1.10, +3.58)``, of none a dagger."""
    each = ", ".join("–" if x != x else _number(x, digits, sign) for x in one.each)
    if one.missing:
        return f"{NO_SCORE} ({each})"
    text = _number(one.value, digits, sign)
    if one.known:
        return f"{text} [{_number(one.low, digits, sign)}, {_number(one.high, digits, sign)}]"
    return f"{text} ({each})" if len(one.each) > 1 else text


def _number(number: float, digits: int, sign: str = "") -> str:
    return f"{number:{sign}.{digits}f}".replace("-", "−")


def _digits(scores: Scores) -> int:
    """Two decimals from 10 on, else three."""
    values = [abs(x) for one in scores.found.values() for x in one.each if x == x]
    return 2 if max(values, default=0) >= 10 else 3
