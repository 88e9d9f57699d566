"""The tables of docs/intervals.md: how often intervals are wrong in benchmarks/intervals.py.

tools/docs/tables.py fills them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from cape_studies.stats import ITEMS

MEASURED = Path(__file__).parents[2] / "benchmarks" / "results"
#: rows of intervals.csv that are shown
SHOWN = [
    "a score",
    "a score, of other test items, ± half the spread",
    "one pair",
    "one pair, one spreads 5 times as much",
    "all pairs of 3",
    "all pairs of 7",
]


def cell(value: float | None, decimals: int) -> str:
    """As text; nothing where nothing was measured."""
    return "" if value is None or pd.isna(value) else f"{value:.{decimals}f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    return tabulate(rows, heads, tablefmt="github", disable_numparse=True) + "\n"


def of_intervals() -> str:
    """How often intervals are wrong or find a difference, by ``benchmarks/intervals.py``."""
    found = pd.read_csv(MEASURED / "intervals.csv").set_index(["compared", "trainings"])
    shown = [(part, trainings) for part in ("wrong", "found") for trainings in ("3", "5")]
    rows = [
        [name, *(cell(100 * found.at[(name, trainings), part], 1) for part, trainings in shown)]
        for name in SHOWN
    ]
    return table(["%", *(f"{part}, {trainings} seeds" for part, trainings in shown)], rows)


def of_answers() -> str:
    """How often answers say "worse" wrongly, or find what is worse, by the same script."""
    found = pd.read_csv(MEASURED / "answers.csv")
    found = found[found["items"] >= ITEMS].query("variants == 7 and trainings == 5 and right <= 95")
    shares = "by_trainings", "wrong", "found_5", "found_10"
    rows = [
        [
            *(f"{one[name]:g}" for name in ("items", "right")),
            f"{100 * one['agree']:.0f}",
            *(cell(100 * one[name], 1) for name in shares),
        ]
        for _, one in found.iterrows()
    ]
    heads = ["test items", "right, %", "two trainings agree on, %", "wrong by trainings alone, %"]
    return table([*heads, "wrong, %", "found: 5 points, %", "found: 10 points, %"], rows)


def of_groups() -> str:
    """How often answers of seven variants and items in groups of one size say "worse" wrongly, by
    the same script."""
    found = pd.read_csv(MEASURED / "groups.csv").query(
        "trainings == 5 and variants == 7 and alike == 0.3 and groups * largest == 300"
    )
    rows = [
        [f"{one['groups']:g}", *(cell(100 * one[name], 1) for name in ("by_items", "wrong"))]
        for _, one in found.iterrows()
    ]
    return table(["groups", "wrong if items counted, %", "wrong, %"], rows)


def of_unfinished() -> str:
    """How often answers of unfinished studies say "worse" wrongly, by the same script."""
    found = pd.read_csv(MEASURED / "unfinished.csv")
    shares = ("by_trainings", "wrong")
    rows = [
        [one["trainings"], *(cell(100 * one[name], 1) for name in shares)]
        for _, one in found.iterrows()
    ]
    return table(["trainings of each variant", "by trainings alone, %", "wrong, %"], rows)


#: name of a table → what makes it
TABLES: dict[str, Callable[[], str]] = {
    "intervals": of_intervals,
    "answers": of_answers,
    "groups": of_groups,
    "unfinished": of_unfinished,
}
