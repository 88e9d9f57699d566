"""``cape-compare``: the answer, tables, figure and page of anyone's table of scores."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd
from pydantic import Field

from cape_studies import command, page
from cape_studies.command import CommandOptions, Typed
from cape_studies.items import PARTS
from cape_studies.settings import Answer, Report, known
from cape_studies.tidy import NO_ITEMS, SCORE, TIDY, Result, check, read

REQUIRED = ["variant", "seed", "condition", "metric", "value"]
#: how the laboratory may have made the score of items, tried in this order
HOW = {"mean": 1, "percent": 100}
TRUTH = {"true": True, "1": True, "false": False, "0": False}


class CompareOptions(CommandOptions):
    """Compare variants of anything by their scores, with intervals: which is best, which are not
    significantly different, which are worse. Writes a page, tables, a figure and answer.json.

    SCORES is a CSV with the columns variant, seed, condition, metric and value, a row for each
    score of each training; perhaps higher_is_better, trained_on (whether training was under this
    condition) and evaluation. ITEMS has the same columns and item, perhaps weight and group, a row
    for what each test item adds to a score, so that the answer is for other test items too.

    example:
      cape-compare scores.csv items.csv --higher-is-better accuracy --baseline rope
    """

    scores: Annotated[Path, Typed(bare=True)] = Field(description="CSV of scores")
    items: Annotated[Path | None, Typed(bare=True)] = Field(None, description="CSV of test items")
    higher_is_better: Annotated[list[str], Typed(again="METRIC")] = Field(
        [], description="of this metric, as a column of that name says too; again for each"
    )
    lower_is_better: Annotated[list[str], Typed(again="METRIC")] = Field(
        [], description="of this metric; again for each"
    )
    metric: str | None = Field(
        None, description="compare by this one alone; none: by all, and the answer is of the first"
    )
    baseline: str | None = Field(
        None, description="variant from which differences are shown, and which others must beat"
    )
    title: str | None = Field(None, description="of the page; none: the name of SCORES")
    out: Path | None = Field(
        None, description="folder of the report, which replaces an earlier one; none: NAME-report"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; ends with status 2 and one line on stderr if something is wrong."""
    command.main("cape-compare", CompareOptions, compare, argv)


def compare(options: CompareOptions) -> None:
    """Write a report; print its answer, and where the page is.

    Raises:
        ValueError: the tables cannot be compared.
    """
    out = options.out or Path(f"{_stem(options.scores)}-report")
    for given in filter(None, (options.scores, options.items)):
        if (out / given.name).exists() and (out / given.name).samefile(given):
            raise ValueError(f"--out {out} has {given.name}, which is given: choose another folder")
    page.show([result(options)], out)


def result(options: CompareOptions) -> Result:
    """What is compared.

    Raises:
        ValueError: a table cannot be read or compared; names the first fault.
    """
    path = options.scores
    rows = _rows(path, REQUIRED)
    if options.metric:
        known("--metric", [options.metric], {*rows["metric"]})
        rows = rows[rows["metric"] == options.metric]
    variants, evaluations = [*rows["variant"].unique()], [*rows["evaluation"].unique()]
    if len(variants) < 2:
        raise ValueError(f"{path} has one variant, {variants[0]}: two are needed")
    known("--baseline", filter(None, [options.baseline]), variants)
    _once(path, rows, SCORE)
    rows = rows.assign(higher_is_better=rows["metric"].map(_directions(options, rows)))
    ranges = "trained_on" in rows
    rows["trained_on"] = _truth(path, rows, "trained_on") if ranges else False
    items = _items(options.items, rows) if options.items else NO_ITEMS
    check(rows, items)
    how = items.groupby(["evaluation", "metric"])["how"].first() if len(items) else {}
    keys = zip(rows["evaluation"], rows["metric"], strict=True)
    rows["how"] = [how.get(key, "number") for key in keys]
    beyond = "in other conditions than training's" if ranges else "condition {condition}"
    of = {one: f"{one}, " if len(evaluations) > 1 else "" for one in evaluations}
    name = _stem(path)
    title = options.title or name
    metric = rows["metric"].iat[0]
    labels = {"x_label": "condition", "y_label": metric, "title": title}
    unused = [one for one in rows if one not in TIDY]
    return Result(
        name,
        title,
        rows[[one for one in TIDY if one in rows]],
        items,
        variants,
        Report(baseline=options.baseline or "", evaluation=evaluations[0], metric=metric, **labels),
        Answer(
            floor=options.baseline or "",
            within="in conditions of training",
            beyond={one: f"{of[one]}{beyond}" for one in evaluations},
            same_items=True,
        ),
        notes=[f"Not used: the columns {', '.join(unused)} of {path.name}."] if unused else [],
    )


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]


