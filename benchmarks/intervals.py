"""How often the intervals of ``cape_studies.stats`` are wrong, and answers, simulated.

    python benchmarks/intervals.py [--studies 100000] [--out benchmarks/results]

Trainings of a variant are normal, with a spread (standard deviation) that is the variant's own. A
study is wrong if its interval misses the truth; where pairs are compared, if that of any pair does.
Found is a difference of five spreads, between variants of equal spread. Games-Howell, the other
usual procedure for all pairs, stands beside them.

Answers are of items that each training gets right or wrong. Whether it does is the sum of what is
an item's, what is a variant's with an item, and what is a training's with an item, and of the
training's own level, all normal. All variants are equally good in the long run, so each "worse" is
wrong; in another simulation one is worse, and this is found or not. ``by_trainings`` is the share
of studies that say "worse" wrongly by intervals for the same items, ``bootstrap`` that by the
two-way bootstrap (Owen's), of one pair, ``by_both`` that by the intervals of answers, and ``wrong``
that of the answers themselves, which make no claim of few items and near a limit.

In two more simulations of answers items belong together, as recordings of a speaker do: a variant
may suit a speaker (``alike`` is the part of what is a variant's with an item that is the same for
all of a speaker); and studies are not finished, so that variants have different numbers of
trainings. ``by_items`` takes items of a group for independent.
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

from cape_studies.stats import AWAY, GROUPS, ITEMS, LEVEL, Estimate, estimate
from cape_studies.stats import TRAININGS as LEAST

RESULTS = Path(__file__).parent / "results"
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


#: what two trainings of a variant share → variances of: an item, a variant with an item, a
#: training with an item
SHARED = {"little": (0.4, 0.1, 0.5), "most": (0.3, 0.6, 0.1), "nearly all": (0.3, 0.69, 0.01)}
LEVELS = 0.05  # the spread of trainings of a variant, where an item's is 1
#: variants, items, right %, what is shared
STUDIES = [
    *((variants, 1000, 50, shared) for variants in (2, 7) for shared in SHARED),
    (7, 200, 50, "most"),
    (7, 1000, 90, "most"),
    (7, 200, 95, "most"),
    (7, 200, 97, "most"),
    (7, 200, 99.5, "most"),
    (7, 200, 99.5, "little"),
    *((7, items, 70, "most") for items in (9, 20, 30, 50)),
]
LOSSES = 5, 10  # points that the worse variant has less


def answers(
    random: np.random.Generator,
    sizes: tuple[int, int, int, int],
    right: float,
    shared: str,
    less: float = 0,
    groups: Sequence[int] = (),
    alike: float = 0,
) -> np.ndarray:
    """(variants, trainings, studies, items) booleans: what each training gets right.

    Args:
        random: draws them.
        sizes: of the result.
        right: percent, in the long run.
        shared: of SHARED.
        less: percent that the last variant has less.
        groups: how many items each group has.
        alike: the part of what is a variant's with an item that is the same for its group.
    """
    variants, trainings, studies, items = sizes
    roots = np.sqrt(SHARED[shared])
    drawn = roots[2] * random.standard_normal(sizes, np.float32)
    own = random.standard_normal((variants, 1, studies, items), np.float32)
    if groups:
        of_group = random.standard_normal((variants, 1, studies, len(groups)), np.float32)
        own *= (1 - alike) ** 0.5
        own += alike**0.5 * np.repeat(of_group, groups, axis=3)
    drawn += roots[1] * own
    drawn += roots[0] * random.standard_normal((studies, items), np.float32)
    drawn += LEVELS * random.standard_normal((variants, trainings, studies, 1), np.float32)
    wide = (1 + LEVELS**2) ** 0.5
    limits = np.full((variants, 1, 1, 1), wide * stats.norm.ppf(1 - right / 100), np.float32)
    limits[-1] = wide * stats.norm.ppf(1 - (right - less) / 100)
    return drawn > limits


def item_errors(single: np.ndarray, groups: Sequence[int] = ()) -> np.ndarray:
    """(studies,) the jackknife's standard error of the mean over (studies, items), or groups."""
    sizes = np.array(groups) if groups else np.ones(single.shape[1], int)
    sums = np.add.reduceat(single, [0, *sizes.cumsum()[:-1]], axis=1)
    left = (single.sum(axis=1, keepdims=True) - sums) / (sizes.sum() - sizes)
    return left.std(axis=1) * (len(sizes) - 1) ** 0.5


