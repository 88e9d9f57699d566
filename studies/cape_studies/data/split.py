"""Splits a user's data into training and tests, the same in every call."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from cape_studies.data.files import complain

LEAST = 50  # items
BINS = 3  # of the longest fifth
#: if the user brings no test, one in so many of the rest is for testing; of few items, one in FEW
ONE_IN = 20
FEW, ENOUGH = 5, 100
MOST = 500  # items of a test
GROUPS = 5  # of a test, of fewer nothing is claimed
SHOWN = 20  # names of groups in a sentence
#: names of folders, or of files before the first dot, that a user's own split has; the first wins
TRAINS = "train", "training"
TESTS = "test", "validation", "val", "testing", "valid", "eval", "evaluation", "dev"


def drawn(items: Iterable[str], many: int) -> tuple[list[str], list[str]]:
    """``many`` of the items, and the others: those with the smallest digests, so every call chooses
    the same."""
    order = sorted(items, key=lambda item: hashlib.sha256(item.encode()).digest())
    return order[:many], order[many:]


def test_and_rest(items: Sequence[str]) -> tuple[list[str], list[str]]:
    """Items for a test, and the others.

    The test has one in ``ONE_IN``. If that is fewer than ``ENOUGH``, it has ``ENOUGH``, but not
    more than one in ``FEW``. It has at least one item, and at most ``MOST``.
    """
    many = min(MOST, max(1, len(items) // ONE_IN, min(ENOUGH, len(items) // FEW)))
    return drawn(items, many)


def groups_of(names: Iterable[str], pattern: str | None) -> dict[str, str]:
    """The group of each file: what belongs together, such as a speaker, a document or a patient.

    Args:
        names: of files, with their sub-folders.
        pattern: a regular expression that finds the group in a name, by its first group or whole;
            None: there are no groups.

    Raises:
        ValueError: the expression is none, finds nothing in a name, or finds one group.
    """
    if pattern is None:
        return {}
    try:
        found = {name: re.search(pattern, name) for name in names}
    except re.error as error:
        raise ValueError(f"group={pattern} is no regular expression: {error}") from error
    complain(f"group={pattern} finds nothing in {n}" for n, one in found.items() if not one)
    of = {name: one[one.re.groups and 1] for name, one in found.items() if one}
    if len(every := {*of.values()}) < 2:
        raise ValueError(f"group={pattern} finds one group, {', '.join(every)}: 2 are needed")
    return of


def held_out(groups: Iterable[str]) -> tuple[set[str], str]:
    """The groups of a test, the same in every call, and that in words: a fifth, or as many as a
    claim needs if that is not more than half of them."""
    every = {*groups}
    many = len(every) // FEW
    if many < GROUPS <= len(every) // 2:
        many = GROUPS
    held = sorted(drawn(every, max(1, many))[0])
    shown = ", ".join(held[:SHOWN]) + (", …" if len(held) > SHOWN else "")
    about = f"tested on {len(held)} of {len(every)} groups, of which nothing is trained on"
    return {*held}, f"{about}: {shown}"


def in_both(train: Iterable[str] = (), test: Iterable[str] = ()) -> Iterator[str]:
    """Faults: groups that training and a test have."""
    for one in sorted({*train} & {*test}):
        yield f"group {one} is in training and in a test: bring it into one of them"


def brought(names: Iterable[str]) -> tuple[set[str], set[str], str]:
    """What a user's own split in sub-folders leaves for training and for tests, and the name of the
    tests' folder; all three are empty where there is none.

    Args:
        names: of files, with their sub-folders.
    """
    names = [*names]
    tops = {top.lower(): top for top, inside, _ in (n.partition("/") for n in names) if inside}
    train, test = (next((n for n in few if n in tops), None) for few in (TRAINS, TESTS))
    if train is None or test is None:
        return set(), set(), ""
    to_train, to_test = (
        {name for name in names if name.startswith(f"{tops[part]}/")} for part in (train, test)
    )
    return to_train, to_test, tops[test]


def short_and_long(
    lengths: Mapping[str, float], shown: str
) -> tuple[list[str], dict[str, list[str]], float]:
    """The shorter four fifths; the longest fifth in bins by name; the longest of the shorter.

    Args:
        lengths: item → its length.
        shown: a bin's name, with places for its shortest and longest length.

    Raises:
        ValueError: the lengths are too alike to have a longest fifth.
    """
    limit = float(np.quantile([*lengths.values()], 0.8, method="lower"))
    beyond = [one for one in lengths.values() if one > limit]
    if len(beyond) < BINS:
        raise ValueError(
            f"{len(beyond)} of {len(lengths)} are longer than {limit:g}: too few for a test of "
            "longer ones. A study of lengths needs data whose lengths differ"
        )
    edges = np.quantile(beyond, [i / BINS for i in range(1, BINS + 1)], method="lower")
    found: dict[str, list[str]] = {}
    low = limit
    for high in np.unique(edges).tolist():
        inside, _ = drawn([one for one in lengths if low < lengths[one] <= high], MOST)
        own = [lengths[one] for one in inside]
        found.setdefault(shown.format(min(own), max(own)), []).extend(inside)
        low = high
    return [one for one in lengths if lengths[one] <= limit], found, limit
