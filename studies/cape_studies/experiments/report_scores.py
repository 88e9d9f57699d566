"""Scores and differences of trainings, with a 95 % interval and a p-value from three trainings on.

An interval is for other trainings and, where single test items are stored, for other items. The
spread of the trainings' scores holds what items do to each training by itself already; only what
they do to all trainings alike is added.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import optimize, special

from cape_studies.evaluation.output import made
from cape_studies.experiments.report_read import PARTS, TRAININGS, Result

LEVEL = 0.95


class Score(NamedTuple):
    """A score or a difference under one condition.

    Attributes:
        value: the mean over trainings, or the difference of two; NaN if one has no score.
        each: by seed; NaN where a training has no score. Of a difference, that of each seed that
            both variants have.
        trainings: how many the value is of; of a difference, of both variants.
        lacking: seeds of trainings that have no score.
        low, high: of the 95 % interval; NaN without one.
        p: of no difference, two-sided; NaN without an interval.
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

    Over trainings alone it is Student's interval, of two groups Welch's. Test items add the
    variance, by the jackknife, of what an item adds to the mean of all trainings, less the part
    that the trainings' spread holds. Half the width is then the mean of two ways to add what is
    known by few degrees of freedom to what is known by many: Satterthwaite's, which holds in 91 to
    95 % of cases, and the root of the squares of both (Zou & Donner 2008), in 95 to 98 %. Together
    they hold in 94 to 97 % of simulated cases, whatever makes the noise (``test_intervals.py``). No
    interval is narrower than for other items alone, as it would be where a few trainings by chance
    lie closer together than their items let expect: 99 % hold where items make all the noise.

    Args:
        groups: (n,) scores of a variant's trainings, n ≥ 2, each.
        signs: what each group's mean counts.
        without: (items, trainings of all groups) the scores without each item; None where single
            items are not stored.
        prior: variance of a training's score that other variants tell, and degrees of freedom that
            it counts for beside each group's own.
    """
    sizes = np.array([len(group) for group in groups])
    value = sum(sign * group.mean() for sign, group in zip(signs, groups, strict=True))
    free, (known, more) = sizes - 1, prior
    spread = free * [group.var(ddof=1) for group in groups] + more * known
    free = free + more
    spread = spread / free / sizes
    many, alike, items = 2, 0.0, 0.0
    if without is not None:
        many, (alike, items) = len(without), _of_items(without, sizes, signs)
    trainings, noise = spread.sum(), math.sqrt(spread.sum() + alike)
    if not noise:
        return value, value, float(value == 0)
    few = 1 / sum((spread / trainings) ** 2 / free) if trainings else 1.0
    share = trainings / noise**2
    free = 1 / (share**2 / few + (1 - share) ** 2 / (many - 1))

    def half(p: float) -> float:
        tail = -special.stdtrit([few, many - 1, free], p / 2)  # Student's
        both = tail[2] * noise + math.hypot(*tail[:2] * np.sqrt([trainings, alike]))
        return float(max(both / 2, tail[1] * math.sqrt(items)))

    width, least = half(1 - LEVEL), 1e-9
    p = optimize.brentq(lambda p: half(p) - abs(value), least, 1) if half(least) > abs(value) else 0
    return float(value - width), float(value + width), float(p)


def _of_items(without: np.ndarray, sizes: np.ndarray, signs: Sequence[int]) -> tuple[float, float]:
    """The variance from what items do to all trainings alike, and from all that items do.

    The first is at least 0, though its estimate scatters around it where there is none.
    """
    many = len(without)
    added = np.atleast_2d(np.cov(without, rowvar=False)) * (many - 1) ** 2 / many
    weights, own, end = np.repeat(np.divide(signs, sizes), sizes), 0.0, 0
    for n in sizes:
        block = added[end : end + n, end : end + n]
        end += n
        own += (np.trace(block) - (block.sum() - np.trace(block)) / (n - 1)) / n**2
    total = max(float(weights @ added @ weights), 0.0)  # rounding
    return max(total - own, 0.0), total


class Scores:
    """The scores of one evaluation by one metric.

    Attributes:
        result, evaluation, metric: which.
        higher: whether that is better.
        variants: that have been tested, in the study's order.
        conditions: in the order of the tests.
        seen: (variant, condition) that the training knew.
        values: (variant, condition) → each training's score, by seed.
        without: of variant, condition and seed, the items' names and the score without each.
        found: (variant, condition) → score.
        differences: the same → what it has more than the baseline.

    Raises:
        ValueError: a score comes twice, or is not what its items make.
    """

    def __init__(self, result: Result, evaluation: str, metric: str) -> None:
        self.result, self.evaluation, self.metric = result, evaluation, metric
        about, rows, items = result.study.report, result.scores, result.items
        base, seeds = about.baseline, rows.groupby("variant")["seed"].unique()
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
        self._limits = 0.0 if hundred else -math.inf, 100.0 if hundred and self.higher else math.inf
        self.found = {key: self._score(key) for key in self.values}
        self.differences = {
            (v, c): self.difference(v, base, c)
            for v, c in self.values
            if v != base and (base, c) in self.values
        }

    def difference(
        self, variant: str, other: str, condition: str, other_condition: str | None = None
    ) -> Score:
        """What a variant's score is more than another's, or than its own elsewhere.

        Trainings are taken in pairs of a seed only where both go on from the same trained weights
        (``after`` in the study). Others share an order of the data at most: in canvas, digit_canvas
        and captions pairs differ as much as trainings of different seeds do, and Student's factor
        of n pairs is larger than Welch's of n + n trainings. Both are tested
        on the same items, so items are always compared in pairs.
        """
        return self._score((variant, condition), (other, other_condition or condition))

    def _score(self, *keys: tuple[str, str]) -> Score:
        """The score of a variant and condition, or the first of two less the second."""
        values, signs = [self.values[key] for key in keys], [1, -1][: len(keys)]
        each = pd.concat(values, axis=1, join="inner") @ signs
        paired = len(keys) == 2 and self.paired(keys[0][0], keys[1][0])
        numbers = tuple(len(of) for of in values)
        few = min(numbers) < TRAININGS
        if paired or (few and len(each)):  # of few, those of the same seeds
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
        names, without = {names for of in found for names, _ in of}, None
        if len(names) == 1 and () not in names:  # the same items everywhere
            columns = [np.column_stack([one for _, one in of]) for of in found]
            without = columns[0] - columns[1] if paired else np.hstack(columns)
        groups = [of.to_numpy() for of in ([each] if paired else values)]
        low, high, p = interval(groups, signs[: len(groups)], without)
        value = sum(s * group.mean() for s, group in zip(signs, groups, strict=False))
        if len(keys) == 1:
            low, high = max(low, self._limits[0]), min(high, self._limits[1])
        return Score(value, each, numbers, lacking, low, high, p, without is not None)

    def paired(self, variant: str, other: str) -> bool:
        """Whether trainings of the same seed go on from the same trained weights."""

        def start(name: str) -> str:
            about = self.result.study.variants[name]
            return start(about.after) if about is not None and about.after else name

        return start(variant) == start(other)

    def _without_each(
        self, variant: str, condition: str, seed: int
    ) -> tuple[tuple[str, ...], np.ndarray | None]:
        """The items' names, and (items,) the score without each; no names where none are there."""
        key = variant, seed, condition
        if key not in self._items or len(of := self._items[key].sort_values("item")) < 2:
            return (), None
        how = of["how"].iat[0]
        numbers, value = of[PARTS[how]].to_numpy(float), self.values[variant, condition][seed]
        score = made(how, total := numbers.sum(axis=0))
        if not math.isclose(score, value, rel_tol=1e-3, abs_tol=1e-3):
            about = f"{self.result.name}: {variant} {seed} {self.evaluation} {condition}"
            raise ValueError(f"{about} {self.metric} is {value:g}, its items make {score:g}")
        return tuple(of["item"]), np.array([made(how, total - one) for one in numbers])


def every(result: Result) -> list[Scores]:
    """All evaluations and metrics, first what the study's report shows first."""
    about, rows = result.study.report, result.scores
    evaluations, metrics = [about.evaluation, *rows["evaluation"]], [about.metric, *rows["metric"]]
    tests = dict.fromkeys(zip(evaluations, metrics, strict=True))
    return [Scores(result, *test) for test in tests]
