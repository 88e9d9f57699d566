"""The answer's decisions, by simulation: how often variants are told apart that do not differ."""

import numpy as np
import pandas as pd
import pytest

from cape_studies.ask.answer import LEVEL, Group, pairs

TRIALS, ITEMS = 400, 200
NOISE = 3 * (LEVEL * (1 - LEVEL) / TRIALS) ** 0.5  # of a rate over so many trials

#: spread of the trainings of each variant
SPREADS = {
    "two alike": [1, 1],
    "three alike": [1, 1, 1],
    "seven alike": [1] * 7,
    "seven of different spread": [0.3, 0.3, 0.5, 0.7, 1, 1.5, 2],
    "one of seven spreads far": [0.5] * 6 + [3],
}


def drawn(
    random: np.random.Generator, means: list[float], spreads: list[float], n: int, items: float
) -> dict[str, Group]:
    """Trainings of variants: each with a spread of its own, and test items that suit a variant."""
    groups = {}
    for i, (mean, spread) in enumerate(zip(means, spreads, strict=True)):
        each = mean + spread * random.normal(size=n)
        if not items:
            groups[f"v{i}"] = Group(each)
            continue
        suits = items * ITEMS**0.5 * random.normal(size=(ITEMS, 1)) + np.zeros((ITEMS, n))
        each = each + suits.mean(axis=0)
        without = each - (suits - suits.mean(axis=0)) / (ITEMS - 1)
        groups[f"v{i}"] = Group(each, pd.DataFrame(without))
    return groups


def rate(means: list[float], spreads: list[float], n: int, items: float, same: bool) -> float:
    """How often any pair of equal means is told apart (``same``), or else a pair of others is."""
    random, told = np.random.default_rng(len(spreads) * n), []
    for _ in range(TRIALS):
        found = pairs(drawn(random, means, spreads, n, items))
        of = [p for (a, b), p in found.items() if (means[int(a[1])] == means[int(b[1])]) is same]
        told += [any(p <= LEVEL for p in of)] if same else [p <= LEVEL for p in of]
    return float(np.mean(told))


@pytest.mark.release  # 400 studies each
@pytest.mark.parametrize("items", [0.0, 0.6], ids=["trainings alone", "and items"])
@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("spreads", SPREADS.values(), ids=SPREADS)
def test_of_equal_variants_any_is_told_apart_in_5_percent_of_studies(spreads, n, items):
    assert rate([0.0] * len(spreads), spreads, n, items, same=True) <= LEVEL + NOISE


@pytest.mark.release
def test_of_seven_variants_differences_of_five_spreads_are_mostly_found():
    means = [0.0] * 4 + [5.0] * 3
    assert rate(means, [1.0] * 7, 3, 0.0, same=False) >= 0.9
    assert rate(means, [1.0] * 7, 3, 0.6, same=False) >= 0.7
