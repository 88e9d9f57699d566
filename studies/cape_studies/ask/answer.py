"""Which variant to take: what a report of a user's own data begins with.

For each range of conditions the answer names the variant with the best mean, the variants that are
not significantly different from it, and those that are worse, with the difference. A pair of
variants is compared by the difference of their means over trainings. Its noise includes what test
items do to both. Nobody knew before which variant would be best, so all pairs of a range are
compared, and tested together at 5 % (Holm).
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cape_studies.config import Answer, Study
from cape_studies.experiments.report_read import TRAININGS, Result
from cape_studies.experiments.report_scores import Scores, interval

LEVEL = 0.05
#: the most degrees of freedom that the mean spread of all variants adds to a variant's own; with
#: more, a variant whose trainings spread far would be called different too often
BORROWED = 2


class Group(NamedTuple):
    """A variant's trainings in a range.

    Attributes:
        each: (n,) scores.
        without: (items, n) scores without each item, indexed by the item's name; None where single
            items are not stored.
        lacking: number of trainings without a score. They may have diverged, and a mean without
            them would mislead, so such a variant is not compared.
    """

    each: np.ndarray
    without: pd.DataFrame | None = None
    lacking: int = 0


def adjusted(p: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm's method: compare them with the level for all tests together."""
    ordered = pd.Series(p).sort_values()
    steps = (ordered * range(len(p), 0, -1)).cummax().clip(upper=1)
    return steps.sort_index().tolist()


def pairs(groups: Mapping[str, Group]) -> dict[tuple[str, str], float]:
    """Each pair of variants → p of no difference, adjusted for the number of pairs.

    Three trainings say little about their spread. So a variant's own variance is combined with the
    mean variance of all variants, which counts for some degrees of freedom (as in limma's moderated
    t, Smyth 2004). Variants with fewer than three trainings are left out, and so are variants with
    a training that has no score.
    """
    groups = {v: one for v, one in groups.items() if len(one.each) >= TRAININGS and not one.lacking}
    if len(groups) < 2:
        return {}
    free = [len(one.each) - 1 for one in groups.values()]
    mean = float(np.mean([one.each.var(ddof=1) for one in groups.values()]))
    prior = mean, max(0.0, min(BORROWED, sum(free) / 2 - max(free)))
    found = {}
    for one, other in combinations(groups, 2):
        of = groups[one], groups[other]
        items = [each.without for each in of if each.without is not None]
        alike = len(items) == 2 and items[0].index.equals(items[1].index)
        without = np.hstack([each.to_numpy() for each in items]) if alike else None
        found[one, other] = interval([each.each for each in of], (1, -1), without, prior)[2]
    return dict(zip(found, adjusted([*found.values()]), strict=True))


def group(scores: Sequence[tuple[Scores, str]], variant: str) -> Group | None:
    """A variant's mean over evaluations and conditions, for the trainings that have a score in all
    of these; None if no training has."""
    values = [one.values[variant, condition] for one, condition in scores]
    every = pd.concat(values, axis=1).mean(axis=1, skipna=False)
    each = every.dropna()
    if each.empty:
        return None
    if lacking := len(every) - len(each):
        return Group(each.to_numpy(), None, lacking)
    columns = {}
    for seed in each.index:
        found = [one.without(variant, condition, seed) for one, condition in scores]
        if any(without is None for _, without in found):
            return Group(each.to_numpy())
        items = [pd.Series(without, index=list(names)) for names, without in found]
        whole = {i: of[seed] for i, of in enumerate(values)}  # for an item that a condition lacks
        columns[seed] = pd.concat(items, axis=1).fillna(whole).mean(axis=1)
    return Group(each.to_numpy(), pd.DataFrame(columns).sort_index())


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


def of_range(
    groups: Mapping[str, Group], higher: bool, floor: str, chance: float | None
) -> dict[str, Any]:
    """What the answer says about a range, under the keys of ``answer.json``.

    Among them are the best variant, the variants that are not significantly different from it,
    those that are worse (by, p), whether the floor is beaten, and which variants have not learned.
    """
    means = {name: float(one.each.mean()) for name, one in groups.items()}
    order = sorted(means, key=lambda name: means[name], reverse=higher)
    lacking = {name: one.lacking for name, one in groups.items() if one.lacking}
    order = [name for name in order if name not in lacking] or order
    best, p = order[0], pairs(groups)
    of_best = {name: p.get((best, name), p.get((name, best))) for name in order[1:]}
    worse = {
        name: {"by": abs(means[best] - means[name]), "p": one}
        for name, one in of_best.items()
        if one is not None and one <= LEVEL
    }
    sign = 1 if higher else -1
    return {
        "best": best,
        "cannot_be_told_from_it": [
            name for name in order[1:] if name not in worse and of_best[name] is not None
        ],
        "not_compared": [name for name in order[1:] if of_best[name] is None],
        "worse": worse,
        "behind": {name: abs(means[best] - means[name]) for name in order[1:]},
        "floor_beaten": _beaten(best, floor, worse, of_best),
        "not_learned": [v for v in means if chance is not None and sign * (means[v] - chance) <= 0],
        "means": {name: means[name] for name in (*order, *lacking)},
        "trainings": {name: len(one.each) for name, one in groups.items()},
        "trainings_without_a_score": lacking,
        "pairs": len(p),
    }


