"""Tables of scores, and of differences from the baseline."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from tabulate import tabulate

from cape_studies.experiments.report_scores import Score, Scores

NO_SCORE = "†"
ALONE = "‡"  # marks intervals for other trainings alone, if a table has both kinds


class Table(NamedTuple):
    """Rows with the same columns; text between double stars is bold."""

    title: str
    rows: list[dict[str, str]]
    legend: str

    def markdown(self) -> str:
        """The table in Markdown, with its title and legend."""
        cells = tabulate(self.rows, "keys", "github", disable_numparse=True)
        return f"### {self.title}\n\n{cells}\n\n{self.legend}\n"

    def html(self) -> str:
        """The table in HTML, without title and legend."""
        cells = tabulate(self.rows, "keys", "html", disable_numparse=True)
        return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", cells)


def tables(scores: Scores) -> list[Table]:
    """Scores, and differences from the baseline."""
    arrow = f"{'↑ higher' if scores.higher else '↓ lower'} is better."
    title = f"{', '.join(dict.fromkeys([scores.evaluation, scores.metric]))} {arrow[0]}"
    if (many := len(scores.conditions)) > 50:
        return [Table(title, [], f"{many} conditions: see the figure and scores.csv.")]
    arrow += " In bold: conditions seen in training." if scores.seen else ""
    found = [_grid(scores, scores.found, title, arrow)]
    if scores.differences:
        base = scores.result.study.report.baseline
        ways = {scores.paired(variant, base) for variant, _ in scores.differences}
        how = "Trainings of a seed, from the same weights, are pairs." if True in ways else ""
        how += " Of means over trainings, which are not paired." if False in ways else ""
        pairs = f"{title}, difference from {base}"
        found.append(_grid(scores, scores.differences, pairs, how.strip(), "+"))
    return found


def _grid(
    scores: Scores, found: Mapping[tuple[str, str], Score], title: str, legend: str, sign: str = ""
) -> Table:
    """A row for each variant, a column for each condition; the legend explains marks."""
    ways = {one.items for one in found.values() if one.known}
    digits = _digits(scores)
    lacking = any(one.lacking for one in found.values())
    wanted = scores.result.wanted
    rows = []
    for variant in scores.variants:
        mine = {c: one for (v, c), one in found.items() if v == variant}
        if not mine:
            continue
        counts = sorted(
            {" and ".join(map(str, dict.fromkeys(one.trainings))) for one in mine.values()}
        )
        row = {"variant": variant, "trainings": ", ".join(counts)}
        if not sign and (asked := wanted.get(variant, 0)) > max(
            one.trainings[0] for one in mine.values()
        ):
            row["trainings"] += f" of {asked}"
        if lacking:
            seeds = sorted(set().union(*(one.lacking for one in mine.values())))
            row["seeds without a score"] = ", ".join(map(str, seeds))
        row |= dict.fromkeys(scores.conditions, "")
        for condition, one in mine.items():
            text = cell(one, digits, sign)
            text += ALONE if one.known and not one.items and len(ways) > 1 else ""
            row[condition] = f"**{text}**" if (variant, condition) in scores.seen else text
        rows.append(row)
    if any(len(one.each) > 1 and not (one.known or one.lacking) for one in found.values()):
        legend += " Parentheses: each training; of fewer than three there is no interval."
    if ways:
        legend += " Brackets: 95 % interval for other trainings"
        legend += (
            " and other test items." if True in ways else "; single test items are not stored."
        )
    if len(ways) > 1:
        legend += f" {ALONE}: for other trainings alone."
    if lacking:
        legend += f" {NO_SCORE} A training has no score there: no mean, only the others' scores."
    return Table(title, rows, legend)


def cell(one: Score, digits: int, sign: str = "") -> str:
    """``+2.34 [+1.10, +3.58]``; of few trainings ``+2.34 (+1.10, +3.58)``; a dagger for no mean."""
    value, *each = (_number(x, digits, sign) for x in (one.value, *one.each))
    if one.known:
        return f"{value} [{_number(one.low, digits, sign)}, {_number(one.high, digits, sign)}]"
    if one.lacking:
        return f"{NO_SCORE} ({', '.join(each)})"
    return f"{value} ({', '.join(each)})" if len(each) > 1 else value


def _number(number: float, digits: int, sign: str = "") -> str:
    return "–" if number != number else f"{number:{sign}.{digits}f}".replace("-", "−")


def _digits(scores: Scores) -> int:
    """Decimals: two if a score is 10 or more, else three."""
    values = [abs(x) for one in scores.found.values() for x in one.each if x == x]
    return 2 if max(values, default=0) >= 10 else 3
