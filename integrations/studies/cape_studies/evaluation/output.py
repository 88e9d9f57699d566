"""What an evaluation writes: one tidy CSV of scores, and what each test item adds to them."""

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from tabulate import tabulate

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


class Results:
    """Scores of a command: a context that writes them as they come and ends with a table.

    Args:
        scores: CSV with a row for each; None writes none.
        items: CSV with what each item adds; None writes none.
    """

    def __init__(self, scores: Path | None, items: Path | None) -> None:
        self.paths = {"scores": scores, "items": items}
        self.stack = ExitStack()
        self.files: dict[str, tuple[IO[str], csv.DictWriter[str]]] = {}
        self.rows: list[dict[str, Any]] = []

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)
        if error[0] is None:
            print(f"\n{table(self.rows)}")

    def add(self, *scores: Score) -> None:
        """Write scores and their items."""
        for one in scores:
            columns = {**one.about, "metric": one.metric}
            row = {"value": one.value, "how": one.how, "items": one.count, "weight": one.weight}
            self.rows.append({**columns, **row})
            self._write("scores", self.rows[-1:])
            names = _BLEU_PARTS if "bleu" in one.how else _PARTS
            parts = (dict(zip(names, item, strict=True)) for item in one.items)
            self._write("items", ({**columns, "how": one.how, **part} for part in parts))

    def _write(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        path = self.paths[name]
        if path is None:
            return
        for row in rows:
            if name not in self.files:
                file = self.stack.enter_context(replaced(path))
                self.files[name] = file, csv.DictWriter(file, [*row], lineterminator="\n")
                self.files[name][1].writeheader()
            self.files[name][1].writerow(row)
        if name in self.files:
            self.files[name][0].flush()


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of a CSV of scores for the terminal: a line for a condition, a column for a metric.

    Conditions that are the same in all lines are left out.
    """
    lines: dict[tuple[object, ...], dict[str, object]] = {}
    for row in rows:
        about = {name: row[name] for name in row if name not in VALUES}
        lines.setdefault(tuple(about.values()), about)[row["metric"]] = f"{row['value']:.2f}"
    metrics = {"model", *(row["metric"] for row in rows)}
    every = dict.fromkeys(name for line in lines.values() for name in line)
    differ = {n for n in every if len({str(line.get(n)) for line in lines.values()}) > 1}
    names = [name for name in every if name in metrics | differ]
    body = [[line.get(name) for name in names] for line in lines.values()]
    return tabulate(body, names, tablefmt="github", disable_numparse=True)


@contextmanager
def replaced(path: Path) -> Iterator[IO[str]]:
    """A text file that takes the place of ``path`` when all went well; until then it is beside it.

    Raises:
        ValueError: it cannot be written.
    """
    is_file = path.is_file() or not path.exists()  # else /dev/stdout and its like
    beside = path.with_name(f"{path.name}.part") if is_file else path
    try:
        file = beside.open("w", newline="", encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error}") from error
    with file:
        yield file
    if is_file:
        os.replace(beside, path)


def check_absent(paths: Sequence[Path | None], overwrite: bool) -> None:
    """Raise ValueError if a file is there (without ``overwrite``) or cannot be made there."""
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise ValueError(f"{path} is a folder: give the name of a file")
        if path.exists() and not overwrite:
            raise ValueError(f"{path} exists: choose another name or give --overwrite")
        if not path.parent.is_dir():
            raise ValueError(f"no such folder: {path.parent} (for {path.name})")
        is_file = path.is_file() or not path.exists()  # else /dev/stdout and its like
        if is_file and not os.access(path.parent, os.W_OK):
            raise ValueError(f"{path} cannot be written: its folder is read-only")
