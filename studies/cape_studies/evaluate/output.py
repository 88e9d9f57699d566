"""The output of an evaluation: a tidy CSV of scores, and one of what each test item adds."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from cape_studies.options import RunOptions

#: How items make a score. percent: 100 × sum of values / sum of weights; mean: sum of values / sum
#: of weights; bleu: sacreBLEU's BLEU; bleu_unsmoothed: fairseq's, without smoothing; number: items
#: do not make it.
How = Literal["percent", "mean", "bleu", "bleu_unsmoothed", "number"]

#: columns of the CSV after those of the condition
VALUES = ("metric", "value", "how", "items", "weight")
_PARTS = ("item", "value", "weight")
_BLEU_PARTS = ("item", *(f"stats_{i}" for i in range(10)))


@dataclass(frozen=True)
class Score:
    """One metric of one model under one condition: a row of the CSV.

    Attributes:
        about: ``model`` and the columns of the condition; all scores of a command have the same
            columns.
        metric, value: the name of the score, and the score.
        how: how items make the value.
        count: number of test items; None if there are none.
        weight: sum of the items' weights: images, words, tokens, seconds.
        items: what each item adds: (item, value, weight), for BLEU (item, *statistics) with
            sacreBLEU's ten: lengths of hypothesis and reference, matching 1- to 4-grams, all 1- to
            4-grams. An item has the same name for all models.
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
        """The score that one or more items make; NaN if their weights sum to 0."""
        _, *columns = zip(*items, strict=True)
        sums = [sum(column) for column in columns]
        return cls(about, metric, how, made(how, sums), len(items), sums[1], items)


def made(how: str, sums: Sequence[float]) -> float:
    """The score from sums over items, of values and weights or of BLEU's statistics; may be NaN."""
    if how in ("percent", "mean"):
        times = 100 if how == "percent" else 1
        return times * sums[0] / sums[1] if sums[1] else float("nan")
    from sacrebleu.metrics import BLEU

    ours, theirs, *counts = map(int, sums)
    smooth = "exp" if how == "bleu" else "none"
    return BLEU.compute_bleu(counts[:4], counts[4:], ours, theirs, smooth).score


def write(options: RunOptions, scores: Iterable[Score] | None) -> None:
    """Write a command's scores and their items as they come, and print a table at the end.

    The outputs are checked before the first score is made. None writes nothing. A file has the name
    NAME.part until all scores are written; the file that it replaces stays until then.

    Raises:
        ValueError: a CSV exists, or cannot be written there.
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
    """The rows of a CSV for the terminal, without columns whose values are all equal."""
    frame = pd.DataFrame(rows, dtype=object)
    same = [name for name in frame if frame[name].nunique(dropna=False) == 1]
    names = [name for name in frame if name not in {*same, *VALUES} - {"model", "metric", "value"}]
    return frame[names].to_string(index=False, na_rep="", float_format="{:.2f}".format)
