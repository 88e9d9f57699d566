"""The output of an evaluation: a tidy CSV of scores, and one of what each test item adds."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import Field, model_validator
from typing_extensions import Self  # pydantic's

from cape_studies.command import CommandOptions, once
from cape_studies.items import PARTS, How, made

#: columns of the CSV after those of the condition
VALUES = ("metric", "value", "how", "items", "weight")


class EvaluationOptions(CommandOptions):
    """Options of all commands that evaluate models."""

    device: str | None = Field(
        None, description="cpu, cuda, …; none: cuda if there is one, else cpu"
    )
    amp: bool = Field(False, description="mixed precision")
    csv: Path | None = Field(
        None, description="file to write the scores to; none: they are only printed"
    )
    items: Path | None = Field(
        None, description="CSV to write, with what each test item adds to a score"
    )
    overwrite: bool = Field(False, description="replace existing files")

    @model_validator(mode="after")
    def check_run(self) -> Self:
        """Refuse one file for two outputs."""
        outputs = [path.resolve() for path in (self.csv, self.items) if path is not None]
        once(outputs, "the output", ": choose another name")
        return self

    @property
    def place(self) -> Any:
        """The torch.device of ``--device``.

        Raises:
            ValueError: it cannot be used here.
        """
        import torch

        name = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            torch.zeros(1, device=name).item()  # fails for the device 'meta'
        except (RuntimeError, AssertionError) as error:  # AssertionError: torch without CUDA
            said = str(error).splitlines()[0]
            raise ValueError(f"--device {name} cannot be used: {said}") from error
        return torch.device(name)


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
        items: what each item adds: its name, the same for all models, and its ``PARTS``.
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


def in_bins(
    about: Mapping[str, object],
    counted: Mapping[str, Sequence[tuple[Any, ...]]],
    sizes: Sequence[float],
    edges: Sequence[float],
    step: int = 0,
) -> Iterator[Score]:
    """The percentages of all items, and of those in each bin by size that has any.

    Args:
        about: columns of the scores; ``bin`` is set.
        counted: metric → what each item adds.
        sizes: of the items.
        edges: between bins, in any order. An edge begins a bin: ``<10``, ``10-15``, ``>=15``.
        step: 1 for whole numbers; an edge then ends a bin: ``<=10``, ``11-15``, ``>15``.
    """
    below, above = ("<=", ">") if step else ("<", ">=")
    bins: list[tuple[str, float, float]] = [("all", 0, math.inf)]
    for low, high in pairwise([0, *sorted(edges), math.inf] if edges else []):
        label = f"{low + step:g}-{high:g}" if low else f"{below}{high:g}"
        label = label if high < math.inf else f"{above}{low:g}"
        bins.append((label, low + step, high + step))
    for label, low, high in bins:
        inside = [i for i, size in enumerate(sizes) if low <= size < high]
        for metric, items in counted.items() if inside else ():
            yield Score.of({**about, "bin": label}, metric, "percent", [items[i] for i in inside])


def write(options: EvaluationOptions, scores: Iterable[Score]) -> None:
    """Write a command's scores and their items, and print a table.

    The outputs are checked before the first score is made. A file is NAME.part until it is whole.

    Raises:
        ValueError: a CSV exists, or cannot be written there.
    """
    for path in filter(None, (options.csv, options.items)):
        if path.suffix != ".csv":  # so that no checkpoint is overwritten
            raise ValueError(f"{path} is no name of a CSV: end it with .csv")
        if path.exists() and not options.overwrite:
            raise ValueError(f"{path} exists: choose another name or give --overwrite")
        if not os.access(path.parent, os.W_OK):
            raise ValueError(f"{path} cannot be written: there is no such folder, or not for you")
    rows: list[dict[str, object]] = []
    adds: list[dict[str, object]] = []
    for one in scores:
        about = {**one.about, "metric": one.metric}
        values = {"value": one.value, "how": one.how, "items": one.count, "weight": one.weight}
        rows.append({**about, **values})
        names = ["how", "item", *PARTS.get(one.how, [])]
        adds += [about | dict(zip(names, (one.how, *item), strict=True)) for item in one.items]
    # where there are scores, there are their items
    for out, lines in ((options.items, adds), (options.csv, rows)):
        if out is not None and lines:
            part = out.with_name(f"{out.name}.part")
            pd.DataFrame(lines, dtype=object).to_csv(part, index=False)  # 1 stays 1 beside None
            part.replace(out)
    print(f"\n{table(rows)}")


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """The rows of a CSV for the terminal, without columns whose values are all equal."""
    frame = pd.DataFrame(rows, dtype=object)
    same = [name for name in frame if frame[name].nunique(dropna=False) == 1]
    names = [name for name in frame if name not in {*same, *VALUES} - {"model", "metric", "value"}]
    return frame[names].to_string(index=False, na_rep="", float_format="{:.2f}".format)
