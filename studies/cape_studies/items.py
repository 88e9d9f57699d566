"""What each test item adds to a score, and the score that items make."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

#: How items make a score. percent: 100 × sum of values / sum of weights; mean: sum of values / sum
#: of weights; bleu: sacreBLEU's BLEU; bleu_unsmoothed: fairseq's, without smoothing; number: items
#: do not make it.
How = Literal["percent", "mean", "bleu", "bleu_unsmoothed", "number"]

#: sacreBLEU's of an item: lengths of hypothesis and reference, matching 1- to 4-grams, all of them
STATS = [f"stats_{i}" for i in range(10)]
#: how items make a score → the columns of what each item adds
PARTS = {"percent": ["value", "weight"], "mean": ["value", "weight"]}
PARTS |= {"bleu": STATS, "bleu_unsmoothed": STATS}


def made(how: str, sums: Sequence[float]) -> float:
    """The score from sums over items, of values and weights or of BLEU's statistics; may be NaN."""
    if how in ("percent", "mean"):
        times = 100 if how == "percent" else 1
        return times * sums[0] / sums[1] if sums[1] else float("nan")
    from sacrebleu.metrics import BLEU

    ours, theirs, *counts = map(int, sums)
    smooth = "exp" if how == "bleu" else "none"
    return BLEU.compute_bleu(counts[:4], counts[4:], ours, theirs, smooth).score


def away(how: str, items: np.ndarray) -> float:
    """How many items are away from the limits of a score: the fewer of those that are not wholly
    wrong and those that are not wholly right. A mean has no limits, unless each item is right or
    wrong.

    Args:
        how: items make the score.
        items: (items, parts) what each adds.
    """
    if how == "mean" and not ((items[:, 0] == 0) | (items[:, 0] == items[:, 1])).all():
        return math.inf
    if how in ("percent", "mean"):
        low, high = items[:, 0] > 0, items[:, 0] < items[:, 1]
    else:  # of BLEU: no matching 4-gram, or nothing but the reference
        low = items[:, 5] > 0
        high = (items[:, 2] < items[:, 6]) | (items[:, 0] != items[:, 1])
    return float(min(low.sum(), high.sum()))