def _beaten(
    best: str, floor: str, worse: Mapping[str, Any], of_best: Mapping[str, float | None]
) -> bool | None:
    """Whether the best is significantly ahead of the floor; None if the two were not compared."""
    if floor == best:
        return False if any(p is not None for p in of_best.values()) else None
    return None if of_best.get(floor) is None else floor in worse


def of_study(result: Result, every: Sequence[Scores]) -> dict[str, Any] | None:
    """The answer as ``answer.json`` has it; None for a study that has no ``answer``."""
    study = result.study
    if (about := study.answer) is None:
        return None
    found: dict[str, Any] = {"data": about.found, "metric": every[0].metric, "ranges": {}}
    if result.unfinished:
        none = [v for v in result.wanted if v not in every[0].variants]
        found["unfinished"] = {
            "trainings": result.unfinished,
            "asked_for": sum(result.wanted.values()),
            "variants_without_any": none,
            "type": result.command,
        }
    for words, scores in ranges(about, every).items():
        own = {name: group(scores, name) for name in scores[0][0].variants}
        groups = {name: one for name, one in own.items() if one is not None}
        if groups:
            of = of_range(groups, scores[0][0].higher, about.floor, about.chance)
            of["conditions"] = [f"{one.evaluation} {condition}" for one, condition in scores]
            of["without_a_score"] = [name for name in own if name not in groups]
            found["ranges"][words] = of
    if not found["ranges"]:
        found["no_answer"] = "no training has a score in all conditions of a range"
        found["type"] = result.command
    cost, floor = result.cost, about.floor
    found["cost"] = {
        name: {**cost[name], "to_floor": cost[name]["seconds"] / cost[floor]["seconds"]}
        for name in study.variants
        if name in cost and floor in cost
    }
    found["take"] = {name: result.typed[name] for name in every[0].variants}
    return found


def sentences(answer: Mapping[str, Any], study: Study) -> list[str]:
    """The answer in words, a paragraph for each range and one for the cost."""
    assert study.answer is not None
    floor = study.answer.floor
    found = [f"{answer['data']}."] if answer["data"] else []
    if "unfinished" in answer:
        found.append(_unfinished(**answer["unfinished"]))
    if "no_answer" in answer:
        found.append(f"There is no answer: {answer['no_answer']}. Type {answer['type']}")
    for words, of in answer["ranges"].items():
        found.append(f"{words[0].upper()}{words[1:]}: {_in_words(of, floor, answer['metric'])}")
    if answer["cost"]:
        each = [
            f"{name} {one['to_floor']:.2f} times, {one['memory_mb']:.0f} MB"
            for name, one in answer["cost"].items()
        ]
        found.append(f"A training beside that of {floor}, as they ran here: {'; '.join(each)}.")
    return found


def _unfinished(
    trainings: Mapping[str, str], asked_for: int, variants_without_any: Sequence[str], type: str
) -> str:
    names = [f"{name} ({state})" for name, state in trainings.items()]
    text = f"Preliminary: {len(names)} of the {asked_for} trainings that were asked for are not "
    text += f"done: {', '.join(names)}. "
    if variants_without_any:
        text += f"Nothing can be said yet of {', '.join(variants_without_any)}. "
    return f"{text}To finish them, type {type}"


def _in_words(of: Mapping[str, Any], floor: str, metric: str) -> str:
    best, means, alike = of["best"], of["means"], of["cannot_be_told_from_it"]
    numbers = of["trainings"]
    if len(means) == 1:
        text = f"only {best} has scores, {metric} {means[best]:.1f}: nothing to compare it with. "
    else:
        text = f"{best} has the best mean, {metric} {means[best]:.1f}. "
    if len({*numbers.values()}) > 1:
        text += f"Trainings: {', '.join(f'{name} {many}' for name, many in numbers.items())}. "
    elif numbers[best] < TRAININGS:
        text += "One training each. " if numbers[best] == 1 else "Means of two trainings each. "
    apart = [
        f"{name} by {of['behind'][name]:.1f} ({means[name]:.1f})" for name in of["not_compared"]
    ]
    if of["pairs"] and apart:
        text += f"Behind it, but not compared, as that takes three trainings: {', '.join(apart)}. "
    elif len(means) > 1:
        text += f"Behind it: {', '.join(apart)}. " if apart else ""
        few = "a single training" if max(numbers.values()) == 1 else "fewer than three trainings"
        text += f"With {few} of a variant no difference is significant. " if not of["pairs"] else ""
    if alike:
        each = [f"{name} ({means[name]:.1f})" for name in alike]
        text += f"Not significantly different from it: {', '.join(each)}. "
    if of["worse"]:
        worse = of["worse"].items()
        each = [f"{name} by {one['by']:.1f} (p {_p(one['p'])})" for name, one in worse]
        text += f"Worse: {', '.join(each)}. "
    if best in of["not_learned"]:
        text += "It is near chance: no variant has learned. They need a longer training. "
    elif of["floor_beaten"] is False:
        text += f"{floor} is not beaten: nothing shows that positions matter here on these data. "
    if of["not_learned"] and best not in of["not_learned"]:
        text += f"Near chance, so not learned: {', '.join(of['not_learned'])}. "
    if of["trainings_without_a_score"]:
        each = [
            f"{name} ({means[name]:.1f}, without {many} of {many + numbers[name]} trainings)"
            for name, many in of["trainings_without_a_score"].items()
        ]
        text += (
            f"Not compared, as a training without a score may have diverged: {', '.join(each)}. "
        )
    if of["without_a_score"]:
        text += f"Without a score: {', '.join(of['without_a_score'])}. "
    return text.strip()


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.2g}"
