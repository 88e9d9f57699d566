"""What an evaluation writes: one tidy CSV of scores, and what each test item adds to them."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

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
        metric: what was measured.
        how: items make the value.
        value: the score.
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

    hypothesis, reference, *counts = map(int, sums)
    smooth = "exp" if how == "bleu" else "none"
    return BLEU.compute_bleu(counts[:4], counts[4:], hypothesis, reference, smooth).score


class Results(AbstractContextManager):
    """Scores of a command: a context that writes them as they come and ends with a table.

    A file is named NAME.part until all is done; the one that it replaces stays till then.

    Args:
        scores: CSV with a row for each; None writes none.
        items: CSV with what each item adds; None writes none.
        overwrite: replace them if they are there.

    Raises:
        ValueError: a CSV is there or cannot be made there.
    """

    def __init__(self, scores: Path | None, items: Path | None, overwrite: bool = False) -> None:
        for path in filter(None, (scores, items)):
            if path.suffix != ".csv" or path.is_dir():  # so that no checkpoint is overwritten
                raise ValueError(f"{path} is no name of a CSV: end it with .csv")
            if path.exists() and not overwrite:
                raise ValueError(f"{path} exists: choose another name or give --overwrite")
            if not path.parent.is_dir():
                raise ValueError(f"no such folder: {path.parent} (for {path.name})")
            if not os.access(path.parent, os.W_OK):
                raise ValueError(f"{path} cannot be written: its folder is read-only")
        self.scores, self.items = scores, items
        self.rows: list[dict[str, object]] = []
        self.parts: dict[Path, Path] = {}

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            for path, part in self.parts.items():
                os.replace(part, path)
            print(f"\n{table(self.rows)}")

    def add(self, *scores: Score) -> None:
        """Write scores and their items."""
        for one in scores:
            condition = {**one.about, "metric": one.metric}
            values = {"value": one.value, "how": one.how, "items": one.count, "weight": one.weight}
            self.rows.append({**condition, **values})
            self._write(self.scores, self.rows[-1:])
            names = _BLEU_PARTS if "bleu" in one.how else _PARTS
            parts = [dict(zip(names, item, strict=True)) for item in one.items]
            self._write(self.items, [{**condition, "how": one.how, **part} for part in parts])

    def _write(self, path: Path | None, rows: Sequence[Mapping[str, object]]) -> None:
        if path is None or not rows:
            return
        begins = path not in self.parts
        part = self.parts.setdefault(path, path.with_name(f"{path.name}.part"))
        frame = pd.DataFrame(rows, dtype=object)  # or an integer beside None would be a float
        frame.to_csv(part, mode="w" if begins else "a", header=begins, index=False)


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """The rows of a CSV of scores for the terminal, without what is the same in all of them."""
    frame = pd.DataFrame(rows, dtype=object)
    same = [name for name in frame if frame[name].nunique(dropna=False) == 1]
    names = [name for name in frame if name not in {*same, *VALUES} - {"model", "metric", "value"}]
    return frame[names].to_string(index=False, na_rep="", float_format="{:.2f}".format)
