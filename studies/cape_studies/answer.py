"""Which variant to take: what a report of a user's own data begins with.

For each range of conditions the answer names the variant with the best mean, the variants that are
not significantly different from it, and those that are worse. Nobody knew before which variant
would be best, so all pairs of a range are compared (:func:`cape_studies.stats.all_pairs`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from cape_studies.compare import Scores
from cape_studies.config import Answer, Study
from cape_studies.results import Result
from cape_studies.stats import TRAININGS, Estimate, all_pairs, estimate, item_error
from cape_studies.tables import CHANCE, cell

BRACKETS = (
    "In parentheses is the difference from the best, with the 95 % interval for other trainings on "
    "the same test items, for all pairs of a range together (Tamhane's T2)."
)
ITEMS = "±: its standard error by the choice of test items, no part of the interval."


class Group(NamedTuple):
    """A variant's trainings in a range.

    Attributes:
        each: the mean over evaluations and conditions, by seed; NaN for a training that lacks a
            score in one of them.
        without: the mean over trainings without each item, by the item's name; empty where single
            items are not stored.
    """

    each: pd.Series
    without: pd.Series = pd.Series(dtype=float)


def group(scores: Sequence[tuple[Scores, str]], variant: str) -> Group:
    """A variant's mean over evaluations and conditions."""
    values = [one.values[variant, condition] for one, condition in scores]
    each = pd.concat(values, axis=1).mean(axis=1, skipna=False)
    without = [one.without(variant, condition) for one, condition in scores]
    if any(of.empty for of in without):
        return Group(each)
    items = pd.concat(without, axis=1, keys=range(len(without))).sort_index()
    whole = {i: of.mean() for i, of in enumerate(values)}  # for an item that a condition lacks
    return Group(each, items.fillna(whole).mean(axis=1))


def ranges(about: Answer, every: Sequence[Scores]) -> dict[str, list[tuple[Scores, str]]]:
    """Words for each range → its evaluations and conditions; that of training is first."""
    first = [one for one in every if one.metric == every[0].metric]
    found: dict[str, list[tuple[Scores, str]]] = {about.within: []}
    for one in first:
        for condition in one.conditions:
            seen = any((variant, condition) in one.seen for variant in one.variants)
            words = about.within if seen else about.beyond.get(one.evaluation, one.evaluation)
            found.setdefault(words, []).append((one, condition))
    return {words: scores for words, scores in found.items() if scores}


def of_ranges(about: Answer, every: Sequence[Scores]) -> dict[str, dict[str, Any]]:
    """What the answer says of each range in which a variant has all scores, see :func:`of_range`.

    Variants that lack a score are listed; means without it would mislead.
    """
    found = {}
    for words, scores in ranges(about, every).items():
        groups = {name: group(scores, name) for name in scores[0][0].variants}
        whole = {name: one for name, one in groups.items() if one.each.notna().all()}
        if whole:
            found[words] = of_range(whole, scores[0][0].higher, about.floor, about.chance)
            found[words]["conditions"] = [f"{one.evaluation} {c}" for one, c in scores]
            found[words]["lacking"] = [name for name in groups if name not in whole]
    return found


def of_range(
    groups: Mapping[str, Group], higher: bool, floor: str, chance: float | None
) -> dict[str, Any]:
    """What the answer says about a range, under the keys of ``answer.json``.

    The best variant has a key, and so have the differences of the others from it. Others say which
    variants are worse, which are not significantly different, and which are not significantly
    better than chance. One says whether any variant is significantly better than the floor; it is
    None if they were not compared.
    """
    means = {name: float(one.each.mean()) for name, one in groups.items()}
    best, *others = order = sorted(means, key=lambda name: means[name], reverse=higher)
    tidy = {name: one.each.to_frame("value").assign(variant=name) for name, one in groups.items()}
    pairs = all_pairs(pd.concat(tidy.values()))
    differences = {}
    for name in others:
        one = pairs.get((name, best), Estimate(means[name] - means[best]))
        without, of_best = groups[name].without, groups[best].without
        if without.index.equals(of_best.index):
            one = one._replace(items=item_error(without - of_best))
        differences[name] = one
    ahead = [_better(one, 0, higher) for (_, other), one in pairs.items() if other == floor]
    compared = [name for name in others if differences[name].known]
    worse = [name for name in compared if differences[name].differs()]
    return {
        "best": best,
        "cannot_be_told_from_it": [name for name in compared if name not in worse],
        "worse": worse,
        "not_compared": [name for name in others if name not in compared],
        "differences": {
            name: {what: x for what, x in one._asdict().items() if not math.isnan(x)}
            for name, one in differences.items()
        },
        "floor_beaten": any(ahead) if ahead else None,
        "not_learned": [
            name
            for name, one in groups.items()
            if chance is not None and not _better(estimate(one.each), chance, higher)
        ],
        "means": {name: means[name] for name in order},
        "trainings": {name: len(one.each) for name, one in groups.items()},
        "pairs": len(pairs) // 2,
    }


