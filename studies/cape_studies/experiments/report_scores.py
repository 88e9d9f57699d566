"""Scores and differences of trainings, with a 95 % interval and a p-value from three trainings on.

An interval says where the score would lie with other trainings and, where single test items are
stored, with other test items. The spread of the trainings' scores already includes the noise that
test items add to each training separately. So only the noise that they add to all trainings
together is added to it.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import optimize, special

from cape_studies.evaluate.output import made
from cape_studies.experiments.report_read import PARTS, TRAININGS, Result

LEVEL = 0.95


class Score(NamedTuple):
    """A score or a difference under one condition.

    Attributes:
        value: the mean over trainings, or the difference of two means; NaN if a training has no
            score.
        each: the trainings' scores by seed; NaN where a training has none. For a difference, the
            differences of the seeds that both variants have.
        trainings: the number of trainings; for a difference, that of each variant.
        lacking: seeds of trainings that have no score.
        low, high: ends of the 95 % interval; NaN without one.
        p: two-sided p-value of no difference; NaN without an interval.
        items: whether the interval is for other test items too.
    """

    value: float
    each: pd.Series
    trainings: tuple[int, ...]
    lacking: frozenset[int] = frozenset()
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    items: bool = False

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)


def interval(
    groups: Sequence[np.ndarray],
    signs: Sequence[int] = (1,),
    without: np.ndarray | None = None,
    prior: tuple[float, float] = (0.0, 0.0),
) -> tuple[float, float, float]:
    """Low, high and p of a mean over trainings, or of a difference of two.

    Without test items it is Student's interval for one group, and Welch's for two. The jackknife
    gives the variance that test items add to the mean over all trainings. The part of it that the
    trainings' spread includes is subtracted, and the rest is added.

    The trainings' variance has few degrees of freedom, the items' variance has many. There are two
    ways to add them. Satterthwaite's interval covers the true value in 91 to 95 % of simulated
    cases, the root of the sum of both squared half widths (Zou & Donner 2008) in 95 to 98 %. The
    half width here is the mean of the two. It covers in 94 to 97 %, whether trainings or items make
    the noise (``test_intervals.py``).

    A few trainings can by chance lie closer together than the noise of their items suggests. So no
    interval is narrower than one for other items alone. Where items make all the noise, 99 % cover.

    Args:
        groups: for each variant, (n,) scores of its trainings, n ≥ 2.
        signs: the factor of each group's mean.
        without: (items, trainings of all groups) the scores without each item; None where single
            items are not stored.
        prior: a variance of trainings' scores, estimated from other variants, and the degrees of
            freedom for which it counts beside each group's own.
    """
    sizes = np.array([len(group) for group in groups])
    value = sum(sign * group.mean() for sign, group in zip(signs, groups, strict=True))
    free = sizes - 1
    known, more = prior
    spread = free * [group.var(ddof=1) for group in groups] + more * known
    free = free + more
    spread = spread / free / sizes
    many = 2
    alike = items = 0.0
    if without is not None:
        many = len(without)
        alike, items = _of_items(without, sizes, signs)
    trainings = spread.sum()
    noise = math.sqrt(trainings + alike)
    if not noise:
        return value, value, float(value == 0)
    few = 1 / sum((spread / trainings) ** 2 / free) if trainings else 1.0
    share = trainings / noise**2
    free = 1 / (share**2 / few + (1 - share) ** 2 / (many - 1))

    def half(p: float) -> float:
        tail = -special.stdtrit([few, many - 1, free], p / 2)  # Student's
        both = tail[2] * noise + math.hypot(*tail[:2] * np.sqrt([trainings, alike]))
        return float(max(both / 2, tail[1] * math.sqrt(items)))

    width = half(1 - LEVEL)
    least = 1e-9
    p = 0.0
    if half(least) > abs(value):
        p = optimize.brentq(lambda p: half(p) - abs(value), least, 1)
    return float(value - width), float(value + width), float(p)


def _of_items(without: np.ndarray, sizes: np.ndarray, signs: Sequence[int]) -> tuple[float, float]:
    """The variance that items add to all trainings together, and the whole variance of items.

    A negative estimate of the first becomes 0.
    """
    many = len(without)
    added = np.atleast_2d(np.cov(without, rowvar=False)) * (many - 1) ** 2 / many
    weights = np.repeat(np.divide(signs, sizes), sizes)
    own = 0.0
    end = 0
    for n in sizes:
        block = added[end : end + n, end : end + n]
        end += n
        own += (np.trace(block) - (block.sum() - np.trace(block)) / (n - 1)) / n**2
    total = max(float(weights @ added @ weights), 0.0)  # rounding
    return max(total - own, 0.0), total


class Scores:
    """The scores of one evaluation by one metric.

    Attributes:
        result, evaluation, metric: whose scores these are.
        higher: whether higher is better.
        variants: those that have been tested, in the study's order.
        conditions: in the order of the tests.
        seen: pairs (variant, condition) where the condition was seen in training.
        values: (variant, condition) → each training's score, by seed.
        without: a function of variant, condition and seed; gives the items' names and the score
            without each.
        found: (variant, condition) → score.
        differences: (variant, condition) → the variant's score less the baseline's.

    Raises:
        ValueError: a score comes twice, or is not what its items make.
    """

    def __init__(self, result: Result, evaluation: str, metric: str) -> None:
        self.result, self.evaluation, self.metric = result, evaluation, metric
        about, rows, items = result.study.report, result.scores, result.items
        base = about.baseline
        seeds = rows.groupby("variant")["seed"].unique()
        rows = rows[(rows["evaluation"] == evaluation) & (rows["metric"] == metric)]
        items = items[(items["evaluation"] == evaluation) & (items["metric"] == metric)]
        keys = ["variant", "condition", "seed"]
        if (twice := rows.duplicated(keys)).any():
            of = " ".join(map(str, rows[twice][keys].iloc[0]))
            raise ValueError(f"{result.name}: {evaluation} has several {metric} of {of}")
        self.higher = bool(rows["higher_is_better"].all())
        self.variants = [name for name in result.study.variants if name in set(rows["variant"])]
        self.conditions: list[str] = list(rows["condition"].unique())
        seen = rows[rows["trained_on"]]
        self.seen = set(zip(seen["variant"], seen["condition"], strict=True))
        self.values: dict[tuple[str, str], pd.Series] = {
            key: of.set_index("seed")["value"].reindex(sorted(seeds[key[0]]))
            for key, of in rows.groupby(["variant", "condition"], sort=False)
        }
        self._items = dict(list(items.groupby(["variant", "seed", "condition"], sort=False)))
        self.without = cache(self._without_each)
        hundred = rows["how"].isin(["percent", "bleu", "bleu_unsmoothed"]).all()
        self._lowest = 0.0 if hundred else -math.inf
        # an error rate can exceed 100
        self._highest = 100.0 if hundred and self.higher else math.inf
        self.found = {key: self._score(key) for key in self.values}
        self.differences = {
            (v, c): self.difference(v, base, c)
            for v, c in self.values
            if v != base and (base, c) in self.values
        }

    def difference(
        self, variant: str, other: str, condition: str, other_condition: str | None = None
    ) -> Score:
        """A variant's score less another's, or less its own under another condition.

        Two trainings of one seed are a pair only if both start from the same trained weights
        (``after`` in the study). Other trainings of one seed share at most the order of the data.
        In canvas, digit_canvas and on captions they differ as much as trainings of different
        seeds do, and Student's factor for n pairs is larger than Welch's for n + n trainings. Test
        items are always paired, as all trainings are tested on the same items.
        """
        return self._score((variant, condition), (other, other_condition or condition))

    def _score(self, *keys: tuple[str, str]) -> Score:
        """The score of a variant and condition, or for two keys the first score less the second."""
        values = [self.values[key] for key in keys]
        signs = [1, -1][: len(keys)]
        each = pd.concat(values, axis=1, join="inner") @ signs
        paired = len(keys) == 2 and self.paired(keys[0][0], keys[1][0])
        numbers = tuple(len(of) for of in values)
        few = min(numbers) < TRAININGS
        if paired or (few and len(each)):  # of few trainings, those of the same seeds
            numbers = (len(each),) * len(keys)
        lacking = frozenset[int]().union(*(of.index[of.isna()] for of in values))
        if lacking:
            return Score(math.nan, each, numbers, lacking)
        if min(numbers) < TRAININGS:
            groups = [of.to_numpy() for of in ([each] if len(each) else values)]
            means = [float(group.mean()) for group in groups]
            value = sum(sign * mean for sign, mean in zip(signs, means, strict=False))
            return Score(value, each, numbers)
        seeds = [(each if paired else of).index for of in values]
        found = [[self.without(*key, i) for i in of] for key, of in zip(keys, seeds, strict=True)]
        names = {names for of in found for names, _ in of}
        without = None
        if len(names) == 1 and () not in names:  # the same items everywhere
            columns = [np.column_stack([one for _, one in of]) for of in found]
            without = columns[0] - columns[1] if paired else np.hstack(columns)
        groups = [of.to_numpy() for of in ([each] if paired else values)]
        low, high, p = interval(groups, signs[: len(groups)], without)
        value = sum(s * group.mean() for s, group in zip(signs, groups, strict=False))
        if len(keys) == 1:
            low = max(low, self._lowest)
            high = min(high, self._highest)
        return Score(value, each, numbers, lacking, low, high, p, without is not None)

    def paired(self, variant: str, other: str) -> bool:
        """Whether trainings of the same seed start from the same trained weights."""

        def start(name: str) -> str:
            about = self.result.study.variants[name]
            return start(about.after) if about is not None and about.after else name

        return start(variant) == start(other)

    def _without_each(
        self, variant: str, condition: str, seed: int
    ) -> tuple[tuple[str, ...], np.ndarray | None]:
        """The items' names, and (items,) the score without each; no names if none are stored."""
        key = variant, seed, condition
        if key not in self._items or len(of := self._items[key].sort_values("item")) < 2:
            return (), None
        how = of["how"].iat[0]
        numbers = of[PARTS[how]].to_numpy(float)
        value = self.values[variant, condition][seed]
        total = numbers.sum(axis=0)
        score = made(how, total)
        if not math.isclose(score, value, rel_tol=1e-3, abs_tol=1e-3):
            about = f"{self.result.name}: {variant} {seed} {self.evaluation} {condition}"
            raise ValueError(f"{about} {self.metric} is {value:g}, its items make {score:g}")
        return tuple(of["item"]), np.array([made(how, total - one) for one in numbers])


def every(result: Result) -> list[Scores]:
    """The scores of all evaluations and metrics, in the order of the report."""
    about, rows = result.study.report, result.scores
    evaluations = [about.evaluation, *rows["evaluation"]]
    metrics = [about.metric, *rows["metric"]]
    tests = dict.fromkeys(zip(evaluations, metrics, strict=True))
    return [Scores(result, *test) for test in tests]
