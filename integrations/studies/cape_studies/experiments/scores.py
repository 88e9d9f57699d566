"""From what the evaluations write to tidy scores: condition, metric, value."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from cape_studies.experiments.hosts import HOSTS
from cape_studies.experiments.study import Evaluation, known

TIDY = [
    *("study", "host", "variant", "seed", "evaluation", "condition", "metric", "value"),
    *("higher_is_better", "trained_on", "items", "how"),
]
RATIOS = "percent", "mean"  # those that rows of one condition may be put together by


def tidy(evaluation: Evaluation, host: str, path: Path) -> list[dict[str, Any]]:
    """One row for each condition and metric, in the order of the CSV; a missing value is NaN.

    Args:
        evaluation: of the study.
        host: whose CSV.
        path: of the CSV; of a training's metrics for the command ``training``.

    Raises:
        ValueError: the CSV cannot be read, lacks a column or a metric, or several rows of a
            condition cannot be put together.
    """
    rows = read(path).rename(columns={"name": "metric"})
    known(f"columns of {path}", ["metric", "value"], rows)
    known(f"metrics of {path}", evaluation.metrics, set(rows["metric"]))
    rows = conditions(rows, evaluation, host, path)
    rows = rows[rows["metric"].isin(evaluation.metrics)]
    defaults = {"how": None, "weight": 1.0, "items": None}
    rows = rows.assign(**{name: rows.get(name, value) for name, value in defaults.items()})
    rows["value"] = pd.to_numeric(rows["value"], errors="coerce")
    found = []
    for (condition, metric), group in rows.groupby(["condition", "metric"], sort=False):
        how = group["how"].iloc[0]
        if len(group) > 1 and how not in (*RATIOS, None):
            raise ValueError(
                f"{path}: {len(group)} values of {metric} in condition {condition!r}, which "
                f"cannot be averaged ({how}): name more of {list(group)} in condition or where"
            )
        weighed = (group["value"] * group["weight"]).sum(skipna=False) / group["weight"].sum()
        found.append(
            {
                "condition": condition,
                "metric": metric,
                "value": float(group["value"].iloc[0] if len(group) == 1 else weighed),
                "higher_is_better": evaluation.metrics[metric] == "higher",
                "items": int(group["items"].sum()) if group["items"].notna().all() else None,
                "how": how if isinstance(how, str) else None,
            }
        )
    return found


def read(path: Path) -> pd.DataFrame:
    """A CSV.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        return pd.read_csv(path, dtype={"condition": str, "item": str}, low_memory=False)
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def conditions(rows: pd.DataFrame, evaluation: Evaluation, host: str, path: Path) -> pd.DataFrame:
    """The rows that the study wants, each with the name of its ``condition``."""
    if evaluation.script:
        known(f"columns of {path}", ["condition"], rows)
        return rows.dropna(subset="condition")
    names, where = evaluation.condition or list(HOSTS[host].condition), dict(evaluation.where)
    if host == "espnet" and "bin" not in names:
        where.setdefault("bin", "all")
    known(f"columns of {path}", [*names, *where], rows)
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


def items(evaluation: Evaluation, host: str, raw: Path) -> pd.DataFrame:
    """Sums of single items by condition, for the bootstrap, of what the evaluation wrote.

    Raises:
        ValueError: the file cannot be read or lacks a column.
    """
    rows = conditions(read(raw), evaluation, host, raw)
    same = [name for name in ("condition", "metric", "how", "item") if name in rows]
    summed = [name for name in rows if name in ("value", "weight") or name.startswith("stats_")]
    return rows.groupby(same, sort=False, dropna=False)[summed].sum().reset_index()
