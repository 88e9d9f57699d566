"""Which variant to take: what a report begins with.

For each range of conditions the answer names the variant with the best mean, the variants that are
not significantly different from it, and those that are worse. Nobody knew before which variant
would be best, so all pairs of a range are compared (:func:`cape_studies.stats.all_pairs`).

An answer is advice for data that come later. So "worse" is said where it holds for other trainings
and other test items; what holds for these items alone is said apart. Each pair is judged by its own
trainings and items. Of fewer than ``stats.ITEMS`` test items nothing is claimed, nothing of others
beyond fewer than ``stats.GROUPS`` groups of items that belong together, and scores near their
limit, such as 100 %, are not compared.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from cape_studies.compare import OF_GROUP, Scores
from cape_studies.settings import Answer
from cape_studies.stats import (
    AWAY,
    GROUPS,
    ITEMS,
    TRAININGS,
    Estimate,
    Pair,
    Sample,
    all_pairs,
    influence,
)
from cape_studies.tables import cell
from cape_studies.tidy import Result

BRACKETS = (
    "In parentheses is the difference from the best, with its 95 % interval, for all pairs of a "
    "range together (Tamhane's T2), for other trainings"
)
OTHERS = " and other test items (variances by trainings and by items, added)"
SAME = " on the same test items"
FALLING = 0.05  # of the whole fall of a loss, in the last quarter


def ranges(about: Answer, every: Sequence[Scores]) -> dict[str, list[tuple[Scores, str]]]:
    """Words for each range → its evaluations and conditions; those of training are first."""
    found: dict[str, list[tuple[Scores, str]]] = {}
    for within in (True, False):
        for one in every:
            if one.metric != every[0].metric:
                continue
            words = about.within if within else about.beyond.get(one.evaluation, one.evaluation)
            words += f", {by}" if (by := about.by.get(one.evaluation)) else ""
            for condition in one.conditions:
                if (condition in one.seen) is within:
                    of = found.setdefault(words.replace("{condition}", condition), [])
                    of.append((one, condition))
    return found


def of_ranges(about: Answer, every: Sequence[Scores]) -> dict[str, dict[str, Any]]:
    """What the answer says of each range, see :func:`of_range`.

    A variant that lacks a score is listed and left out: a mean without it would mislead.
    """
    found = {}
    for words, scores in ranges(about, every).items():
        variants = dict.fromkeys(name for one, _ in scores for name in one.variants)
        each = {name: sample(name, scores, about.same_items) for name in variants}
        there = {name: of for name, of in each.items() if of is not None}
        lacking = [name for name in variants if name not in there]
        if there:
            higher = scores[0][0].higher
            found[words] = of_range(there, higher, about.floor, about.chance, lacking)
    return found


def sample(variant: str, scores: Sequence[tuple[Scores, str]], same: bool) -> Sample | None:
    """A variant's mean over evaluations and conditions; None if a training lacks one of them.

    ``same``: whether an item of two conditions with one name is one item. A group always is.
    """
    if any((variant, condition) not in one.values for one, condition in scores):
        return None
    values = [one.values[variant, condition] for one, condition in scores]
    trainings = pd.concat(values, axis=1).mean(axis=1, skipna=False)
    if trainings.isna().any():
        return None
    away = sum(one.away(variant, condition) for one, condition in scores)
    without = [one.without(variant, condition) for one, condition in scores]
    if not all(map(len, without)):
        return Sample(trainings, away=away)
    parts, names = [], set()
    for i, ((one, condition), of) in enumerate(zip(scores, without, strict=True)):
        names |= {(0 if same else i, *item) for item in one.items(variant, condition)}
        keys = [(0 if same or unit.startswith(OF_GROUP) else i, unit) for unit in of.index]
        parts.append(influence(of).set_axis(pd.Index(keys, tupleize_cols=False)))
    influences = pd.concat(parts).groupby(level=0).sum() / len(parts)
    sizes = Counter(unit for _, unit, _ in names)
    grouped = any(unit.startswith(OF_GROUP) for unit in sizes)
    of_units = [sizes[unit] for _, unit in influences.index] if grouped else []
    return Sample(trainings, influences, len(names), of_units, away)


def of_range(
    each: Mapping[str, Sample],
    higher: bool,
    floor: str,
    chance: float | None,
    lacking: Sequence[str] = (),
) -> dict[str, Any]:
    """What the answer says about a range, under the keys of ``answer.json``.

    The best of the variants that can be compared has a key, and so have those of the same mean, and
    the differences of the others from it. Further keys have the variants that are worse, and those
    that are worse on these test items and perhaps not on others. Then come those that are not
    significantly different, those of too few items for a claim, and those too near the limit of the
    score to be compared. ``not_learned`` has those that are not significantly better than chance.
    ``floor_beaten`` says whether any variant is significantly better than the floor; it is None if
    they were not compared. ``worse_than_floor`` has those that are significantly worse, and
    ``worse_than_floor_on_these_items`` those of which it is not known for others.
    ``of_these_items`` has all whose interval of the difference is for these items alone.

    Args:
        each: variant → its score.
        higher: whether higher is better.
        floor, chance: of the study's ``answer``.
        lacking: variants that lack a score.
    """
    means = {name: float(pd.Series(one.trainings).mean()) for name, one in each.items()}
    order = sorted(means, key=lambda name: means[name], reverse=higher)
    pairs = all_pairs(each)
    first = [name for name in order if each[name].compared] or order
    best = first[0]
    others = [name for name in order if name != best]
    apart = {
        name: pairs.get((name, best), Pair(Estimate(means[name] - means[best]))) for name in others
    }

    def those(what: Any) -> list[str]:
        return [name for name in compared if what(apart[name])]

    close = [name for name in others if apart[name].near]
    compared = [name for name in others if apart[name].widest.known and name not in close]
    surely = those(lambda of: of.claimed and of.others is not None and of.others.differs())
    maybe = those(lambda of: of.claimed and of.here.differs())
    maybe = [name for name in maybe if name not in surely]
    few = those(lambda of: of.few)
    beside = {
        name: pairs[name, floor]
        for name in each
        if (name, floor) in pairs and pairs[name, floor].claimed
    }
    beaten = [name for name, of in beside.items() if _better(of.widest, 0, higher)]
    hurt = [name for name, of in beside.items() if name not in beaten and of.widest.differs()]
    return {
        "best": best,
        "same_mean": [name for name in first[1:] if math.isclose(means[name], means[best])],
        "cannot_be_told_from_it": [
            name for name in compared if name not in (*surely, *maybe, *few)
        ],
        "worse": surely,
        "worse_on_these_items": maybe,
        "too_few_items": few,
        "too_near_the_limit": close,
        "not_compared": [n for n in others if n not in compared and n not in close],
        "of_these_items": [n for n, of in apart.items() if of.widest.known and of.others is None],
        "differences": {
            name: {what: x for what, x in of.widest._asdict().items() if not math.isnan(x)}
            for name, of in apart.items()
        },
        "floor_beaten": bool(beaten) if beside else None,
        "worse_than_floor": [name for name in hurt if beside[name].others is not None],
        "worse_than_floor_on_these_items": [n for n in hurt if beside[n].others is None],
        "not_learned": [
            name
            for name, one in each.items()
            if chance is not None and not _better(one.estimate(), chance, higher)
        ],
        "means": {name: means[name] for name in order},
        "trainings": {name: len(one.trainings) for name, one in each.items()},
        "lacking": [*lacking],
        "items": min((of.items for of in each.values() if of.items), default=None),
        "groups": min((len(of.sizes) for of in each.values() if len(of.sizes)), default=None),
    }


def _better(one: Estimate, number: float, higher: bool) -> bool:
    """Whether it is significantly better than a number; without an interval, if it is better."""
    end = one.value if not one.known else one.low if higher else one.high
    return end > number if higher else end < number


def of_result(result: Result, every: Sequence[Scores]) -> dict[str, Any] | None:
    """The answer as ``answer.json`` has it; None for a study that has no ``answer``."""
    if (about := result.answer) is None:
        return None
    return {
        "data": about.found,
        "notes": result.notes,
        "metric": every[0].metric,
        "digits": 1 if every[0].percent or every[0].most >= 10 else 3,
        "chance": about.chance,
        "chance_is": result.chance,
        "floor": about.floor,
        "ranges": of_ranges(about, every),
        "take": {name: result.typed[name] for name in every[0].variants if name in result.typed},
    }


def sentences(answer: Mapping[str, Any]) -> list[str]:
    """The answer in words, a paragraph for each range."""
    found = [f"{answer['data']}."] if answer["data"] else []
    for words, of in answer["ranges"].items():
        found.append(f"{words[0].upper()}{words[1:]}: {' '.join(_in_words(answer, of))}")
    if not answer["ranges"]:
        found.append("There is no answer: no variant has all scores of a range.")
    every = answer["ranges"].values()
    known = [(of, name) for of in every for name, one in of["differences"].items() if "low" in one]
    here = [name in of["of_these_items"] for of, name in known]
    if known:
        mixed = f"{OTHERS} where items are stored of both, else{SAME}"
        found.append(f"{BRACKETS}{SAME if all(here) else mixed if any(here) else OTHERS}.")
    return found


def _in_words(answer: Mapping[str, Any], of: Mapping[str, Any]) -> Iterator[str]:
    """What is said of a range, a sentence each."""
    best, means, metric, digits = of["best"], of["means"], answer["metric"], answer["digits"]

    def named(names: Sequence[str]) -> str:
        """``rope 49.3 (−1.3 [−5.0, +2.5])``: the mean, and how far it is from the best."""
        apart = {name: cell(Estimate(**of["differences"][name]), digits, "+") for name in names}
        return ", ".join(f"{name} {means[name]:.{digits}f} ({one})" for name, one in apart.items())

    mean = f"{metric} {means[best]:.{digits}f}"
    first = next(iter(means))  # of too few trainings, if it is another
    ahead = first != best and not math.isclose(means[first], means[best])
    those = f" of those with {TRAININGS} trainings or more" if ahead else ""
    if of["same_mean"]:
        same = ", ".join([best, *of["same_mean"]])
        yield f"The best mean{those}, {mean}, is that of several: {same}."
    else:
        yield f"{best} has the best mean{those}, {mean}."
    if of["groups"] and of["groups"] < GROUPS:
        groups = f"these {of['groups']} groups of test items" if of["groups"] > 1 else "one group"
        yield f"No claim is made beyond {groups}: {GROUPS} are needed."
    unknown = [name for name in of["worse_on_these_items"] if name in of["of_these_items"]]
    unsure = [name for name in of["worse_on_these_items"] if name not in unknown]
    for names, head in (
        (of["cannot_be_told_from_it"], "Not significantly different from it"),
        (of["too_few_items"], f"No claim is made of {of['items']} test items, {ITEMS} are needed"),
        (unsure, "Worse on these test items, perhaps not on others"),
        (unknown, "Worse on these test items, not tested for others"),
        (of["worse"], "Worse"),
        (
            of["too_near_the_limit"],
            f"Too near the limit to compare, with fewer than {AWAY} items that are not all right "
            "or all wrong",
        ),
        (
            of["not_compared"],
            "Not compared, for want of three trainings of each with scores that differ",
        ),
    ):
        if names:
            yield f"{head}: {named(names)}."
    if of["lacking"]:
        yield f"Left out, as a training has no score: {', '.join(of['lacking'])}."
    if of["not_learned"]:
        chance = f"{answer['chance_is']} ({answer['chance']:.{digits}f})"
        yield f"Not significantly better than {chance}: {', '.join(of['not_learned'])}."
    yield from _of_floor(of, answer["floor"])


def _of_floor(of: Mapping[str, Any], floor: str) -> Iterator[str]:
    """What is said of the floor: that nothing beats it, and what is worse."""
    if of["floor_beaten"] is None:
        return
    surely, here = of["worse_than_floor"], of["worse_than_floor_on_these_items"]
    hurt = [", ".join(surely)] if surely else []
    hurt += [f"{', '.join(here)} (on these test items)"] if here else []
    worse = "; ".join(hurt)
    if of["floor_beaten"]:
        if hurt:
            yield f"Significantly worse than {floor}: {worse}."
        return
    text = f"No variant is significantly better than {floor}"
    text += f", and worse than it are {worse}" if hurt else ""
    if floor == "nopos":
        open_ = "whether positions help or hurt here, these trainings do not show"
        text += f": {'positions hurt here' if surely else open_}"
    yield f"{text}."


def converged(losses: Sequence[float], what: str = "validation") -> str:
    """Whether a training had converged, in words: it had not where its last quarter brought more
    than ``FALLING`` of the whole fall of the loss.

    Args:
        losses: in their order.
        what: of validation or of training; the latter do not say that it was too long.
    """
    last = ", ".join(f"{one:.3g}" for one in losses[-3:])
    text = f"its last {what} losses: {last}"
    if len(losses) < 4:
        return text
    quarter = losses[-1 - len(losses) // 4]
    fall, late = losses[0] - losses[-1], quarter - losses[-1]
    if fall > 0 and late > FALLING * fall:
        return f"{text}: still falling, so a longer training may say otherwise"
    if what == "validation" and min(losses) < losses[-1] - FALLING * abs(fall):
        return f"{text}: the least was {min(losses):.3g}, so it has been trained for too long"
    return f"{text}: no longer falling"
