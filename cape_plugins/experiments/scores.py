"""From what the evaluations write to tidy scores: condition, metric, value."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from cape_plugins.experiments.hosts import HOSTS
from cape_plugins.experiments.study import Evaluation

TIDY = [
    *("study", "host", "variant", "seed", "evaluation", "condition", "metric", "value"),
    *("higher_is_better", "trained_on", "items"),
]


def tidy(evaluation: Evaluation, host: str, path: Path) -> list[dict[str, Any]]:
    """One row for each condition and metric, in the order of the CSV.

    Args:
        evaluation: of the study.
        host: whose CSV.
        path: of the CSV; of a training's metrics for the command ``training``.

    Raises:
        ValueError: the CSV lacks a column.
    """
    rows = pd.read_csv(path, dtype={"condition": str})
    count, weight = HOSTS[host].items, evaluation.weight or HOSTS[host].weight
    if evaluation.script:
        counts = rows.groupby("condition", sort=False)["items"].first()
        rows = rows.pivot_table("value", "condition", "metric", sort=False)
        rows, count, weight = rows.assign(items=counts).reset_index(), "items", ""
    else:
        if evaluation.command == "training":
            rows = rows.pivot_table("value", "step", "name").reset_index()
            count = weight = ""
        rows = conditions(rows, evaluation, host)
    found = []
    for condition, group in rows.groupby("condition", sort=False):
        weights = group[weight] if weight else pd.Series(1, group.index)
        for metric, better in evaluation.metrics.items():
            mean = (group[metric] * weights).sum() / weights[group[metric].notna()].sum()
            row = {"condition": condition, "metric": metric, "value": float(mean)}
            row |= {"higher_is_better": better == "higher"}
            row["items"] = int(group[count].sum()) if count else None
            found.append(row)
    return [row for row in found if row["value"] == row["value"]]  # no NaN


def conditions(rows: pd.DataFrame, evaluation: Evaluation, host: str) -> pd.DataFrame:
    """The rows that the study wants, each with the name of its ``condition``."""
    names, where = evaluation.condition or list(HOSTS[host].condition), dict(evaluation.where)
    if host == "espnet" and "bin" not in names:
        where.setdefault("bin", "all")
    for name in (*names, *where):
        if name not in rows:
            raise ValueError(f"the evaluation's CSV has no column {name!r}, but {list(rows)}")
    for name, value in where.items():
        rows = rows[rows[name].astype(str) == str(value)]
    found: Any = evaluation.name or "all"
    if evaluation.ranges:
        edges = [0, *evaluation.ranges]
        labels = [f"{low + 1}–{high}" for low, high in pairwise(edges)]
        found = pd.cut(rows[names[0]], edges, labels=labels).astype(object)
    elif names:
        text = rows[names].map(lambda v: f"{v:g}" if isinstance(v, float) else str(v))
        found = text.agg(" ".join, axis=1)
    return rows.assign(condition=found).dropna(subset="condition")


def items(evaluation: Evaluation, host: str, raw: Path, path: Path) -> None:
    """Sums of single items by condition, for the bootstrap, of what the evaluation wrote."""
    rows = pd.read_csv(raw)
    if not evaluation.script:
        rows = conditions(rows, evaluation, host)
        summed = [name for name in rows if name in ("value", "weight") or name.startswith("stats_")]
        same = ["condition", "metric", "item"]
        rows = rows.groupby(same, sort=False)[summed].sum().reset_index()
    rows.to_csv(path, index=False)
