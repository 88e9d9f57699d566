"""What of a user's data is kept for testing, and faults of the data, told before any training."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

SHOWN = 20  # faults
BINS = 3  # of the longest fifth
ONE_IN = 20  # of the rest are for testing, where the user brings no test; of few, one in FEW
FEW, ENOUGH = 5, 100
MOST = 500  # items of a test

Item = TypeVar("Item")


def complain(folder: Path, faults: Iterable[str]) -> None:
    """Raise ValueError with the first faults, if there are any, in one line."""
    every = list(faults)
    if every:
        more = f"; {len(every) - SHOWN} more in {folder}" if len(every) > SHOWN else ""
        raise ValueError("; ".join(every[:SHOWN]) + more)


def digest(name: str) -> bytes:
    """What items are put in order by, the same in every call and whatever else is there."""
    return hashlib.sha256(name.encode(errors="surrogateescape")).digest()


class Bin(NamedTuple):
    """Items whose lengths are in an interval: its name, and their numbers."""

    name: str
    items: list[int]


def short_and_long(
    lengths: Sequence[float], names: Sequence[str], shown: Callable[[float, float], str]
) -> tuple[list[int], list[Bin], float]:
    """Numbers of the shorter four fifths; bins of the longest fifth; the longest of the shorter.

    Args:
        lengths: of the items.
        names: that choose, where a bin has more than ``MOST``.
        shown: the name of a bin, from its shortest and longest.

    Raises:
        ValueError: the lengths are so alike that none is longer than most.
    """
    limit = float(np.quantile(lengths, 0.8, method="lower"))
    beyond = sorted(length for length in lengths if length > limit)
    if not beyond or len(beyond) < BINS:
        raise ValueError(
            f"{len(beyond)} of {len(lengths)} are longer than {limit:g}: nothing to test longer "
            "ones on; a study of lengths needs data whose lengths differ"
        )
    edges = np.unique(np.quantile(beyond, [i / BINS for i in range(1, BINS + 1)], method="lower"))
    found, low = [], limit
    for high in edges.tolist():
        inside = [i for i, length in enumerate(lengths) if low < length <= high]
        inside = sorted(inside, key=lambda i: digest(names[i]))[:MOST]
        own = [lengths[i] for i in inside]
        found.append(Bin(shown(min(own), max(own)), sorted(inside)))
        low = high
    return [i for i, length in enumerate(lengths) if length <= limit], found, limit


def apart(items: Sequence[int], names: Sequence[str]) -> tuple[list[int], list[int]]:
    """Most of the items, and those of a test: one in ``ONE_IN``, but ``ENOUGH`` if that leaves
    ``FEW`` − 1 times as many, and ``MOST`` at most."""
    order = sorted(items, key=lambda i: digest(names[i]))
    held = min(MOST, max(1, len(items) // ONE_IN, min(ENOUGH, len(items) // FEW)))
    return sorted(order[held:]), sorted(order[:held])
