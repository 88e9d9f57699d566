"""What a report shows of a study: the scores in the folders of its runs."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from cape_studies import work
from cape_studies.config import Study
from cape_studies.plan import Plan, Prepared, Run
from cape_studies.scores import TIDY, read, tidy
from cape_studies.stats import TRAININGS
from cape_studies.yamls import read_yaml

NO_ITEMS = pd.DataFrame(columns=["variant", "seed", "evaluation", "condition", "metric", "item"])


@dataclass(frozen=True)
class Result:
    """What is shown of one study.

    Attributes:
        study: with its facts.
        scores: tidy rows of the trainings that were asked for and are done.
        items: what each test item adds to a score, for variants with ``TRAININGS`` or more; empty
            where that is not stored.
        notes: sentences that the report shows.
        configs: run → its ``config.yaml``.
        typed: variant → its settings, as a user of the host types them.
    """

    study: Study
    scores: pd.DataFrame
    items: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    configs: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    typed: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The study's name."""
        return str(self.scores["study"].iat[0])


def of_plan(plan: Plan, command: str) -> Result:
    """Read the folders of a study's runs; none but those that the plan asks for.

    Args:
        plan: not yet prepared.
        command: what to type to go on.

    Raises:
        ValueError: nothing is prepared or done yet; says what to type. Or a file cannot be read.
    """

    def made(one: Prepared) -> None:
        if not one.done():
            where = f"as {one.folder} is not made"
            raise ValueError(f"{plan.name} has no scores yet, {where}: {command}")

    plan.prepare(made)
    runs, study = plan.runs(), plan.study
    done = {run: read_yaml(run.folder / "config.yaml") for run in runs if run.done()}
    left = standing([run for run in runs if run not in done])
    if not done:
        raise ValueError(f"{plan.name} has no scores yet: {command} makes them. {left}")
    if plan.quick:
        study.title = f"QUICK RUN, its numbers say nothing: {study.title}"
        study.report.title = f"QUICK RUN: {study.report.title}"
    many = Counter(run.variant for run in done)
    items = [_items(run) for run in done if many[run.variant] >= TRAININGS]
    typed = {
        run.variant: run.typed() for run in runs if study.answer and run.seed == study.seeds[0]
    }
    return Result(
        study,
        pd.concat(map(_scores, done), ignore_index=True),
        pd.concat([NO_ITEMS, *items], ignore_index=True),
        notes(plan, done, left, command),
        {run.folder.name: of for run, of in done.items()},
        typed,
    )


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
    found = [read(path).assign(evaluation=name) for name, path in files.items() if path.exists()]
    return pd.concat([NO_ITEMS, *found]).assign(variant=run.variant, seed=run.seed)
