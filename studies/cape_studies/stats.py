"""How the scores of trainings are compared. Every interval of the laboratory is made here.

The interval of a score is Student's t over its trainings, and that of a difference of two variants
is Welch's t. It is for other trainings that are tested on the same items. Where all pairs of
variants are compared, each has Šidák's level for so many pairs, so that all of them hold together
in 95 of 100 studies; this is Tamhane's T2.

What other test items would change stands beside a score, as a standard error by the jackknife. An
interval for other items too has the sum of both variances, as for errors that are clustered in two
ways, with Satterthwaite's degrees of freedom. The third term of that sum, which is taken off for
what both share, is left out; so the interval is wider than needed, and never narrower. A bootstrap
of trainings and items estimates the same sum, but of three trainings it has too little of it.
Items that belong together, as those of one speaker, are left out together: the jackknife is then of
groups, with as many degrees of freedom as groups of one size would have, and no more.

What is said of a pair depends on these two variants alone: see :class:`Pair`. Another variant only
counts among the pairs, and that once it has ``TRAININGS`` trainings.

L. Kish, Survey Sampling (1965), for groups of unequal size; B. L. Welch, Biometrika 34 (1947) 28;
Z. Šidák, J. Am. Stat. Assoc. 62 (1967) 626; A. C. Tamhane, J. Am. Stat. Assoc. 74 (1979) 471; J. W.
Tukey, Ann. Math. Stat. 29 (1958) 614; A. C. Cameron, J. B. Gelbach and D. L. Miller, J. Bus. Econ.
Stat. 29 (2011) 238; F. E. Satterthwaite, Biometrics Bull. 2 (1946) 110; A. B. Owen, Ann. Appl.
Stat. 1 (2007) 386 for the bootstrap. How often they are wrong is simulated in
``benchmarks/intervals.py``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.95
TRAININGS = 3  # the least for an interval; of two it would reach 13 standard errors each way
#: the least number of test items for a claim about others, and of items that are away from the
#: limits of a score, such as 0 and 100 %, for a comparison
ITEMS, AWAY = 30, 10
GROUPS = 5  # the least number of groups of test items for a claim about others
POWER = 0.8
#: metric → standard deviations of the difference of two variants between test items, and of a
#: score between trainings: about the medians of the pairs and variants in ``studies/results``
TYPICAL = {"top1": (30, 1.6), "wer": (7, 1.0), "bleu": (10, 0.65), "loss": (0.2, 0.09)}


class Estimate(NamedTuple):
    """A mean over trainings, or a difference of two.

    Attributes:
        value: NaN if a training has no score.
        low, high: ends of the interval; NaN of fewer than ``TRAININGS`` trainings of a variant, and
            of scores that are all equal, as these do not say how far others would differ.
        items: the standard error that the choice of test items gives the value; NaN where that is
            not known.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    items: float = math.nan

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)

    def differs(self) -> bool:
        """Whether 0 lies outside of the interval; never without one."""
        return self.low > 0 or self.high < 0


def estimate(
    one: Any, other: Any = None, pairs: int = 1, error: Any = None, units: float = 0
) -> Estimate:
    """The mean of a variant's scores; or that less another variant's, by Welch's t.

    Args:
        one, other: (trainings, ...) scores. Further axes are further studies, as in a simulation.
        pairs: how many pairs are compared together.
        error: the standard error by the choice of so many ``units``: test items, or groups of
            them. The interval is then for other items too; without it, for the same.
    """
    groups = [np.asarray(of, float) for of in (one, other) if of is not None]
    means = [of.mean(axis=0) for of in groups]
    value: Any = means[0] - means[1] if len(means) == 2 else means[0]
    if min(map(len, groups)) < TRAININGS:
        return Estimate(value)
    parts: Any = [(of.var(axis=0, ddof=1) / len(of), len(of) - 1) for of in groups]
    parts += [] if error is None else [(np.square(error), units - 1)]
    variance, free = _summed(parts)
    if error is not None:  # of few groups Satterthwaite's own error is large
        free = np.minimum(free, units - 1)
    reach = stats.t.isf((1 - LEVEL ** (1 / pairs)) / 2, free) * np.sqrt(variance)
    return Estimate(value, value - reach, value + reach)


def _summed(parts: Any) -> tuple[Any, Any]:
    """The sum of variances with their degrees of freedom, and Satterthwaite's of it."""
    variance: Any = sum(part for part, _ in parts)
    with np.errstate(divide="ignore", invalid="ignore"):
        return variance, variance**2 / sum(part**2 / own for part, own in parts)


