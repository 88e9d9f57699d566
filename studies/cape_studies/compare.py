"""Scores and differences of trainings, with their intervals and the error of their test items."""

import math
from functools import cache

import numpy as np
import pandas as pd

from cape_studies.items import PARTS, away, made
from cape_studies.stats import Estimate, estimate, influence, item_error
from cape_studies.tidy import Result

OF_GROUP = "\0"


class Scores:
    """The scores of one evaluation by one metric.

    Attributes:
        result, evaluation, metric: whose scores these are.
        higher: whether higher is better.
        percent: whether it is of 100.
        most: the greatest score, in absolute value.
        chance: the score of who learns nothing; None: not known of this metric.
        variants: those that have been tested, in the study's order.
        trainings: variant → how many.
        conditions: in the order of the tests.
        seen: conditions that were seen in training.
        values: (variant, condition) → each training's score, by seed.
        without: a function of variant and condition; gives the mean score without each test item,
            or each group of items that belong together; a group's name has ``OF_GROUP`` before it.
            Empty where items are not stored for all trainings, or not the same.
        found: (variant, condition) → score.
        differences: (variant, condition) → the variant's score less the baseline's.
    """

    def __init__(self, result: Result, evaluation: str, metric: str) -> None:
        self.result, self.evaluation, self.metric = result, evaluation, metric
        rows, items, base = result.scores, result.items, result.report.baseline
        seeds = rows.groupby("variant")["seed"].unique()
        rows = rows[(rows["evaluation"] == evaluation) & (rows["metric"] == metric)]
        items = items[(items["evaluation"] == evaluation) & (items["metric"] == metric)]
        self.higher = bool(rows["higher_is_better"].all())
        self.variants = [name for name in result.variants if name in set(rows["variant"])]
        self.trainings = {name: len(seeds[name]) for name in self.variants}
        self.conditions: list[str] = list(rows["condition"].unique())
        self.seen = set(rows[rows["trained_on"]]["condition"])
        self.values: dict[tuple[str, str], pd.Series] = {
            key: of.set_index("seed")["value"].reindex(sorted(seeds[key[0]]))
            for key, of in rows.groupby(["variant", "condition"], sort=False)
        }
        if "group" in items:
            group = items["group"].fillna("")
            items = items.assign(unit=items["item"].where(group == "", OF_GROUP + group))
        else:
            items = items.assign(unit=items["item"])
        self._items = dict(list(items.groupby(["variant", "condition", "seed"], sort=False)))
        self.without = cache(self._without_each)
        self.percent = rows["how"].isin(["percent", "bleu", "bleu_unsmoothed"]).all()
        self.most = float(rows["value"].abs().max())
        answer = result.answer if metric == result.report.metric else None
        self.chance = answer.chance if answer else None
        self.found = {key: self._score(key) for key in self.values}
        self.differences = {
            (v, c): self.difference(v, base, c)
            for v, c in self.values
            if v != base and (base, c) in self.values
        }

    def difference(
        self, variant: str, other: str, condition: str, other_condition: str | None = None
    ) -> Estimate:
        """A variant's score less another's, or less its own under another condition."""
        return self._score((variant, condition), (other, other_condition or condition))

    def paired(self, variant: str, other: str) -> bool:
        """Whether trainings of a seed are pairs: the same trainings, under two conditions or in two
        tests, or trainings that go on from the same weights.

        Other trainings of a seed share at most the order of the data.
        """
        of = self.result.weights
        return of.get(variant, variant) == of.get(other, other)

    def _score(self, *keys: tuple[str, str]) -> Estimate:
        """The score of a variant and condition, or for two keys the first score less the second."""
        groups = [self.values[key] for key in keys]
        if len(keys) == 2 and self.paired(keys[0][0], keys[1][0]):
            groups = [pd.concat(groups, axis=1, join="inner") @ [1, -1]]
        found = estimate(*groups)
        without = [self.without(*key) for key in keys]
        if all(of.index.equals(without[0].index) for of in without):
            less = without[0] - without[1] if len(keys) == 2 else without[0]
            found = found._replace(items=item_error(influence(less)))
        if len(keys) == 1 and self.percent:  # an error rate can exceed 100
            most = 100.0 if self.higher else math.inf
            found = found._replace(low=max(found.low, 0.0), high=min(found.high, most))
        return found

    def away(self, variant: str, condition: str) -> float:
        """How many items are away from the limits of the score, the mean over its trainings; NaN
        where items are not stored."""
        found = [
            away(how, of[PARTS[how]].to_numpy(float))
            for seed in self.values[variant, condition].index
            if (of := self._items.get((variant, condition, seed))) is not None
            and (how := of["how"].iat[0])
        ]
        return float(np.mean(found)) if found else math.nan

    def items(self, variant: str, condition: str) -> set[tuple[str, str]]:
        """Its test items, each after the unit of :attr:`without` that it is in; none where that is
        empty."""
        if not len(self.without(variant, condition)):
            return set()
        of = self._items[variant, condition, self.values[variant, condition].index[0]]
        return {*zip(of["unit"], of["item"], strict=True)}

    def _without_each(self, variant: str, condition: str) -> pd.Series:
        each: list[pd.Series] = []
        for seed, value in self.values[variant, condition].items():
            of = self._items.get((variant, condition, seed))
            if of is None or math.isnan(value):
                return pd.Series(dtype=float)
            how = of["how"].iat[0]
            of = of.set_index("unit")[PARTS[how]].sort_index()
            total = of.to_numpy(float).sum(axis=0)
            of = of if of.index.is_unique else of.groupby(level=0).sum()
            each.append(pd.Series([made(how, total - one) for one in of.to_numpy(float)], of.index))
            if not each[0].index.equals(each[-1].index):
                return pd.Series(dtype=float)
        return pd.concat(each, axis=1).mean(axis=1, skipna=False)


def every(result: Result) -> list[Scores]:
    """The scores of all evaluations and metrics, in the order of the report."""
    about, rows = result.report, result.scores
    evaluations = [about.evaluation, *rows["evaluation"]]
    metrics = [about.metric, *rows["metric"]]
    tests = dict.fromkeys(zip(evaluations, metrics, strict=True))
    return [Scores(result, *test) for test in tests]
