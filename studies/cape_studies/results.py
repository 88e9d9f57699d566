"""What a report shows of a study: the scores in the folders of its runs."""

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import yaml

from cape_studies import hosts, work
from cape_studies.answer import converged
from cape_studies.config import Study
from cape_studies.plan import Plan, Prepared, Run
from cape_studies.scores import tidy
from cape_studies.stats import TRAININGS
from cape_studies.tidy import NO_ITEMS, TIDY, Result, check, read
from cape_studies.yamls import merge, read_yaml


def of_plan(plan: Plan, command: Sequence[str]) -> Result:
    """Read the folders of a study's runs; none but those that the plan asks for.

    A run whose files cannot be read is left out, and named in a note.

    Args:
        plan: not yet prepared.
        command: the words to type to go on.

    Raises:
        ValueError: nothing is prepared or done yet; says what to type. Or no run can be read.
    """
    again = shlex.join(command)

    def made(one: Prepared) -> None:
        if not one.done():
            where = f"as {one.folder} is not made"
            raise ValueError(f"{plan.name} has no scores yet, {where}: {again}")

    plan.prepare(made)
    runs, study = plan.runs(), plan.study
    done, spoilt = {}, []
    for run in filter(Run.done, runs):
        try:
            done[run] = read_yaml(run.folder / "config.yaml"), _scores(run), _items(run)
            check(*done[run][1:])
        except ValueError as error:
            done.pop(run, None)
            told = f"{run.label} is left out, as {error}"
            spoilt.append(f"{told}. Remove the tests in {run.folder}, then: {again}")
    left = standing([run for run in runs if not run.done()])
    if not done:
        none = f"{plan.name} has no scores yet: {again} makes them. {left}"
        raise ValueError(spoilt[0] if spoilt else none)
    if plan.quick:
        study.title = f"QUICK RUN, its numbers say nothing: {study.title}"
        study.report.title = f"QUICK RUN: {study.report.title}"
    many = Counter(run.variant for run in done)
    configs = {run: config for run, (config, *_) in done.items()}
    scores = [of for _, of, _ in done.values()]
    items = [of for run, (*_, of) in done.items() if many[run.variant] >= TRAININGS]
    result = of_study(
        study,
        pd.concat(scores, ignore_index=True),
        pd.concat([NO_ITEMS, *items], ignore_index=True),
        [*notes(plan, configs, left, again), *spoilt],
    )
    result.details.update({run.folder.name: _config(of) for run, of in configs.items()})
    if study.answer:
        first = {run.variant: run for run in reversed(runs)}
        result.typed.update({name: run.typed() for name, run in first.items()})
        result.next.update({run.variant: [*_next(run, command)] for run in reversed(done)})
    return result


def of_study(
    study: Study, scores: pd.DataFrame, items: pd.DataFrame, notes: Sequence[str] = ()
) -> Result:
    """What a report shows of a study, whose facts are known."""
    report = study.report
    if study.answer:  # which compares all pairs
        report = report.model_copy(update={"baseline": ""})
    settings = study.model_dump(mode="json", exclude_unset=True)
    name = str(scores["study"].iat[0])
    return Result(
        name,
        study.title,
        scores,
        items,
        [*study.variants],
        report,
        study.answer,
        hosts.host(study.host).CHANCE,
        _weights(study),
        [*notes],
        [f"{name} · {study.host} · {study.cost}", study.protocol],
        {"The study, with its settings": _yaml(settings)},
    )


def _weights(study: Study) -> dict[str, str]:
    """Variant → the first whose trainings these are, or go on from: one that it starts ``after``,
    or one that is trained alike and tested otherwise."""
    base = {name: one.after or name for name, one in study.variants.items()}
    alike: dict[str, list[str]] = {}
    for name in dict.fromkeys(base.values()):
        own = study.variants[name]
        asked = f"{own.recipe} {merge(study.options, own.options)}".replace("{variant}", name)
        alike.setdefault(asked, []).append(name)
    first: dict[str, str] = {}
    for names in alike.values():
        tests = [study.variants[name].evaluate for name in names]
        same = all(one == tests[0] for one in tests)  # then nothing says that they are one training
        first |= {name: name if same else names[0] for name in names}
    return {name: first[start] for name, start in base.items()}


