"""Which variant to take: what a report of a user's own data begins with.

For each range of conditions the answer names the variant with the best mean, the variants that are
not significantly different from it, and those that are worse. Nobody knew before which variant
would be best, so all pairs of a range are compared (:func:`cape_studies.stats.all_pairs`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from cape_studies import hosts
from cape_studies.compare import Scores
from cape_studies.config import Answer, Study
from cape_studies.results import Result
from cape_studies.stats import Estimate, all_pairs, estimate
from cape_studies.tables import cell

BRACKETS = (
    "In parentheses is the difference from the best, with the 95 % interval for other trainings on "
    "the same test items, for all pairs of a range together (Tamhane's T2)."
)


def ranges(about: Answer, every: Sequence[Scores]) -> dict[str, list[tuple[Scores, str]]]:
    """Words for each range → its evaluations and conditions; that of training is first."""
    found: dict[str, list[tuple[Scores, str]]] = {about.within: []}
    for one in every:
        if one.metric != every[0].metric:
            continue
        for condition in one.conditions:
            beyond = about.beyond.get(one.evaluation, one.evaluation)
            words = about.within if condition in one.seen else beyond
            found.setdefault(words, []).append((one, condition))
    return {words: scores for words, scores in found.items() if scores}


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
            found[words] = of_range(means, higher, about.floor, about.chance, lacking)
    return found


def of_range(
    each: Mapping[str, pd.Series],
    higher: bool,
    floor: str,
    chance: float | None,
    lacking: Sequence[str] = (),
) -> dict[str, Any]:
    """What the answer says about a range, under the keys of ``answer.json``.

    The best variant has a key, and so have the differences of the others from it. Others say which
    variants are worse, which are not significantly different, and which are not significantly
    better than chance. One says whether any variant is significantly better than the floor; it is
    None if they were not compared.

    Args:
        each: variant → the mean over evaluations and conditions of each training.
        higher: whether higher is better.
        floor, chance: of the study's ``answer``.
        lacking: variants that lack a score.
    """
    means = {name: float(one.mean()) for name, one in each.items()}
    best, *others = order = sorted(means, key=lambda name: means[name], reverse=higher)
    pairs = all_pairs(
        pd.concat(one.to_frame("value").assign(variant=name) for name, one in each.items())
    )
    differences = {
        name: pairs.get((name, best), Estimate(means[name] - means[best])) for name in others
    }
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
            for name, one in each.items()
            if chance is not None and not _better(estimate(one), chance, higher)
        ],
        "means": {name: means[name] for name in order},
        "trainings": {name: len(one) for name, one in each.items()},
        "lacking": [*lacking],
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
        "chance": about.chance,
        "ranges": of_ranges(about, every),
        "take": {v: result.typed[v] for v in every[0].variants if v in result.typed},
    }


def sentences(answer: Mapping[str, Any], study: Study) -> list[str]:
    """The answer in words, a paragraph for each range."""
    assert study.answer is not None
    found = [f"{answer['data']}."] if answer["data"] else []
    chance = answer["chance"]
    none = "" if chance is None else f"{hosts.host(study.host).CHANCE} ({chance:.1f})"
    for words, of in answer["ranges"].items():
        text = _in_words(of, study.answer.floor, answer["metric"], none)
        found.append(f"{words[0].upper()}{words[1:]}: {text}")
    if not answer["ranges"]:
        found.append("There is no answer: no variant has all scores of a range.")
    if any(of["worse"] or of["cannot_be_told_from_it"] for of in answer["ranges"].values()):
        found.append(BRACKETS)
    return found


def _in_words(of: Mapping[str, Any], floor: str, metric: str, none: str) -> str:
    best, means = of["best"], of["means"]

    def named(key: str) -> str:
        """``rope 49.3 (−1.3 [−5.0, +2.5])``: the mean, and how far it is from the best."""
        apart = {name: cell(Estimate(**of["differences"][name]), 1, "+") for name in of[key]}
        return ", ".join(f"{name} {means[name]:.1f} ({one})" for name, one in apart.items())

    text = [f"{best} has the best mean, {metric} {means[best]:.1f}."]
    if of["cannot_be_told_from_it"]:
        text.append(f"Not significantly different from it: {named('cannot_be_told_from_it')}.")
    if of["worse"]:
        text.append(f"Worse: {named('worse')}.")
    if of["not_compared"]:
        text.append(f"Not compared, for want of three trainings of each: {named('not_compared')}.")
    if of["lacking"]:
        text.append(f"Left out, as a training has no score: {', '.join(of['lacking'])}.")
    if of["not_learned"]:
        text.append(f"Not significantly better than {none}: {', '.join(of['not_learned'])}.")
    if of["floor_beaten"] is False:
        text.append(
            f"No variant is significantly better than {floor}: these trainings do not show that "
            "positions matter here."
        )
    return " ".join(text)