def told(of: Sequence[np.ndarray], groups: Sequence[int] = ()) -> dict[str, np.ndarray]:
    """(studies,) whether a variant is called worse than the best by each rule, and whether the
    last one is.

    Args:
        of: for each variant (trainings, studies, items); those of few trainings are not compared.
        groups: how many items each group has.
    """
    of = [one for one in of if len(one) >= LEAST]
    studies, items = of[0].shape[1:]
    scores = [100 * one.mean(axis=2) for one in of]
    best, pairs = np.argmax([one.mean(axis=0) for one in scores], axis=0), comb(len(of), 2)
    single = [one.mean(axis=0) for one in of]  # of an item, over trainings
    hits = [one.sum(axis=2).mean(axis=0) for one in of]
    near = np.minimum(hits, items - np.array(hits)) < AWAY
    rules = ("by_trainings", "by_both", "wrong", "last")
    found = {rule: np.zeros(studies, bool) for rule in rules}
    units = sum(groups) ** 2 / sum(one**2 for one in groups) if groups else items
    for one, other in combinations(range(len(of)), 2):
        ours = (best == one) | (best == other)
        error = 100 * item_errors(single[one] - single[other], groups)
        alone = differs(estimate(scores[one], scores[other], pairs)) & ours
        both = differs(estimate(scores[one], scores[other], pairs, error, units)) & ours
        enough = items >= ITEMS and (not groups or len(groups) >= GROUPS)
        said = both & ~(near[one] & near[other]) & enough
        found["by_trainings"] |= alone
        found["by_both"] |= both
        found["wrong"] |= said
        if other == len(of) - 1:
            found["last"] |= said & (best != other)
    return found


def bootstrapped(of: np.ndarray, times: int = 400) -> np.ndarray:
    """(studies,) whether 0 lies outside of the percentiles of one pair's two-way bootstrap."""
    random = np.random.default_rng(0)
    variants, trainings, studies, items = of.shape
    found = []
    for study in range(studies):
        weights = random.multinomial(items, [1 / items] * items, times) / items
        drawn = random.multinomial(trainings, [1 / trainings] * trainings, (variants, times))
        scores = np.einsum("vsi,ti->vts", of[:, :, study].astype(float), weights)
        one, other = (scores * drawn / trainings).sum(axis=2)
        low, high = np.quantile(one - other, [0.025, 0.975])
        found.append(low > 0 or high < 0)
    return np.array(found)


