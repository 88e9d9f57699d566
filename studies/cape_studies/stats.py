"""How the scores of trainings are compared. Every interval of the laboratory is made here.

The interval of a score is Student's t over its trainings, and that of a difference of two variants
is Welch's t. It is for other trainings that are tested on the same items. Where all pairs of
variants are compared, each has Šidák's level for so many pairs, so that all of them hold together
in 95 of 100 studies; this is Tamhane's T2.

What other test items would change is no part of an interval. It stands beside the score, as a
standard error by the jackknife.

B. L. Welch, Biometrika 34 (1947) 28; Z. Šidák, J. Am. Stat. Assoc. 62 (1967) 626; A. C. Tamhane,
J. Am. Stat. Assoc. 74 (1979) 471; J. W. Tukey, Ann. Math. Stat. 29 (1958) 614. How often they hold
is simulated in ``benchmarks/intervals.py``.
"""

import math
import warnings
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.95
TRAININGS = 3  # the least for an interval; of two it would reach 13 standard errors each way


class Estimate(NamedTuple):
    """A mean over trainings, or a difference of two.

    Attributes:
        value: NaN if a training has no score.
        low, high: ends of the interval; NaN of fewer than ``TRAININGS`` trainings of a variant.
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


def estimate(one: Any, other: Any = None, pairs: int = 1) -> Estimate:
    """The mean of a variant's scores; or that less another variant's, by Welch's t.

    Args:
        one, other: (trainings, ...) scores. Further axes are further studies, as in a simulation.
        pairs: how many pairs are compared together.
    """
    groups = [np.asarray(of, float) for of in (one, other) if of is not None]
    means = [of.mean(axis=0) for of in groups]
    value: Any = means[0] - means[1] if len(means) == 2 else means[0]
    if min(map(len, groups)) < TRAININGS:
        return Estimate(value)
    with warnings.catch_warnings():  # of equal scores the interval has no width
        warnings.simplefilter("ignore", RuntimeWarning)
        if other is None:
            test = stats.ttest_1samp(groups[0], 0)
        else:
            test = stats.ttest_ind(*groups, equal_var=False)
        return Estimate(value, *test.confidence_interval(LEVEL ** (1 / pairs)))


def all_pairs(scores: pd.DataFrame) -> dict[tuple[str, str], Estimate]:
    """Each ordered pair of variants → the first less the second, by Tamhane's T2.

    Variants with fewer than ``TRAININGS`` trainings, or with a training that has no score, are left
    out.

    Args:
        scores: one row for each training, with ``variant`` and ``value``.
    """
    values = {str(name): of.to_numpy() for name, of in scores.groupby("variant")["value"]}
    values = {v: of for v, of in values.items() if len(of) >= TRAININGS and not np.isnan(of).any()}
    pairs = math.comb(len(values), 2)
    return {
        (one, other): estimate(values[one], values[other], pairs)
        for one, other in permutations(values, 2)
    }


def item_error(without: np.ndarray | pd.Series) -> float:
    """The standard error that the choice of test items gives a score, by the jackknife.

    Args:
        without: (items,) the score without each item. Of fewer than two items, and of a NaN among
            them, the error is NaN.
    """
    many = len(without)
    return float(np.asarray(without).std() * math.sqrt(many - 1)) if many > 1 else math.nan
