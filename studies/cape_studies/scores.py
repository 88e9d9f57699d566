"""Reads what evaluations write, and makes tidy scores from it: condition, metric, value."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from cape_studies import hosts
from cape_studies.config import Evaluation
from cape_studies.items import PARTS, STATS
from cape_studies.settings import known
from cape_studies.tidy import read

RATIOS = "percent", "mean"  # scores whose rows of one condition can be averaged


def tidy(evaluation: Evaluation, host: str, path: Path) -> list[dict[str, Any]]:
    """One row for each condition and metric, in the order of the CSV; a missing value is NaN.

    Args:
        evaluation: of the study.
        host: whose CSV.
        path: of the CSV.

    Raises:
        ValueError: the CSV cannot be read, lacks a column or a metric, or several rows of a
            condition cannot be averaged.
    """
    rows = read(path, ["metric", "value"])
    known(f"metrics of {path}", evaluation.metrics, set(rows["metric"].dropna()))
    rows = conditions(rows, evaluation, host, path)
    rows = rows[rows["metric"].isin(evaluation.metrics)]
    defaults = {"how": None, "weight": 1.0, "items": None}
    rows = rows.assign(**{name: rows.get(name, value) for name, value in defaults.items()})
    found = []
    for (condition, metric), group in rows.groupby(["condition", "metric"], sort=False):
        how, value = group["how"].iat[0], group["value"].iat[0]
        if len(group) > 1:
            if how not in (*RATIOS, None):
                raise ValueError(
                    f"{path}: {len(group)} values of {metric} in condition {condition!r}, which "
                    f"cannot be averaged ({how}): name more of {list(group)} in condition"
                )
            value = (group["value"] * group["weight"]).sum(skipna=False) / group["weight"].sum()
        found.append(
            {
                "condition": condition,
                "metric": metric,
                "value": float(value),
                "higher_is_better": evaluation.metrics[metric] == "higher",
                "items": int(group["items"].sum()) if group["items"].notna().all() else None,
                "how": how if isinstance(how, str) else None,
            }
        )
    return found


def conditions(rows: pd.DataFrame, evaluation: Evaluation, host: str, path: Path) -> pd.DataFrame:
    """The rows that the study uses, each with the name of its ``condition``."""
    if evaluation.script:
        known(f"columns of {path}", ["condition"], rows)
        return rows.dropna(subset="condition")
    about = hosts.host(host)
    names = evaluation.condition or ([] if evaluation.name else list(about.CONDITION))
    whole = [name for name in about.WHOLE if name not in names and name in rows]
    known(f"columns of {path}", names, rows)
    for name in whole:
        rows = rows[rows[name] == "all"]
    found: Any = evaluation.name or "all"
    if evaluation.ranges:
        edges = [0, *evaluation.ranges]
        labels = [f"{low + 1}–{high}" for low, high in pairwise(edges)]
        found = pd.cut(rows[names[0]], edges, labels=labels).astype(object)
    elif names:
        # 0.5, and 8 for 8.0
        each = rows[names].map(lambda one: f"{one:g}" if isinstance(one, float) else str(one))
        found = each.agg(" ".join, axis=1)
    return rows.assign(condition=found).dropna(subset="condition")


def summed(evaluation: Evaluation, host: str, raw: Path) -> pd.DataFrame:
    """The items of an evaluation, summed for each condition, which the intervals of reports need.

    Raises:
        ValueError: the file cannot be read or lacks something.
    """
    rows = conditions(read(raw, ["metric", "how", "item"]), evaluation, host, raw)
    known(f"how of {raw}", rows["how"].unique(), PARTS)
    sums = [name for name in rows if name in ("value", "weight", *STATS)]
    same = ["condition", "metric", "how", "item", *rows.columns.intersection(["group"])]
    return rows.groupby(same, sort=False, dropna=False)[sums].sum().reset_index()
