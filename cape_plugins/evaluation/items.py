"""What each test item adds to a score: the file of ``--items``, for intervals by bootstrap.

Its first columns are those of the command's CSV that tell a score from the others; ``metric`` is
the column of that CSV that the score stands in, ``item`` an image, an utterance or the number of a
sentence, alike for all models.
"""

from collections.abc import Iterable, Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

from cape_plugins.evaluation.output import CsvFile

#: The score is the sum of the values over that of the weights, × 100 in percent: 1 or 0 and 1;
#: errors and words of the reference; nats and tokens.
RATIO = ("metric", "item", "value", "weight")

#: BLEU is no such ratio: sacreBLEU's statistics of a sentence, which add up to those of the test
#: set. Lengths of hypothesis and reference, then of 1- to 4-grams those that match and all.
BLEU = ("metric", "item", *(f"stats_{i}" for i in range(10)))


def write(
    path: Path,
    told: Sequence[str],
    parts: Sequence[str],
    scored: Iterable[tuple[Any, Iterable[Sequence[object]]]],
) -> None:
    """Write items; until all are there, so is a file of that name from before.

    Args:
        path: of the CSV.
        told: the columns that tell a score from the others.
        parts: ``RATIO`` or ``BLEU``.
        scored: rows of the command's CSV, each with its items: what the parts are.
    """
    kind = make_dataclass("Item", [*told, *parts])
    with CsvFile(path, kind, aside=True) as file:
        for row, items in scored:
            about = [getattr(row, column) for column in told]
            file.add(*(kind(*about, *item) for item in items))