def _rows(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """A table whose names are all there and whose values are numbers, or empty."""
    rows = read(path, columns, strict=True)
    rows["evaluation"] = rows["evaluation"].fillna("") if "evaluation" in rows else ""
    for name in columns:
        if name != "value" and (empty := rows[name].isna()).any():
            raise ValueError(f"{path}: row {empty.argmax() + 2} has no {name}")
    if rows.empty:
        raise ValueError(f"{path} has no rows")
    return rows


def _once(path: Path, rows: pd.DataFrame, names: Sequence[str]) -> None:
    """Refuse two rows of one name: they would count as two trainings, or two items."""
    if (again := rows.duplicated(names)).any():
        first = rows.loc[again.idxmax(), names]
        said = ", ".join(f"{name} {one}" for name, one in first.items() if one != "")
        raise ValueError(f"{path} has two rows of {said}")


def _truth(path: Path, rows: pd.DataFrame, name: str) -> pd.Series:
    """A column of True and False, or 1 and 0."""
    words = rows[name].astype(str).str.lower().str.removesuffix(".0")
    if (other := ~words.isin(TRUTH)).any():
        row, got = rows.index[other][0] + 2, rows[name][other].iat[0]
        raise ValueError(f"{path}: row {row}: {name} is True or False, got {got}")
    return words.map(TRUTH).astype(bool)


def _directions(options: CompareOptions, rows: pd.DataFrame) -> dict[str, bool]:
    """Metric → whether higher is better."""
    path, higher, lower = options.scores, options.higher_is_better, options.lower_is_better
    found = {}
    if "higher_is_better" in rows:
        truth = _truth(path, rows, "higher_is_better")
        for metric, of in truth.groupby(rows["metric"]):
            if of.nunique() > 1:
                raise ValueError(f"{path}: higher_is_better of {metric} is both True and False")
            found[metric] = bool(of.iat[0])
    for names, option, better in (
        (higher, "--higher-is-better", True),
        (lower, "--lower-is-better", False),
    ):
        known(option, names, {*rows["metric"]})
        for name in names:
            if found.setdefault(name, better) is not better:
                raise ValueError(f"{option} {name}: the other is said too")
    for metric in rows["metric"].unique():
        if metric not in found:
            raise ValueError(
                f"{path}: is more or less of {metric} better? Give --higher-is-better {metric} or "
                f"--lower-is-better {metric}, or a column higher_is_better"
            )
    return found


def _items(path: Path, scores: pd.DataFrame) -> pd.DataFrame:
    """The items of the scores, with the way in which they make these."""
    rows = _rows(path, ["variant", "seed", "condition", "metric", "item"])
    rows = rows[rows["metric"].isin(scores["metric"])].assign(weight=rows.get("weight", 1.0))
    _once(path, rows, [*SCORE, "item"])
    there = pd.MultiIndex.from_frame(scores[SCORE])
    if (none := ~pd.MultiIndex.from_frame(rows[SCORE]).isin(there)).any():
        first = ", ".join(str(one) for one in rows.loc[none, SCORE].iloc[0] if one != "")
        raise ValueError(f"{path} has items of {first}, of which there is no score")
    if "how" in rows:
        known(f"how of {path}", rows["how"].unique(), PARTS)
        parts = [part for how in rows["how"].unique() for part in PARTS[how]]
        known(f"columns of {path}", parts, rows)
        return rows
    known(f"columns of {path}", ["value"], rows)
    for name in ("value", "weight"):
        if (empty := rows[name].isna()).any():
            raise ValueError(f"{path}: row {rows.index[empty][0] + 2} has no {name}")
    sums = rows.groupby(SCORE)[["value", "weight"]].sum()
    made = sums["value"] / sums["weight"]
    wanted = scores.set_index(SCORE)["value"].reindex(made.index)
    hows = {}
    for key, of in made.groupby(["evaluation", "metric"]):
        off = {how: (wanted[of.index] - times * of).abs().max() for how, times in HOW.items()}
        hows[key] = min(off, key=lambda how: off[how])
    keys = zip(rows["evaluation"], rows["metric"], strict=True)
    return rows.assign(how=[hows[key] for key in keys])