def _next(run: Run, command: Sequence[str]) -> Iterator[str]:
    """How to go on with a variant, a line each: of its run with the first seed that is done."""
    yield f"its weights, of seed {run.seed}: {run.checkpoint}"
    what, losses = run.losses()
    if losses:
        yield converged(losses, what)
    yield f"to make it: {run.typed()}"
    typed = {"run": f"[{run.variant}]", **sizes(run)}
    left = {key.lstrip("+") for key in typed}
    words = [one for one in command if one.partition("=")[0].lstrip("+") not in left]
    words += [f"{key}={one}" for key, one in typed.items()]
    yield f"to train it at your size, with other numbers: {shlex.join(words)}"


def sizes(run: Run) -> dict[str, Any]:
    """The sizes of its models that the study names, as they are typed → their values here."""
    about, found = run.plan.study.answer, dict[str, Any]()
    for key in about.size if about else ():
        value: Any = {"options": merge(run.asked["recipe"], run.options)}
        for part in key.lstrip("+").split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        found |= {} if value is None else {key: value}
    return found


def _config(config: Mapping[str, Any]) -> str:
    """A run's ``config.yaml``, below the command that trained it."""
    return f"{shlex.join(config['trained'][-1]['command'])}\n\n{_yaml(config)}"


def _yaml(value: Any) -> str:
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=math.inf))


def standing(runs: Iterable[Run]) -> str:
    """How runs that are not done stand: running, failed, interrupted or not begun."""
    found: dict[str, list[str]] = {}
    for run in runs:
        word, about = work.state(run)
        own = f"{run.variant} seed {run.seed}{f' ({about})' if about else ''}"
        found.setdefault(word, []).append(own)
    each = (
        f"{word.capitalize()}: {', '.join(found[word])}" for word in work.STATES if word in found
    )
    return ". ".join(each)


def notes(plan: Plan, done: Mapping[Run, Mapping[str, Any]], left: str, command: str) -> list[str]:
    """What a reader must know of how the runs came about, a sentence each.

    Args:
        plan: of the study.
        done: run → its ``config.yaml``.
        left: how runs stand that were asked for and are not done, in words.
        command: what to type to go on.
    """
    found = []
    if left:
        every = len(plan.study.run) * len(plan.study.seeds)
        found.append(f"Shown are {len(done)} of {every} runs. {left}. To go on: {command}")
    if max(Counter(run.variant for run in done).values()) < TRAININGS:
        few = f"Fewer than {TRAININGS} trainings of each variant"
        found.append(f"{few}: how far other seeds would differ is unknown.")
    if broken := [run.label for run, of in done.items() if len(of["trained"]) > 1]:
        found.append(f"Was interrupted and went on from a checkpoint: {', '.join(broken)}.")
    changes = Counter(what for run in done for what in work.changed(run))
    for what, many in changes.items():
        found.append(
            f"The {what} ({many} of {len(done)} runs): cape-run with --fresh trains again."
        )
    return found


def _scores(run: Run) -> pd.DataFrame:
    """The scores of all evaluations, marked as the study's report now says."""
    study = run.plan.study
    about = {"study": run.plan.name, "host": study.host, "variant": run.variant, "seed": run.seed}
    table = pd.DataFrame(
        {**about, **row, "evaluation": name}
        for name, test in run.tests.items()
        for row in tidy(test.evaluation, study.host, test.scores)
    )
    table["trained_on"] = table["condition"].isin(study.report.trained_on)
    return table[TIDY]


def _items(run: Run) -> pd.DataFrame:
    """The items of all evaluations, those that are stored."""
    files = {name: test.folder / "items.csv" for name, test in run.tests.items()}
    needed = ["condition", "metric", "how", "item"]
    found = [
        read(path, needed).assign(evaluation=of) for of, path in files.items() if path.exists()
    ]
    return pd.concat([NO_ITEMS, *found]).assign(variant=run.variant, seed=run.seed)
