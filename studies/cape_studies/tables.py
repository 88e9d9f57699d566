"""Tables of scores, and of differences from the baseline."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd
from tabulate import tabulate

from cape_studies.compare import Scores
from cape_studies.stats import Estimate

NO_SCORE = "†"

#: whether trainings of a seed are pairs → how their differences are compared
TESTS = {False: "Welch's t", True: "Student's t of pairs of a seed, which share trained weights"}


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
    """Scores; and differences from the baseline, if there is one."""
    arrow = f"{'↑ higher' if scores.higher else '↓ lower'} is better."
    names = dict.fromkeys(filter(None, [scores.evaluation, scores.metric]))
    title = f"{', '.join(names)} {arrow[0]}"
    arrow += " In bold: conditions seen in training." if scores.seen else ""
    found = [_grid(scores, scores.found, title, arrow)]
    if scores.differences:
        base = scores.result.report.baseline
        pairs = f"{title}, difference from {base}"
        found.append(_grid(scores, scores.differences, pairs, "Each is one comparison.", base))
    return found


def _grid(
    scores: Scores,
    found: Mapping[tuple[str, str], Estimate],
    title: str,
    legend: str,
    base: str | None = None,
) -> Table:
    """A row for each variant, a column for each condition; the legend explains marks.

    Args:
        found: scores, or differences from the variant ``base``.
    """
    digits = 2 if scores.most >= 10 else 3
    rows, few = [], False
    for variant in scores.variants:
        mine = {c: one for (v, c), one in found.items() if v == variant}
        if not mine:
            continue
        trainings = dict.fromkeys(scores.trainings[one] for one in (variant, base or variant))
        row = {"variant": variant, "trainings": " and ".join(map(str, trainings))}
        row |= dict.fromkeys(scores.conditions, "")
        for condition, one in mine.items():
            each = scores.values[variant, condition] if base is None and not one.known else ()
            few |= len(each) > 1
            text = cell(one, digits, "" if base is None else "+", each)
            row[condition] = f"**{text}**" if condition in scores.seen else text
        rows.append(row)
    if (chance := scores.chance) is not None and base is None:
        same = dict.fromkeys(scores.conditions, _number(chance, digits))
        rows.append({"variant": scores.result.chance, **same})
    if few:
        legend += " Parentheses: each training by seed, where there is no interval."
    if any(one.known for one in found.values()):
        test = "Student's t"
        if base is not None:
            ways = {scores.paired(variant, base) for variant, _ in found}
            test = " or ".join(TESTS[way] for way in sorted(ways))
        legend += f" Brackets: 95 % interval for other trainings on the same test items, {test}."
    if any(one.items == one.items for one in found.values()):
        legend += " ±: standard error of the choice of test items, no part of the interval."
    if any(one.value != one.value for one in found.values()):
        legend += f" {NO_SCORE} A training has no score there, so there is no mean."
    return Table(title, rows, legend)


def cell(one: Estimate, digits: int, sign: str = "", each: Sequence[float] | pd.Series = ()) -> str:
    """``+2.34 ± 0.50 [+1.10, +3.58]``; a dagger for no mean.

    Args:
        one: the score, or the difference.
        digits: decimals.
        sign: + shows the sign of positive numbers too.
        each: trainings' scores, in parentheses if there are two or more.
    """
    text = NO_SCORE if one.value != one.value else _number(one.value, digits, sign)
    if one.items == one.items:
        text += f" ± {_number(one.items, digits)}"
    if one.known:
        text += f" [{_number(one.low, digits, sign)}, {_number(one.high, digits, sign)}]"
    if len(each) > 1:
        text += f" ({', '.join(_number(value, digits) for value in each)})"
    return text


def _number(number: float, digits: int, sign: str = "") -> str:
    return "–" if number != number else f"{number:{sign}.{digits}f}".replace("-", "−")
