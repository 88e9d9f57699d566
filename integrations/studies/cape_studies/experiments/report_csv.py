"""Evaluators' CSVs as a result to show: a line for each model and test, trainings averaged."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from cape_studies.evaluation.output import VALUES
from cape_studies.experiments.report_read import Result, table
from cape_studies.experiments.scores import TIDY
from cape_studies.experiments.study import Report, known

if TYPE_CHECKING:
    from cape_studies.experiments.report import ReportOptions

LOWER = {"wer", "cer", "loss"}  # the metrics of which less is better


def read(options: "ReportOptions") -> Result:
    """Lines over a column of evaluators' CSVs; see :class:`report.ReportOptions`.

    Rows ``all`` are left out where x is their column; where it is not, the others are.

    Raises:
        ValueError: a file cannot be read, lacks a column or a metric, or nothing varies.
    """
    columns = ["model", *VALUES]
    every = pd.concat(
        [table(one, columns).assign(file=str(one)) for one in options.source], ignore_index=True
    )
    metric = options.metric or next(iter(every["metric"]), "")
    known("--metric", [metric] if len(every) else [], set(every["metric"]))
    rows = every[(every["metric"] == metric) & (~(every["items"] < options.least))].copy()
    if rows.empty:
        raise ValueError(f"no rows with {options.least} test items: give a smaller --least")
    training = "checkpoint" if "checkpoint" in rows else "file"
    used = rows.dropna(axis=1, how="all").columns
    tests = [name for name in used if name not in ("model", "file", "checkpoint", *VALUES)]
    within = rows.groupby(["model", training])
    inside = [name for name in tests if (within[name].nunique() > 1).any()]
    x, panels, title = options.x or [*inside, *tests, ""][0], options.panels, options.title
    known("--x", [x], tests)
    known("--panels", [panels] if panels else [], tests)
    rows[tests] = rows[tests].map(_text)
    for name in tests:
        if "all" in set(rows[name]):
            rows = rows[(rows[name] == "all") != (name == x)]
    shown = [one for one in (inside if options.group else tests) if one not in (x, panels)]
    shown = [one for one in shown if rows[one].nunique() > 1]
    names = _grouped(rows, options.group) if options.group else rows["model"]
    if not options.group and (rows.groupby("model")["file"].nunique() > 1).any():
        names = names + ", " + rows["file"].map(lambda path: Path(path).stem)
    tested = rows[shown].to_dict("records")
    rows["variant"] = [
        ", ".join([name, *(f"{key} {value}" for key, value in each.items() if value)])
        for name, each in zip(names, tested, strict=True)
    ]
    mine = rows.groupby("variant")[training]
    rows["seed"] = mine.transform(lambda of: pd.factorize(of)[0])
    rows["evaluation"] = rows[panels] if panels else metric
    if options.window > 1:
        lines = rows.groupby(["evaluation", "variant", "seed"], sort=False)
        rows["value"] = pd.concat([_smoothed(of, options.window) for _, of in lines])
    name = title or metric
    rows = rows.rename(columns={x: "condition"}).assign(
        study=name, host="", higher_is_better=metric not in LOWER
    )
    rows["trained_on"] = rows["condition"].isin(options.trained_on)
    rows["condition"] = rows["condition"].replace("", "–")  # the model's own
    variants = list(dict.fromkeys(rows["variant"]))
    about: dict[str, Any] = {"baseline": variants[0], "evaluation": rows["evaluation"].iat[0]}
    unit = " (%)" if (rows["how"] == "percent").all() else ""
    about |= {"metric": metric, "x_label": x, "y_label": f"{metric}{unit}", "title": title}
    return Result(name, name, Report(**about), rows[TIDY], rows[:0], variants, [])


def _smoothed(of: pd.DataFrame, window: int) -> pd.Series:
    """The moving average, centred; at both ends of what is left of the window."""
    parts = pd.DataFrame({"value": of["value"] * of["weight"], "weight": of["weight"]})
    sums = parts.rolling(window, 1, center=True).sum()
    return sums["value"] / sums["weight"]


def _grouped(rows: pd.DataFrame, group: str) -> pd.Series:
    """What the expression finds in each row's place."""
    try:
        expression = group if re.compile(group).groups else f"({group})"
    except re.error as error:
        raise ValueError(f"--group {group!r} is no regular expression: {error}") from error
    parts = [rows[one].astype(str) for one in ("file", "model", "checkpoint") if one in rows]
    places = parts[0].str.cat(parts[1:], sep=":")
    found = places.str.extract(expression).iloc[:, 0]
    if found.isna().any():
        raise ValueError(f"--group {group!r} finds nothing in {places[found.isna()].iat[0]}")
    return found


def _text(value: Any) -> str:
    if value != value:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