def answer_rows(studies: int) -> list[dict[str, object]]:
    """One for each of STUDIES and number of trainings; shares of ``studies``."""
    found = []
    for variants, items, right, shared in STUDIES:
        for trainings in (3, 5):
            sizes = variants, trainings, min(studies, 200), items
            row: dict[str, object] = {"variants": variants, "items": items, "right": right}
            row |= {"shared": shared, "trainings": trainings}
            for less in (0, *LOSSES):
                random = np.random.default_rng(trainings)
                parts, agree, boot = [], [], []
                for _ in range(studies // sizes[2]):
                    of = answers(random, sizes, right, shared, less)
                    parts.append(told(of))
                    agree.append((of[:, 0] == of[:, 1]).mean())
                    if variants == 2 and not less:
                        boot.append(bootstrapped(of).mean())
                shares = {rule: np.mean([part[rule] for part in parts]) for rule in parts[0]}
                if less:
                    row[f"found_{less}"] = shares["last"]
                    continue
                row["agree"] = np.mean(agree)
                row |= {rule: shares[rule] for rule in ("by_trainings", "by_both", "wrong")}
                row |= {"bootstrap": np.mean(boot)} if boot else {}
            found.append(row)
    return found


#: variants, right %, the items of each group, the part that is alike in a group
GROUPED = [
    *((7, 70, [300 // groups] * groups, 0.3) for groups in (1, 2, 3, 4, 5, 10, 30)),
    (2, 70, [60] * 5, 0.3),
    (7, 70, [60] * 5, 0.05),
    (7, 70, [60] * 5, 0.9),
    (7, 70, [150, 75, 40, 20, 15], 0.3),
    (2, 70, [150, 75, 40, 20, 15], 0.3),
    (7, 70, [100, 80, *[15] * 8], 0.3),
    (7, 70, [180, *[10] * 12], 0.3),
]


def grouped_rows(studies: int) -> list[dict[str, object]]:
    """One for each of GROUPED and number of trainings; shares of ``studies``."""
    found = []
    for variants, right, groups, alike in GROUPED:
        for trainings in (3, 5):
            random = np.random.default_rng(trainings)
            sizes = variants, trainings, 200, sum(groups)
            parts = []
            for _ in range(studies // sizes[2]):
                of = answers(random, sizes, right, "most", 0, groups, alike)
                one = told(of, groups) if len(groups) > 1 else told(of)
                share = one["wrong"].mean() if len(groups) > 1 else 0.0  # of one: no claim
                parts.append((told(of)["wrong"].mean(), share))
            by_items, wrong = np.mean(parts, axis=0)
            row: dict[str, object] = {"variants": variants, "groups": len(groups)}
            row |= {"largest": max(groups), "items": sum(groups), "alike": alike}
            found.append(row | {"trainings": trainings, "by_items": by_items, "wrong": wrong})
    return found


#: trainings of each variant so far; several: one looks so often, and "worse" at any is wrong
UNFINISHED: dict[str, list[Sequence[int]]] = {
    "3 3 1": [(3, 3, 1)],
    "5 5 1": [(5, 5, 1)],
    "3 3 3 2 2 2 2": [(3, 3, 3, 2, 2, 2, 2)],
    "5 5 5 5 4 4 4": [(5, 5, 5, 5, 4, 4, 4)],
    "5 5 5 3 3 2 1": [(5, 5, 5, 3, 3, 2, 1)],
    "5 3 1 1 1 1 1": [(5, 3, 1, 1, 1, 1, 1)],
    "3, 4 and 5 of two, looked at each time": [(many,) * 2 for many in (3, 4, 5)],
    "3, 4 and 5 of seven, looked at each time": [(many,) * 7 for many in (3, 4, 5)],
}


def unfinished_rows(studies: int) -> list[dict[str, object]]:
    """One for each of UNFINISHED; shares of ``studies``."""
    found = []
    for name, looks in UNFINISHED.items():
        variants, most = len(looks[0]), max(map(max, looks))
        random = np.random.default_rng(variants)
        parts = []
        for _ in range(studies // 200):
            drawn = answers(random, (variants, most, 200, 200), 70, "most")
            each = [[of[:n] for of, n in zip(drawn, look, strict=True)] for look in looks]
            said = pd.DataFrame([told(of) for of in each])[["by_trainings", "wrong"]]
            parts.append([np.any([*said[rule]], axis=0).mean() for rule in said])
        alone, wrong = np.mean(parts, axis=0)
        found.append({"trainings": name, "by_trainings": alone, "wrong": wrong})
    return found


#: file → what makes its rows, and how many of ``--studies`` it simulates
MADE = {
    "intervals": (rows, 1),
    "answers": (answer_rows, 50),
    "groups": (grouped_rows, 25),
    "unfinished": (unfinished_rows, 25),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--only", choices=MADE, nargs="*", default=[*MADE], help="these files")
    given = parser.parse_args()
    for name in given.only:
        make, part = MADE[name]
        table = pd.DataFrame(make(given.studies // part))
        table.round(4).to_csv(given.out / f"{name}.csv", index=False)
        print(table.to_string(index=False, float_format="{:.3f}".format))