def _better(one: Estimate, number: float, higher: bool) -> bool:
    """Whether it is significantly better than a number; without an interval, if it is better."""
    end = one.value if not one.known else one.low if higher else one.high
    return end > number if higher else end < number


def of_study(result: Result, every: Sequence[Scores]) -> dict[str, Any] | None:
    """The answer as ``answer.json`` has it; None for a study that has no ``answer``."""
    if (about := result.study.answer) is None:
        return None
    floor, seconds = about.floor, result.seconds
    found: dict[str, Any] = {
        "data": about.found,
        "metric": every[0].metric,
        "chance": about.chance,
        "ranges": of_ranges(about, every),
        "cost": {
            name: {"seconds": seconds[name], "to_floor": seconds[name] / seconds[floor]}
            for name in result.study.variants
            if name in seconds and floor in seconds
        },
        "take": {v: result.typed[v] for v in every[0].variants if v in result.typed},
    }
    if result.unfinished:
        found["unfinished"] = {
            "trainings": result.unfinished,
            "asked_for": sum(result.wanted.values()),
            "type": result.command,
        }
    return found


def sentences(answer: Mapping[str, Any], study: Study) -> list[str]:
    """The answer in words, a paragraph for each range and one for the cost."""
    assert study.answer is not None
    floor = study.answer.floor
    found = [f"{answer['data']}."] if answer["data"] else []
    if of := answer.get("unfinished"):
        names = [f"{name} ({state})" for name, state in of["trainings"].items()]
        text = f"Preliminary: {len(names)} of the {of['asked_for']} trainings that were asked for "
        found.append(f"{text}are not done: {', '.join(names)}. To finish them, type {of['type']}")
    none = "" if answer["chance"] is None else f"{CHANCE[study.host]} ({answer['chance']:.1f})"
    for words, of in answer["ranges"].items():
        text = _in_words(of, floor, answer["metric"], none)
        found.append(f"{words[0].upper()}{words[1:]}: {text}")
    if not answer["ranges"]:
        found.append("There is no answer: no variant has a score in all conditions of a range.")
    if any(of["pairs"] for of in answer["ranges"].values()):
        every = [d for of in answer["ranges"].values() for d in of["differences"].values()]
        found.append(f"{BRACKETS} {ITEMS}" if any("items" in d for d in every) else BRACKETS)
    if cost := [f"{name} {of['to_floor']:.2f} times" for name, of in answer["cost"].items()]:
        found.append(f"Time of training beside that of {floor}, measured here: {'; '.join(cost)}.")
    return found


def _in_words(of: Mapping[str, Any], floor: str, metric: str, none: str) -> str:
    best, means, numbers = of["best"], of["means"], of["trainings"]

    def named(names: Sequence[str]) -> str:
        """``rope 49.3 (−1.3 [−5.0, +2.5])``: the mean, and how far it is from the best."""
        apart = {name: cell(Estimate(**of["differences"][name]), 1, "+") for name in names}
        return ", ".join(f"{name} {means[name]:.1f} ({apart[name]})" for name in names)

    text = f"{best} has the best mean, {metric} {means[best]:.1f}. "
    if len({*numbers.values()}) > 1 or numbers[best] < TRAININGS:
        text += f"Trainings: {', '.join(f'{name} {many}' for name, many in numbers.items())}. "
    if of["cannot_be_told_from_it"]:
        text += f"Not significantly different from it: {named(of['cannot_be_told_from_it'])}. "
    if of["worse"]:
        text += f"Worse: {named(of['worse'])}. "
    if of["not_compared"]:
        text += f"Not compared, for want of three trainings of each: {named(of['not_compared'])}. "
    if len(of["not_learned"]) == len(means):
        text += f"No variant is significantly better than {none}: they need a longer training. "
    elif of["floor_beaten"] is False:
        text += f"No variant is significantly better than {floor}: these trainings do not show "
        text += "that positions matter here. "
    if 0 < len(of["not_learned"]) < len(means):
        text += f"Not significantly better than {none}: {', '.join(of['not_learned'])}. "
    if of["lacking"]:
        text += f"Not shown, as a training has no score: {', '.join(of['lacking'])}. "
    return text.strip()
