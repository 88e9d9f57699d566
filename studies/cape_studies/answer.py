"""Which variant to take: what a report of a user's own data begins with.

For each range of conditions the answer names the variant with the best mean, the variants that are
not significantly different from it, and those that are worse. Nobody knew before which variant
would be best, so all pairs of a range are compared (:func:`cape_studies.stats.all_pairs`).

An answer is advice for data that come later. So "worse" is said where it holds for other trainings
and other test items; what holds for these items alone is said apart. Of fewer than
``stats.ITEMS`` test items nothing is claimed, and scores near their limit, such as 100 %, are not
compared.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from cape_studies import hosts
from cape_studies.compare import Scores
from cape_studies.config import Answer, Study
from cape_studies.results import Result
from cape_studies.stats import AWAY, ITEMS, Estimate, all_pairs, estimate, influence, item_error
from cape_studies.tables import cell

BRACKETS = (
    "In parentheses is the difference from the best, with its 95 % interval, for all pairs of a "
    "range together (Tamhane's T2), for other trainings"
)
#: whether single items are stored → how the sentence goes on
FOR = {
    True: " and other test items (variances by trainings and by items, added).",
    False: " on the same test items.",
}


def ranges(about: Answer, every: Sequence[Scores]) -> dict[str, list[tuple[Scores, str]]]:
    """Words for each range → its evaluations and conditions; those of training are first."""
    found: dict[str, list[tuple[Scores, str]]] = {}
    for within in (True, False):
        for one in every:
            if one.metric != every[0].metric:
                continue
            words = about.within if within else about.beyond.get(one.evaluation, one.evaluation)
            words += f", {by}" if (by := about.by.get(one.evaluation)) else ""
            inside = [(one, c) for c in one.conditions if (c in one.seen) is within]
            if inside:
                found.setdefault(words, []).extend(inside)
    return found


def of_ranges(about: Answer, every: Sequence[Scores]) -> dict[str, dict[str, Any]]:
    """What the answer says of each range, see :func:`of_range`.

    A variant that lacks a score is listed and left out: a mean without it would mislead.
    """
    found = {}
    for words, scores in ranges(about, every).items():
        means, lacking = {}, []
        for name in scores[0][0].variants:
            values = [one.values[name, condition] for one, condition in scores]
            each = pd.concat(values, axis=1).mean(axis=1, skipna=False)
            if each.notna().all():
                means[name] = each
            else:
                lacking.append(name)
        if means:
            higher = scores[0][0].higher
            items = {name: _items(name, scores, about.same_items) for name in means}
            away = {name: sum(one.away(name, c) for one, c in scores) for name in means}
            found[words] = of_range(
                means, higher, about.floor, about.chance, lacking, items=items, away=away
            )
    return found


def _items(variant: str, scores: Sequence[tuple[Scores, str]], same: bool) -> pd.Series:
    """What each test item changes of a variant's mean over conditions, see
    :func:`cape_studies.stats.influence`; empty where items are not stored.

    ``same``: whether an item of two conditions with one name is one item.
    """
    each = [one.without(variant, condition) for one, condition in scores]
    if not all(map(len, each)):
        return pd.Series(dtype=float)
    keys = [0 if same else i for i in range(len(each))]
    parts = [
        influence(of).rename(lambda item, key=key: (key, item))
        for key, of in zip(keys, each, strict=True)
    ]
    return pd.concat(parts).groupby(level=0).sum() / len(parts)


def of_range(
    each: Mapping[str, pd.Series],
    higher: bool,
    floor: str,
    chance: float | None,
    lacking: Sequence[str] = (),
    *,
    items: Mapping[str, pd.Series] | None = None,
    away: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """What the answer says about a range, under the keys of ``answer.json``.

    The best variant has a key, and so have those of the same mean, and the differences of the
    others from it. Further keys have the variants that are worse, and those that are worse on these
    test items and perhaps not on others. Then come those that are not significantly different, and
    those too near the limit of the score to be compared. ``not_learned`` has those that are not
    significantly better than chance. ``floor_beaten``
    says whether any variant is significantly better than the floor; it is None if they were not
    compared. ``worse_than_floor`` has those that are significantly worse.

    Args:
        each: variant → the mean over evaluations and conditions of each training.
        higher: whether higher is better.
        floor, chance: of the study's ``answer``.
        lacking: variants that lack a score.
        items: variant → :func:`cape_studies.stats.influence` of its mean. Where one lacks them, or
            their items are not the same, all is said of these test items alone.
        away: variant → how many items are away from the limits of the score, in all conditions.
    """
    means = {name: float(one.mean()) for name, one in each.items()}
    best, *others = order = sorted(means, key=lambda name: means[name], reverse=higher)
    items, away = items or {}, away or {}
    sets = [items.get(name, pd.Series(dtype=float)) for name in each]
    many = len(sets[0]) if all(one.index.equals(sets[0].index) for one in sets) else 0
    few = 0 < many < ITEMS
    here = all_pairs(each)
    pairs = all_pairs(each, items) if many else here
    near = {name for name, number in away.items() if number < AWAY}
    claims = {  # pairs of which something may be said
        two: one for two, one in pairs.items() if not few and not near.issuperset(two)
    }

    def significant(of: Mapping[tuple[str, str], Estimate], name: str, other: str) -> bool:
        return (name, other) in claims and of[name, other].differs()

    apart = {name: pairs.get((name, best), Estimate(means[name] - means[best])) for name in others}
    close = [name for name in others if {name, best} <= near]
    compared = [name for name in others if apart[name].known and name not in close]
    surely = [name for name in compared if many and significant(pairs, name, best)]
    maybe = [name for name in compared if name not in surely and significant(here, name, best)]
    beside = [name for name in each if (name, floor) in claims and pairs[name, floor].known]
    beaten = [name for name in beside if _better(pairs[name, floor], 0, higher)]
    return {
        "best": best,
        "same_mean": [name for name in others if math.isclose(means[name], means[best])],
        "cannot_be_told_from_it": [n for n in compared if n not in surely and n not in maybe],
        "worse": surely,
        "worse_on_these_items": maybe,
        "too_near_the_limit": close,
        "not_compared": [n for n in others if n not in compared and n not in close],
        "differences": {
            name: {what: x for what, x in one._asdict().items() if not math.isnan(x)}
            for name, one in apart.items()
        },
        "floor_beaten": bool(beaten) if beside else None,
        "worse_than_floor": [
            name for name in beside if name not in beaten and significant(pairs, name, floor)
        ],
        "not_learned": [
            name
            for name, one in each.items()
            if chance is not None
            and not _better(
                estimate(one, error=item_error(items[name]) if many else None, items=many),
                chance,
                higher,
            )
        ],
        "means": {name: means[name] for name in order},
        "trainings": {name: len(one) for name, one in each.items()},
        "lacking": [*lacking],
        "items": many or None,
    }


def _better(one: Estimate, number: float, higher: bool) -> bool:
    """Whether it is significantly better than a number; without an interval, if it is better."""
    end = one.value if not one.known else one.low if higher else one.high
    return end > number if higher else end < number


def of_study(result: Result, every: Sequence[Scores]) -> dict[str, Any] | None:
    """The answer as ``answer.json`` has it; None for a study that has no ``answer``."""
    if (about := result.study.answer) is None:
        return None
    return {
        "data": about.found,
        "notes": result.notes,
        "metric": every[0].metric,
        "digits": 1 if every[0].percent else 3,
        "chance": about.chance,
        "ranges": of_ranges(about, every),
        "take": {v: result.typed[v] for v in every[0].variants if v in result.typed},
    }


def sentences(answer: Mapping[str, Any], study: Study) -> list[str]:
    """The answer in words, a paragraph for each range."""
    assert study.answer is not None
    found = [f"{answer['data']}."] if answer["data"] else []
    chance, digits = answer["chance"], answer["digits"]
    none = "" if chance is None else f"{hosts.host(study.host).CHANCE} ({chance:.{digits}f})"
    for words, of in answer["ranges"].items():
        text = _in_words(of, study.answer.floor, answer["metric"], none, digits)
        found.append(f"{words[0].upper()}{words[1:]}: {text}")
    if not answer["ranges"]:
        found.append("There is no answer: no variant has all scores of a range.")
    every = answer["ranges"].values()
    if any(one.keys() > {"value"} for of in every for one in of["differences"].values()):
        found.append(BRACKETS + FOR[all(of["items"] for of in every)])
    return found


def _in_words(of: Mapping[str, Any], floor: str, metric: str, none: str, digits: int) -> str:
    best, means = of["best"], of["means"]

    def named(key: str) -> str:
        """``rope 49.3 (−1.3 [−5.0, +2.5])``: the mean, and how far it is from the best."""
        apart = {name: cell(Estimate(**of["differences"][name]), digits, "+") for name in of[key]}
        return ", ".join(f"{name} {means[name]:.{digits}f} ({one})" for name, one in apart.items())

    mean = f"{metric} {means[best]:.{digits}f}"
    text = [f"{best} has the best mean, {mean}."]
    if of["same_mean"]:
        same = ", ".join([best, *of["same_mean"]])
        text = [f"The best mean, {mean}, is that of several: {same}."]
    if few := of["items"] and of["items"] < ITEMS:
        text.append(f"No claim is made of {of['items']} test items: {ITEMS} are needed.")
    if of["cannot_be_told_from_it"]:
        they = "The others" if few else "Not significantly different from it"
        text.append(f"{they}: {named('cannot_be_told_from_it')}.")
    if of["worse_on_these_items"]:
        others = "perhaps not on others" if of["items"] else "not tested for others"
        text.append(f"Worse on these test items, {others}: {named('worse_on_these_items')}.")
    if of["worse"]:
        text.append(f"Worse: {named('worse')}.")
    if of["too_near_the_limit"]:
        text.append(
            f"Too near the limit to compare, with fewer than {AWAY} items that are not all right "
            f"or all wrong: {named('too_near_the_limit')}."
        )
    if of["not_compared"]:
        text.append(
            "Not compared, for want of three trainings of each with scores that differ: "
            f"{named('not_compared')}."
        )
    if of["lacking"]:
        text.append(f"Left out, as a training has no score: {', '.join(of['lacking'])}.")
    if of["not_learned"]:
        text.append(f"Not significantly better than {none}: {', '.join(of['not_learned'])}.")
    return " ".join([*text, *_of_floor(of, floor)])


def _of_floor(of: Mapping[str, Any], floor: str) -> Iterator[str]:
    """What is said of the floor: that nothing beats it, and what is worse."""
    hurt = ", ".join(of["worse_than_floor"])
    if of["floor_beaten"] is None:
        return
    text = f"Significantly worse than {floor}: {hurt}" if hurt else ""
    if not of["floor_beaten"]:
        text = f"No variant is significantly better than {floor}"
        text += f", and worse than it are {hurt}" if hurt else ""
        if floor == "nopos":
            text += (
                ": positions hurt here"
                if hurt
                else (": whether positions help or hurt here, these trainings do not show")
            )
    if text:
        yield f"{text}."
