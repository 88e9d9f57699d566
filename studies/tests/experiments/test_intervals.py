"""How often a report's 95 % intervals hold, of three trainings and 200 test items, simulated.

The noise of a score has three sources: the training, the item, which all trainings find alike hard,
and what an item does to one training alone. Their sizes are standard deviations of a score.
"""

import math

import numpy as np
import pytest
from scipy import stats

from cape_studies.evaluate.output import made
from cape_studies.experiments import report_scores

pytestmark = pytest.mark.release
TRAININGS, ITEMS = 3, 200
RANDOM = np.random.default_rng


def items(random, training, item, own, times=1):
    """(trainings, items) that each item adds, ``times`` the test set as large."""
    shape = TRAININGS, ITEMS * times
    return (
        random.normal(0, training, (TRAININGS, 1))
        + random.normal(0, item * math.sqrt(ITEMS), shape[1])
        + random.normal(0, own * math.sqrt(ITEMS), shape)
    )


def without_each(parts):
    """(items, trainings) means without each item."""
    return (parts.sum(axis=1) - parts.T) / (parts.shape[1] - 1)


def of_means(*groups, signs=(1,)):
    without = np.hstack([without_each(one) for one in groups])
    return report_scores.interval([one.mean(axis=1) for one in groups], signs, without)


def held(intervals, truth=0.0):
    """How many of a hundred hold, and the mean width."""
    low, high, _ = np.array(intervals).T
    return round(100 * np.mean((low < truth) & (truth < high))), np.mean(high - low)


@pytest.mark.parametrize(
    ("noise", "before"),
    [
        ((1, 0, 0), 4.6),  # trainings alone
        ((1, 0, 1), 8.6),  # as much by item, in each training another
        ((0.4, 0, 1), 7.6),  # mostly that
        ((1, 1, 0.3), 6.4),  # items alike for all trainings
        ((1, 1, 1), 9.5),
        ((0.1, 0.5, 0.3), 2.6),
    ],
)
def test_an_interval_holds_in_95_of_100_cases_and_is_no_wider_than_it_was(noise, before):
    """``before``: of the bootstrap that widened the noise of items by Student's factor too."""
    random = RANDOM(0)
    share, width = held([of_means(items(random, *noise)) for _ in range(3000)])
    assert 94 <= share <= (97 if noise[0] > noise[2] or noise[1] else 99)
    assert width < before


@pytest.mark.parametrize(("difficulty", "training"), [(2, 0.1), (0.5, 0.1), (0.5, 0.3), (0, 0.05)])
def test_it_holds_for_items_that_are_right_or_wrong(difficulty, training):
    """In 93.7 % where trainings are ± 8 points apart, skewed; Student's alone in 94.3 %."""
    random, found = RANDOM(1), []
    truth = stats.norm.cdf(1 / math.sqrt(1 + difficulty**2 + training**2))
    for _ in range(2000):
        logits = 1 + random.normal(0, training, (TRAININGS, 1))
        logits = logits + random.normal(0, difficulty, ITEMS)
        found.append(of_means(random.random(logits.shape) < stats.norm.cdf(logits)))
    assert 93 <= held(found, truth)[0] <= 98


@pytest.mark.parametrize("signs", [(1,), (1, -1)])
def test_no_interval_is_narrower_than_for_other_items_alone(signs):
    """As one in eight of docs' numbers was, where trainings were close by chance."""
    random = RANDOM(5)
    for _ in range(200):
        groups = [items(random, 0.1, 0.1, 1) for _ in signs]
        low, high, p = of_means(*groups, signs=signs)
        each = sum(sign * one.mean(axis=0) for sign, one in zip(signs, groups, strict=True))
        alone = stats.ttest_1samp(each, 0)
        least = alone.confidence_interval(0.95)
        assert high - low >= (least.high - least.low) * 0.9999
        assert p >= alone.pvalue * 0.9999


def sentences(random, many, quality):
    """(trainings, many, 10) sacreBLEU's statistics of sentences that get words right or wrong."""
    length = random.integers(8, 25, many)
    hard = random.normal(0, 0.6, many)
    right = 1 / (1 + np.exp(-(quality + hard + random.normal(0, 0.5, (len(quality), many)))))
    grams = np.stack([length - k for k in range(4)], axis=1)
    matches = random.binomial(grams, right[..., None] ** np.arange(1, 5))
    lengths = np.broadcast_to(length[:, None], (many, 2))
    alike = np.broadcast_to(np.hstack([lengths, grams]), (*right.shape, 6))
    return np.concatenate([alike[..., :2], matches, alike[..., 2:]], axis=2).astype(float)


def test_it_holds_in_bleu():
    random, found = RANDOM(2), []
    qualities = stats.norm.ppf((np.arange(9)[:, None] + 0.5) / 9, 1, 0.1)
    truth = np.mean([made("bleu", one) for one in sentences(random, 50_000, qualities).sum(axis=1)])
    for _ in range(600):
        drawn = sentences(random, ITEMS, random.normal(1, 0.1, (TRAININGS, 1)))
        sums = drawn.sum(axis=1)
        each = np.array([made("bleu", one) for one in sums])
        lacking = np.swapaxes(sums[:, None] - drawn, 0, 1)
        without = np.array([[made("bleu", one) for one in of] for of in lacking])
        found.append(report_scores.interval([each], without=without))
    assert 94 <= held(found, truth)[0] <= 97


@pytest.mark.parametrize("noise", [(1, 0, 0), (1, 0, 1), (1, 0.5, 0.5), (1, 1, 0.3)])
def test_of_a_difference_unpaired_trainings_hold_as_often_as_pairs_and_are_narrower(noise):
    """Where a seed makes nothing alike, which is the rule: ``Scores.paired``."""
    random, unpaired, pairs = RANDOM(3), [], []
    for _ in range(2000):
        alike = random.normal(0, math.sqrt(ITEMS), ITEMS)  # easy and hard for both variants
        one, other = (items(random, *noise) + alike for _ in range(2))
        unpaired.append(of_means(one, other, signs=(1, -1)))
        pairs.append(of_means(one - other))
    (share, width), (of_pairs, wide) = held(unpaired), held(pairs)
    assert 94 <= share <= 97
    assert 94 <= of_pairs <= 97
    assert width < wide


def test_no_difference_is_called_one_in_five_of_a_hundred_cases_and_a_rare_p_is_rare():
    random = RANDOM(4)
    two = ((items(random, 1, 0.5, 0.5), items(random, 1, 0.5, 0.5)) for _ in range(4000))
    p = np.array([of_means(*groups, signs=(1, -1))[2] for groups in two])
    assert 0.03 <= np.mean(p < 0.05) <= 0.06
    assert np.mean(p < 0.005) <= 0.01  # for Holm's correction over several variants
