"""Scores and differences with 95 % intervals: over seeds, or over test items where these are few.

Over seeds: Student's t. Over items: the percentile bootstrap of the mean of the seeds, which share
the items, of pairs for a difference. The one does not cover what the other does, so a difference
has both.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from cape_plugins.experiments.report_read import Result

LEVEL, RESAMPLES = 0.95, 1000
SEEDS = 3  # for an interval over them: Student's of two is 13 times as wide as their standard error
_AT_ONCE = 2**22  # numbers that the bootstrap draws at once

#: Sums over test items (…, K) → the score (…).
Scorer = Callable[[np.ndarray], np.ndarray]


class Interval(NamedTuple):
    """A score or a difference.

    Attributes:
        value: the mean over seeds.
        low, high: of the 95 % interval; NaN without one.
        seeds: how many.
        items: low and high over test items, beside those over seeds.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    seeds: int = 1
    items: tuple[float, float] | None = None

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)


def over_seeds(values: Sequence[float]) -> Interval:
    """The mean with Student's interval, for three values and more."""
    mean, n = float(np.mean(values)), len(values)
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 1) * stats.sem(values))
    return Interval(mean, mean - half, mean + half, n)


def over_items(value: float, parts: np.ndarray, score: Scorer) -> Interval:
    """A score with the bootstrap's interval; of one item without.

    Args:
        value: the score.
        parts: (N, K), what each item adds.
        score: of their sums.
    """
    if len(parts) < 2:
        return Interval(value)

    def statistic(*sampled: np.ndarray, axis: int) -> np.ndarray:
        return score(np.stack([one.sum(axis=axis) for one in sampled], axis=-1))

    found = stats.bootstrap(
        tuple(np.ascontiguousarray(parts.T)),
        statistic,
        paired=True,
        vectorized=True,
        method="percentile",
        confidence_level=LEVEL,
        n_resamples=RESAMPLES,
        batch=max(1, _AT_ONCE // parts.size),
        rng=np.random.default_rng(0),  # the same report each time
    ).confidence_interval
    return Interval(value, float(found.low), float(found.high))


def scorer(parts: np.ndarray, value: float, where: str) -> Scorer:
    """How the items make the score: a ratio, a percentage, or BLEU with or without smoothing.

    Raises:
        ValueError: none of these gives the value.
    """
    kinds: list[Scorer] = [_ratio, lambda sums: 100 * _ratio(sums)]
    if parts.shape[1] > 2:
        kinds = [lambda sums: _bleu(sums, "none"), lambda sums: _bleu(sums, "exp")]
    for kind in kinds:
        made = float(kind(parts.sum(axis=0)))
        if math.isclose(made, value, rel_tol=1e-3, abs_tol=1e-3):
            return kind
    raise ValueError(f"{where}: the items make {made:g}, but scores.csv has {value:g}")


def _ratio(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


def _bleu(sums: np.ndarray, smoothing: str) -> np.ndarray:
    from sacrebleu.metrics import BLEU  # only translation needs it

    def one(row: np.ndarray) -> float:
        hypothesis, reference, *counts = map(int, row)
        of = counts[:4], counts[4:], hypothesis, reference
        return BLEU.compute_bleu(*of, smooth_method=smoothing).score

    return np.apply_along_axis(one, -1, sums)


class Scores:
    """The scores of one evaluation by one metric.

    Args:
        result: the study's.
        evaluation, metric: which.

    Attributes:
        baseline: the variant that the others are compared with.
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
        self.evaluation, self.metric = evaluation, metric
        shown, rows = result.study.report, result.scores
        rows = rows[(rows["evaluation"] == evaluation) & (rows["metric"] == metric)]
        rows = rows.dropna(subset="value")
        keys = ["variant", "condition", "seed"]
        if (twice := rows.duplicated(keys)).any():
            of = " ".join(map(str, rows[twice][keys].iloc[0]))
            raise ValueError(f"{result.name}: {evaluation} has several {metric} of {of}")
        self.baseline, self.higher = shown.baseline, bool(rows["higher_is_better"].all())
        self.variants = [name for name in result.study.variants if name in set(rows["variant"])]
        self.conditions: list[str] = list(dict.fromkeys(rows["condition"]))
        known = rows[rows["trained_on"]]
        self.seen = set(zip(known["variant"], known["condition"], strict=True))
        self.paper = [
            row
            for row in shown.paper
            if (row.evaluation or shown.evaluation) == evaluation
            and (row.metric or shown.metric) == metric
        ]
        self._values: dict[tuple[str, str], dict[int, float]] = {
            (str(variant), str(condition)): of.set_index("seed")["value"].to_dict()
            for (variant, condition), of in rows.groupby(["variant", "condition"], sort=False)
        }
        self._runs = {(run.variant, run.seed): run for run in result.runs}
        self.found = {
            (variant, condition): self._interval(condition, {variant: 1})
            for variant, condition in self._values
        }
        self.differences = {
            (variant, condition): self._interval(condition, {variant: 1, self.baseline: -1})
            for variant, condition in self._values
            if variant != self.baseline and self._seeds(condition, [variant, self.baseline])
        }

    def _seeds(self, condition: str, variants: Iterable[str]) -> list[int]:
        """That all of them have."""
        each = [self._values.get((variant, condition), {}) for variant in variants]
        return [seed for seed in each[0] if all(seed in one for one in each)]

    def _interval(self, condition: str, signs: dict[str, int]) -> Interval:
        """A score, or the difference of two; their test items are drawn together."""
        seeds = self._seeds(condition, signs)
        values = [[self._values[v, condition][seed] for v in signs] for seed in seeds]
        sums = [float(np.dot(list(signs.values()), row)) for row in values]
        mean = Interval(float(np.mean(sums)), seeds=len(seeds))
        if len(seeds) >= SEEDS:
            mean = over_seeds(sums)
            if len(signs) == 1:
                return mean
        parts, scorers, names = [], [], []
        for seed, row in zip(seeds, values, strict=True):
            for variant, value in zip(signs, row, strict=True):
                run = self._runs[variant, seed]
                items = run.parts(self.evaluation, self.metric, condition)
                if items is None:
                    return mean
                where = f"{run.folder}/items-{self.evaluation}.csv, {self.metric} of {condition!r}"
                parts.append(items.to_numpy(float))
                scorers.append(scorer(parts[-1], value, where))
                names.append(items.index)
        if not all(one.equals(names[0]) for one in names):
            return mean
        weights = [sign / len(seeds) for sign in signs.values()] * len(seeds)

        def score(sums: np.ndarray) -> np.ndarray:
            each = zip(weights, scorers, np.split(sums, len(weights), axis=-1), strict=True)
            return np.sum([weight * scored(part) for weight, scored, part in each], axis=0)

        found = over_items(mean.value, np.hstack(parts), score)
        if not mean.known:
            return found._replace(seeds=len(seeds))
        return mean._replace(items=(found.low, found.high) if found.known else None)
