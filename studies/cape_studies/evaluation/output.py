"""What an evaluation writes: one tidy CSV of scores, and what each test item adds to them."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from cape_studies.evaluation.options import RunOptions

#: How items make a score: 100 × sum of values / sum of weights; the same without 100; sacreBLEU's
#: BLEU; fairseq's, which smooths nothing; a number that nothing adds up to.
How = Literal["percent", "mean", "bleu", "bleu_unsmoothed", "number"]

#: columns of the CSV after those of the condition
VALUES = ("metric", "value", "how", "items", "weight")
_PARTS = ("item", "value", "weight")
_BLEU_PARTS = ("item", *(f"stats_{i}" for i in range(10)))


@dataclass(frozen=True)
class Score:
    """One metric of one model under one condition: a row of the CSV.

    Attributes:
        about: ``model`` and the columns of the condition, the same in all scores of a command.
        metric, value: what was measured, and found.
        how: items make the value.
        count: how many test items; None where there are none.
        weight: sum of the items' weights: images, words, tokens, seconds.
        items: what each adds: (item, value, weight); for BLEU (item, sacreBLEU's ten statistics:
            lengths of hypothesis and reference, 1- to 4-grams that match, and all). An item has the
            same name in all models.
    """

    about: Mapping[str, object]
    metric: str
    how: How
    value: float
    count: int | None = None
    weight: float | None = None
    items: Sequence[tuple[Any, ...]] = ()

    @classmethod
    def of(
        cls, about: Mapping[str, object], metric: str, how: How, items: Sequence[tuple[Any, ...]]
    ) -> "Score":
        """The score that items, at least one, make; NaN where they weigh nothing."""
        _, *columns = zip(*items, strict=True)
        sums = [sum(column) for column in columns]
        return cls(about, metric, how, made(how, sums), len(items), sums[1], items)


def made(how: str, sums: Sequence[float]) -> float:
    """The score of sums over items: of values and weights, or of BLEU's statistics; NaN of none."""
    if how in ("percent", "mean"):
        times = 100 if how == "percent" else 1
        return times * sums[0] / sums[1] if sums[1] else float("nan")
    from sacrebleu.metrics import BLEU

    ours, theirs, *counts = map(int, sums)
    smooth = "exp" if how == "bleu" else "none"
    return BLEU.compute_bleu(counts[:4], counts[4:], ours, theirs, smooth).score


def write(options: RunOptions, scores: Iterable[Score] | None) -> None:
    """Write a command's scores and their items as they come, and print a table in the end.

    The first is made after the options have been checked; None writes nothing. A file is named
    NAME.part until all is done; the one that it replaces stays till then.

    Raises:
        ValueError: a CSV is there or cannot be made there.
    """
    if scores is None:
        return
    for path in filter(None, (options.csv, options.items)):
        if path.suffix != ".csv" or path.is_dir():  # so that no checkpoint is overwritten
            raise ValueError(f"{path} is no name of a CSV: end it with .csv")
        if path.exists() and not options.overwrite:
            raise ValueError(f"{path} exists: choose another name or give --overwrite")
        if not path.parent.is_dir():
            raise ValueError(f"no such folder: {path.parent} (for {path.name})")
        if not os.access(path.parent, os.W_OK):
            raise ValueError(f"{path} cannot be written: its folder is read-only")
    rows: list[dict[str, object]] = []
    parts: dict[Path, Path] = {}

    def add(path: Path | None, lines: Sequence[Mapping[str, object]]) -> None:
        if path is None or not lines:
            return
        begins = path not in parts
        part = parts.setdefault(path, path.with_name(f"{path.name}.part"))
        frame = pd.DataFrame(lines, dtype=object)  # or an integer beside None would be a float
        frame.to_csv(part, mode="w" if begins else "a", header=begins, index=False)

    for one in scores:
        about = {**one.about, "metric": one.metric}
        values = {"value": one.value, "how": one.how, "items": one.count, "weight": one.weight}
        rows.append({**about, **values})
        add(options.csv, rows[-1:])
        names = _BLEU_PARTS if "bleu" in one.how else _PARTS
        adds = [dict(zip(names, item, strict=True)) for item in one.items]
        add(options.items, [{**about, "how": one.how, **part} for part in adds])
    for path, part in parts.items():
        os.replace(part, path)
    print(f"\n{table(rows)}")


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """The rows of a CSV of scores for the terminal, without what is the same in all of them."""
    frame = pd.DataFrame(rows, dtype=object)
    same = [name for name in frame if frame[name].nunique(dropna=False) == 1]
    names = [name for name in frame if name not in {*same, *VALUES} - {"model", "metric", "value"}]
    return frame[names].to_string(index=False, na_rep="", float_format="{:.2f}".format)