@dataclass(frozen=True)
class Sample:
    """A variant's score, and what tells how it would differ in another study.

    Attributes:
        trainings: (trainings,) the score of each; NaN: it has none.
        influences: (units,) :func:`influence` of each test item, or group of items; empty where
            items are not stored.
        items: how many test items there are; 0: not known.
        sizes: (units,) how many test items are in each group, if ``influences`` are of groups;
            empty: items do not belong together.
        away: how many items are away from the limits of the score; NaN: not known.
    """

    trainings: Any
    influences: pd.Series = field(default_factory=lambda: pd.Series(dtype=float))
    items: int = 0
    sizes: Sequence[int] = ()
    away: float = math.nan

    @cached_property
    def compared(self) -> bool:
        """Whether it has ``TRAININGS`` trainings, all with a score."""
        each = np.asarray(self.trainings, float)
        return len(each) >= TRAININGS and not np.isnan(each).any()

    @property
    def units(self) -> float:
        """How many test items there are; of groups, how many of one size count as much (Kish)."""
        sizes = np.asarray(self.sizes, float)
        return sizes.sum() ** 2 / (sizes**2).sum() if len(sizes) else len(self.influences)

    @property
    def of_others(self) -> bool:
        """Whether something can be said of other test items."""
        return len(self.influences) >= (GROUPS if len(self.sizes) else 2)

    def estimate(self) -> Estimate:
        """The mean, for other items too where that can be said."""
        if not self.of_others:
            return estimate(self.trainings)
        error = item_error(self.influences)
        return estimate(self.trainings, error=error, units=self.units)


class Pair(NamedTuple):
    """Two variants of an answer: the first less the second.

    Attributes:
        here: with an interval for other trainings on the same test items.
        others: with one for other test items too; None where both variants' items are not stored or
            not the same, or are of fewer than ``GROUPS`` groups.
        items: of the variant with fewer test items; 0: not known.
        near: whether both scores are too near a limit to be compared.
    """

    here: Estimate
    others: Estimate | None = None
    items: int = 0
    near: bool = False

    @property
    def widest(self) -> Estimate:
        """With the interval that says most of what can be said."""
        return self.here if self.others is None else self.others

    @property
    def few(self) -> bool:
        """Whether there are too few test items for any claim."""
        return 0 < self.items < ITEMS

    @property
    def claimed(self) -> bool:
        """Whether something may be claimed."""
        return self.widest.known and not self.near and not self.few


def all_pairs(each: Mapping[str, Sample]) -> dict[tuple[str, str], Pair]:
    """Each ordered pair of variants that can be compared, by Tamhane's T2.

    Variants with fewer than ``TRAININGS`` trainings, or with a training that has no score, are left
    out, and are no pairs.
    """
    each = {name: of for name, of in each.items() if of.compared}
    level = math.comb(len(each), 2)
    found = {}
    for one, other in permutations(each, 2):
        a, b = each[one], each[other]
        others = None
        if a.of_others and b.of_others:
            error = item_error(a.influences - b.influences)  # NaN of items of other names
            if not math.isnan(error):
                units = min(a.units, b.units)
                others = estimate(a.trainings, b.trainings, level, error, units)
        here = estimate(a.trainings, b.trainings, level)
        known = [of.items for of in (a, b) if of.items]
        near = a.away < AWAY and b.away < AWAY
        found[one, other] = Pair(here, others, min(known, default=0), near)
    return found


def influence(without: pd.Series) -> pd.Series:
    """What each test item changes of a score, (items,); of fewer than two items NaN.

    Args:
        without: (items,) the score without each item.
    """
    many = len(without)
    return (without - without.mean()) * (math.sqrt((many - 1) / many) if many > 1 else math.nan)


def item_error(influences: pd.Series) -> float:
    """The standard error that the choice of test items gives a score, by the jackknife; NaN where
    an :func:`influence` is NaN, or there is none."""
    return float(np.linalg.norm(influences)) if len(influences) else math.nan


def lacks(items: int, trainings: int, groups: int = 0) -> str:
    """What is too few for a claim of other test items, in words; empty: nothing.

    ``groups``: of items that belong together; 0: they do not.
    """
    told = []
    if items < ITEMS:
        told.append(f"{items} test items, {ITEMS} are needed")
    if 0 < groups < GROUPS:
        told.append(f"{groups} groups of test items, {GROUPS} are needed")
    if trainings < TRAININGS:
        told.append(f"{trainings} trainings of each variant, {TRAININGS} are needed")
    return "; ".join(told)


def smallest_difference(
    metric: str, items: int, trainings: int, variants: int, groups: int = 0
) -> float:
    """The smallest difference that 80 of 100 answers would find, in the metric's unit: before
    anything is trained, from what is usual (``TYPICAL``). Where items are of groups it is a least:
    how alike those of a group are is not known.

    Args:
        metric: a key of ``TYPICAL``.
        items, groups: see :func:`lacks`.
        trainings: of each variant.
        variants: all of whose pairs are compared; of one alone it is that of a pair.

    Returns:
        Points of 100, or nats; infinite where no claim is made.

    Raises:
        ValueError: the metric is not known.
    """
    if metric not in TYPICAL:
        raise ValueError(f"metric {metric!r}: what is usual is known of {', '.join(TYPICAL)}")
    if lacks(items, trainings, groups):
        return math.inf
    item, spread = TYPICAL[metric]
    one = spread**2 / trainings
    units = groups or items
    variance, free = _summed([(one, trainings - 1)] * 2 + [(item**2 / items, units - 1)])
    free = min(free, units - 1)
    level = LEVEL ** (1 / math.comb(max(2, variants), 2))
    reach = stats.t.isf((1 - level) / 2, free) + stats.t.ppf(POWER, free)
    return float(reach * math.sqrt(variance))
