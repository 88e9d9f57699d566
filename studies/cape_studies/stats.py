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

B. L. Welch, Biometrika 34 (1947) 28; Z. Šidák, J. Am. Stat. Assoc. 62 (1967) 626; A. C. Tamhane,
J. Am. Stat. Assoc. 74 (1979) 471; J. W. Tukey, Ann. Math. Stat. 29 (1958) 614; A. C. Cameron,
J. B. Gelbach and D. L. Miller, J. Bus. Econ. Stat. 29 (2011) 238; F. E. Satterthwaite, Biometrics
Bull. 2 (1946) 110; A. B. Owen, Ann. Appl. Stat. 1 (2007) 386 for the bootstrap. How often they are
wrong is simulated in ``benchmarks/intervals.py``.
"""

import math
from collections.abc import Mapping
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
    one: Any, other: Any = None, pairs: int = 1, error: Any = None, items: int = 0
) -> Estimate:
    """The mean of a variant's scores; or that less another variant's, by Welch's t.

    Args:
        one, other: (trainings, ...) scores. Further axes are further studies, as in a simulation.
        pairs: how many pairs are compared together.
        error: the standard error by the choice of so many ``items``. The interval is then for other
            items too; without it, for the same.
    """
    groups = [np.asarray(of, float) for of in (one, other) if of is not None]
    means = [of.mean(axis=0) for of in groups]
    value: Any = means[0] - means[1] if len(means) == 2 else means[0]
    if min(map(len, groups)) < TRAININGS:
        return Estimate(value)
    parts = [(of.var(axis=0, ddof=1) / len(of), len(of) - 1) for of in groups]
    parts += [] if error is None else [(np.square(error), items - 1)]
    variance: Any = sum(part for part, _ in parts)
    with np.errstate(divide="ignore", invalid="ignore"):
        free = variance**2 / sum(part**2 / own for part, own in parts)
    reach = stats.t.isf((1 - LEVEL ** (1 / pairs)) / 2, free) * np.sqrt(variance)
    return Estimate(value, value - reach, value + reach)


def all_pairs(
    values: Mapping[str, Any], influences: Mapping[str, pd.Series] | None = None
) -> dict[tuple[str, str], Estimate]:
    """Each ordered pair of variants → the first less the second, by Tamhane's T2.

    Variants with fewer than ``TRAININGS`` trainings, or with a training that has no score, are left
    out.

    Args:
        values: variant → the score of each training.
        influences: variant → :func:`influence` of its mean. The intervals are then for other items
            too; without them, for the same.
    """
    each = {name: np.asarray(of, float) for name, of in values.items()}
    each = {v: of for v, of in each.items() if len(of) >= TRAININGS and not np.isnan(of).any()}
    pairs = math.comb(len(each), 2)
    found = {}
    for one, other in permutations(each, 2):
        error, items = None, 0
        if influences is not None:
            less = influences[one] - influences[other]
            error, items = item_error(less), len(less)
        found[one, other] = estimate(each[one], each[other], pairs, error, items)
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
