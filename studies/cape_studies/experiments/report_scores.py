"""Scores and differences of trainings, with a 95 % interval from three trainings on.

The interval is a bootstrap over trainings and test items together. The items are drawn once for all
trainings, and for both variants of a difference, which share them.
"""

import math
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from cape_studies.evaluation.output import made
from cape_studies.experiments.report_read import PARTS, TRAININGS, Result

LEVEL, RESAMPLES = 0.95, 1000


class Score(NamedTuple):
    """A score or a difference under one condition.

    Attributes:
        each: of every training, by seed; NaN where one has no score.
        low, high: of the 95 % interval; NaN without one.
        items: whether it is over test items too.
    """

    each: pd.Series
    low: float = math.nan
    high: float = math.nan
    items: bool = False

    @property
    def value(self) -> float:
        """The mean over trainings; NaN if one of them has no score."""
        return float(np.mean(self.each.to_numpy()))

    @property
    def lacking(self) -> set[int]:
        """Seeds of trainings that have no score."""
        return {*self.each.index[self.each.isna()]}

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)


def interval(each: np.ndarray, resampled: np.ndarray | None = None) -> tuple[float, float]:
    """The 95 % interval of the mean of trainings.

    Over trainings alone it is Student's. Percentiles of resampled trainings are too narrow where
    there are few (of three they are the range, which holds in three of four cases), so in the
    bootstrap each resample's distance from the mean of all trainings is widened by what Student's
    interval is wider.

    Args:
        each: (n,) scores.
        resampled: (R, n), the scores on R draws of the test items.
    """
    n = len(each)
    student = float(stats.t.ppf((1 + LEVEL) / 2, n - 1))
    if resampled is None:
        mean, half = float(np.mean(each)), student * float(stats.sem(each))
        return mean - half, mean + half
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), len(resampled)) / n
    centre = resampled.mean(axis=1)
    wider = student * math.sqrt(n / (n - 1)) / stats.norm.ppf((1 + LEVEL) / 2)
    means = centre + wider * ((drawn * resampled).sum(axis=1) - centre)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@lru_cache(maxsize=8)
def draws(items: int) -> np.ndarray:
    """(R, items), how often each item is drawn; the same in every report."""
    drawn = np.random.default_rng(1).multinomial(items, np.full(items, 1 / items), RESAMPLES)
    return drawn.astype(np.int16)


class Scores:
    """The scores of one evaluation by one metric.

    Attributes:
        result, evaluation, metric: which.
        higher: whether that is better.
        variants: that have been tested, in the study's order.
        conditions: in the order of the tests.
        seen: (variant, condition) that the training knew.
        found: (variant, condition) → score.
        differences: the same → what it has more than the baseline, in the seeds that both have.
        paper: its numbers.

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
        self.paper = [
            row
            for row in about.paper
            if (row.evaluation or about.evaluation) == evaluation
            and (row.metric or about.metric) == metric
        ]
        self._values: dict[tuple[str, str], pd.Series] = {
            key: of.set_index("seed")["value"].reindex(sorted(seeds[key[0]]))
            for key, of in rows.groupby(["variant", "condition"], sort=False)
        }
        self._items = dict(list(items.groupby(["variant", "seed", "condition"], sort=False)))
        self._resampled = cache(self._resample)
        self.found = {(v, c): self._score(c, {v: 1}) for v, c in self._values}
        differences = {
            (v, c): self._score(c, {v: 1, base: -1})
            for v, c in self._values
            if v != base and (base, c) in self._values
        }
        self.differences = {key: one for key, one in differences.items() if len(one.each)}

    def _score(self, condition: str, signs: dict[str, int]) -> Score:
        """A score, or the difference of two."""
        rows = pd.concat([self._values[v, condition] for v in signs], axis=1, join="inner")
        each = rows @ list(signs.values())
        if len(each) < TRAININGS or each.isna().any():
            return Score(each)
        found = [[self._resampled(v, seed, condition) for seed in each.index] for v in signs]
        names = {names for of in found for names, _ in of}
        if len(names) > 1 or () in names:  # not the same items, or none
            return Score(each, *interval(each.to_numpy()))
        scores = np.array([[resampled for _, resampled in of] for of in found])
        resampled = np.einsum("v,vnr->rn", list(signs.values()), scores)
        return Score(each, *interval(each.to_numpy(), resampled), items=True)

    def _resample(self, variant: str, seed: int, condition: str) -> tuple[tuple[str, ...], Any]:
        """The items' names, and (R,) scores on draws of them; no names where they are not there."""
        key = variant, seed, condition
        if key not in self._items or len(of := self._items[key].sort_values("item")) < 2:
            return (), None
        how = of["how"].iat[0]
        numbers, value = of[PARTS[how]].to_numpy(float), self._values[variant, condition][seed]
        score = made(how, numbers.sum(axis=0))
        if not math.isclose(score, value, rel_tol=1e-3, abs_tol=1e-3):
            about = f"{self.result.name}: {variant} {seed} {self.evaluation} {condition}"
            raise ValueError(f"{about} {self.metric} is {value:g}, its items make {score:g}")
        return tuple(of["item"]), np.array([made(how, row @ numbers) for row in draws(len(of))])


def every(result: Result) -> list[Scores]:
    """All evaluations and metrics, first what the study's report shows first."""
    about, rows = result.study.report, result.scores
    evaluations, metrics = [about.evaluation, *rows["evaluation"]], [about.metric, *rows["metric"]]
    tests = dict.fromkeys(zip(evaluations, metrics, strict=True))
    return [Scores(result, *test) for test in tests]
