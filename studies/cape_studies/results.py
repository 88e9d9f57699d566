"""What a report shows of a study: scores of its runs' folders, or those of an earlier report."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from cape_studies import work
from cape_studies.config import Study, Variant, find, known, load, read_yaml
from cape_studies.evaluate.output import PARTS
from cape_studies.plan import Plan, Prepared, Run, merge
from cape_studies.scores import TIDY, read, tidy
from cape_studies.stats import TRAININGS

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
        wanted: variant → the number of trainings that were asked for.
        unfinished: runs that were asked for and are not done → their state.
        command: what to type to go on.
        seconds: variant → those of a training, the mean over those without a break.
        typed: variant → its settings, as a user of the host types them.
    """

    study: Study
    scores: pd.DataFrame
    items: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    wanted: Mapping[str, int] = field(default_factory=dict)
    unfinished: dict[str, str] = field(default_factory=dict)
    command: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    typed: dict[str, str] = field(default_factory=dict)

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
    done = [run for run in runs if run.done()]
    states = {f"{run.variant} seed {run.seed}": work.state(run) for run in runs if run not in done}
    if not done:
        first = ", ".join(f"{name} ({state})" for name, state in [*states.items()][:6])
        raise ValueError(f"{plan.name} has no scores yet: {command} makes them. {first}")
    configs = {run: read_yaml(run.folder / "config.yaml") for run in done}
    if plan.quick:
        study.title = f"QUICK RUN: {study.title}"
        study.report.title = f"QUICK RUN: {study.report.title}"
    many = Counter(run.variant for run in done)
    items = [_items(run) for run in done if many[run.variant] >= TRAININGS]
    whole = [run for run, of in configs.items() if len(of["trained"]) == 1 and run.note.exists()]
    seconds = [(run.variant, read_yaml(run.note)["seconds"]) for run in whole]
    typed = {
        name: plan.host.typed(merge(study.options, one.options), one.options, name)
        for name, one in (study.variants if study.answer else {}).items()
    }
    return Result(
        study,
        pd.concat(map(_scores, done), ignore_index=True),
        pd.concat([NO_ITEMS, *items], ignore_index=True),
        notes(plan, configs, states, command),
        {run.folder.name: of for run, of in configs.items()},
        Counter(run.variant for run in runs),
        states,
        command,
        pd.DataFrame(seconds).groupby(0)[1].mean() if seconds else {},
        typed,
    )


def notes(
    plan: Plan, done: Mapping[Run, Mapping[str, Any]], unfinished: Mapping[str, str], command: str
) -> list[str]:
    """What a reader must know of how the runs came about, a sentence each.

    Args:
        plan: of the study.
        done: run → its ``config.yaml``.
        unfinished, command: see :class:`Result`.
    """
    found = []
    if plan.quick:
        found.append("A quick run, to see that everything works: its numbers say nothing.")
    if unfinished:
        names = ", ".join(f"{name} ({state})" for name, state in unfinished.items())
        found.append(f"Not finished: {names}. Only the others are shown; {command} goes on.")
    most = max(Counter(run.variant for run in done).values())
    if most < TRAININGS:
        few = "One training" if most == 1 else "At most two trainings"
        found.append(f"{few} of each variant: how far other seeds would differ is unknown.")
    breaks = {run.label: len(of["trained"]) - 1 for run, of in done.items()}
    if broken := [f"{name} ({times} times)" for name, times in breaks.items() if times]:
        text = f"Training was interrupted and went on from a checkpoint: {', '.join(broken)}."
        found.append(f"{text} {plan.host.BREAK}".strip())
    changes = [(what, run.label) for run in done for what in work.changed(run)]
    for what in dict.fromkeys(what for what, _ in changes):
        of = [label for other, label in changes if other == what]
        told = ", ".join(of[:6]) + (f" and {len(of) - 6} more" if len(of) > 6 else "")
        found.append(f"The {what}: {told}. cape-run with --fresh trains again.")
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
    own = study.variants[run.variant].trained_on
    table["trained_on"] = table["condition"].isin(study.report.trained_on if own is None else own)
    return table[TIDY]


def _items(run: Run) -> pd.DataFrame:
    """The items of all evaluations."""
    tests = [
        items_in(test.folder / "items.csv").assign(evaluation=name)
        for name, test in run.tests.items()
    ]
    return pd.concat(tests).assign(variant=run.variant, seed=run.seed)


def items_in(path: Path) -> pd.DataFrame:
    """The items in a file; none if it does not exist."""
    if not path.exists():
        return NO_ITEMS
    rows = read(path, ["condition", "metric", "item", "how"])
    known(f"how of {path}", rows["how"].astype(str).unique(), PARTS)
    return rows


def stored(path: Path) -> list[Result]:
    """The studies in a ``scores.csv`` that cape-report wrote; the file may have another name."""
    rows = read(path, TIDY)
    items = items_in(path.with_name(f"{path.stem}-items.csv.xz"))
    note = f"{path.name}: single test items are not stored, so that intervals"
    found = []
    for name, scores in rows.groupby("study", sort=False):
        beside = path.with_name(f"{name}.yaml")  # of a study of one's own
        study = load(beside if beside.exists() else find(str(name)))
        for variant in scores["variant"].unique():  # one that the study has no more
            study.variants.setdefault(variant, Variant())
        mine = items[items["study"] == name] if len(items) else items
        notes = [] if len(mine) else [f"{note} are for other trainings on the same items."]
        found.append(Result(study, scores, mine, notes))
    return found
