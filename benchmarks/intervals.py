"""How often the intervals of ``cape_studies.stats`` are wrong, simulated.

    python benchmarks/intervals.py [--studies 100000] [--csv FILE]

Trainings of a variant are normal, with a spread (standard deviation) that is the variant's own. A
study is wrong if its interval misses the truth; where pairs are compared, if that of any pair does.
Found is a difference of five spreads, between variants of equal spread. Games-Howell, the other
usual procedure for all pairs, stands beside them.
"""

import argparse
from collections.abc import Sequence
from itertools import combinations
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats
from scipy.interpolate import PchipInterpolator

from cape_studies.stats import LEVEL, Estimate, estimate

RESULTS = Path(__file__).parent / "results" / "intervals.csv"
#: what is compared → the spread of each variant
SPREADS = {
    "a score": [1],
    "one pair": [1, 1],
    "one pair, one spreads 3 times as much": [1, 3],
    "one pair, one spreads 5 times as much": [1, 5],
    "one pair, one spreads 10 times as much": [1, 10],
    "all pairs of 3": [1, 1, 1],
    "all pairs of 3, spreads 0.3 to 3": [0.3, 1, 3],
    "all pairs of 4": [1, 1, 1, 1],
    "all pairs of 5": [1, 1, 1, 1, 1],
    "all pairs of 7": [1, 1, 1, 1, 1, 1, 1],
    "all pairs of 7, spreads 0.3 to 2": [0.3, 0.3, 0.5, 0.7, 1, 1.5, 2],
    "all pairs of 7, one spreads 6 times as much": [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 3],
}
#: trainings of the first variant and of the others
TRAININGS = {"3": (3, 3), "5": (5, 5), "6": (6, 6), "6 and 3": (6, 3)}
OTHER_ITEMS = "a score, of other test items, ± half the spread"
SKEWED = "a score near 84 %, trainings 7 points apart"


def drawn(
    spreads: Sequence[float], trainings: tuple[int, int], studies: int, apart: float = 0
) -> list[np.ndarray]:
    """For each variant (trainings, studies) scores around 0; around ``apart`` for the first."""
    random = np.random.default_rng([len(spreads), *trainings])
    first, others = trainings
    counts = [first] + [others] * (len(spreads) - 1)
    scores = [
        spread * random.normal(size=(count, studies))
        for spread, count in zip(spreads, counts, strict=True)
    ]
    return [scores[0] + apart, *scores[1:]]


def differs(of: Estimate) -> np.ndarray:
    """(studies,) whether 0 lies outside of the interval."""
    return (of.low > 0) | (of.high < 0)


def wrong(groups: Sequence[np.ndarray]) -> float:
    """The share of studies in which 0 lies outside of the interval of a score, or of any pair."""
    if len(groups) == 1:
        return float(differs(estimate(groups[0])).mean())
    pairs = comb(len(groups), 2)
    each = [differs(estimate(*two, pairs)) for two in combinations(groups, 2)]
    return float(np.any(each, axis=0).mean())


def games_howell(groups: Sequence[np.ndarray]) -> float:
    """The same by the studentized range, at Welch's degrees of freedom of each pair."""
    free = np.geomspace(1.9, 12, 20)
    ends = [stats.studentized_range.ppf(LEVEL, len(groups), one) / 2**0.5 for one in free]
    end = PchipInterpolator(free, ends)
    tests = [stats.ttest_ind(*two, equal_var=False) for two in combinations(groups, 2)]
    return float(np.any([abs(one.statistic) > end(one.df) for one in tests], axis=0).mean())


def other_scores(studies: int) -> list[dict[str, object]]:
    """Rows of a score that is skewed, and of one that is said of other test items."""
    found = []
    for name in ("3", "5", "6"):
        (scores,) = drawn([1], TRAININGS[name], studies)
        skewed = stats.norm.cdf(1 + 0.3 * scores) - stats.norm.cdf(1 / 1.09**0.5)
        items = np.random.default_rng(int(name)).normal(0, 0.5, studies)
        for compared, one in ((SKEWED, skewed), (OTHER_ITEMS, scores + items)):
            found.append({"compared": compared, "trainings": name, "wrong": wrong([one])})
    return found


def rows(studies: int) -> list[dict[str, object]]:
    """One for each comparison and number of trainings; shares of ``studies``."""
    found = []
    for compared, spreads in SPREADS.items():
        for name, trainings in TRAININGS.items():
            if len(spreads) != 2 and len({*trainings}) == 2:
                continue
            groups = drawn(spreads, trainings, studies)
            row = {"compared": compared, "trainings": name, "wrong": wrong(groups)}
            if len(spreads) > 2:
                row["games_howell"] = games_howell(groups)
            if len(spreads) > 1 and len({*spreads}) == len({*trainings}) == 1:
                one, other, *_ = drawn(spreads, trainings, studies, apart=5)
                pairs = comb(len(spreads), 2)
                row["found"] = float(differs(estimate(one, other, pairs)).mean())
            found.append(row)
        if len(spreads) == 1:
            found += other_scores(studies)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=100_000)
    parser.add_argument("--csv", type=Path, default=RESULTS)
    given = parser.parse_args()
    table = pd.DataFrame(rows(given.studies))
    table.round(4).to_csv(given.csv, index=False)
    print(table.to_string(index=False, float_format="{:.3f}".format))
