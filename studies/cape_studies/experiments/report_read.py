"""Reads what a report shows: folders that cape-run wrote, or the scores of an earlier report."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cape_studies.experiments import asked, folders
from cape_studies.experiments.scores import STATS, TIDY, read
from cape_studies.experiments.study import Study, find, load, load_written, read_yaml
from cape_studies.stats import TRAININGS

#: how items make a score → the columns of items that it needs
PARTS = {"percent": ["value", "weight"], "mean": ["value", "weight"]}
PARTS |= {"bleu": STATS, "bleu_unsmoothed": STATS}
NO_ITEMS = pd.DataFrame(columns=["variant", "seed", "evaluation", "condition", "metric", "item"])


@dataclass(frozen=True)
class Result:
    """What is shown of one study.

    Attributes:
        study: as it was run.
        scores: tidy rows of the trainings that the last call asked for. A training that failed may
            have diverged: its rows have no value. A training that is not done has no rows.
        items: what each test item adds to a score, for variants with ``TRAININGS`` or more; empty
            where that is not stored.
        notes: sentences that the report shows.
        runs: folder of each run that is done → its record and settings.
        elsewhere: a line that names other runs in the study's folder; may be empty.
        unfinished: runs that were asked for and are not done → their state.
    """

    study: Study
    scores: pd.DataFrame
    items: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    elsewhere: str = ""
    unfinished: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The study's name."""
        return str(self.scores["study"].iat[0])


def studies(paths: Sequence[Path]) -> list[Result]:
    """The studies in folders and in stored scores.

    A folder without a study.yaml may hold the folders of several studies.

    Raises:
        ValueError: a folder is missing, was not written by cape-run or has no scores; two studies
            have one name; or a file cannot be read.
    """
    found: list[Result] = []
    for path in map(Path.resolve, paths):
        if path.is_file():
            found += _stored(path)
            continue
        if not path.is_dir():
            raise ValueError(f"no such file or folder: {path}")
        inside = [one for one in (path, *sorted(path.iterdir())) if (one / "study.yaml").exists()]
        if not inside:
            raise ValueError(f"{path} was not written by cape-run: there is no study.yaml")
        inside = inside[:1] if inside[0] == path else inside
        about = {one: load_written(one / "study.yaml") for one in inside}
        lack = [one for one, study in about.items() if not _any_scored(one, study)]
        if lack == inside:
            raise ValueError(asked.why_nothing(lack[0], about[lack[0]]))
        read = [_read(one, about[one]) for one in inside if one not in lack]
        read[0].notes.extend(f"{one.name} has no scores yet." for one in lack)
        found += read
    for name, times in Counter(one.name for one in found).items():
        if times > 1:
            raise ValueError(f"{times} studies {name!r}: report them apart")
    return found


def _items(path: Path) -> pd.DataFrame:
    """The items in a file; none if it does not exist."""
    if not path.exists():
        return NO_ITEMS
    rows = read(path, ["condition", "metric", "item", "how"])
    for how, same in rows.groupby("how", dropna=False):
        if how not in PARTS:
            raise ValueError(f"{path}: how is {how!r}, not one of {', '.join(PARTS)}")
        lacking = same[same.reindex(columns=PARTS[how]).isna().any(axis=1)]
        for item, condition in zip(lacking["item"], lacking["condition"], strict=True):
            raise ValueError(f"{path}: item {item} of {condition!r} lacks a number")
    return rows


def _stored(path: Path) -> list[Result]:
    """The studies in a ``scores.csv`` that cape-report wrote; the file may have another name."""
    rows = read(path, TIDY)
    items = _items(path.with_name(f"{path.stem}-items.csv.xz"))
    note = f"{path.name}: single test items are not stored, so that intervals"
    found = []
    for name, scores in rows.groupby("study", sort=False):
        (study,) = load(find(str(name)))
        mine = items[items["study"] == name] if len(items) else items
        notes = [] if len(mine) else [f"{note} are for other trainings on the same items."]
        found.append(Result(study, scores, mine, notes))
    return found


def _read(folder: Path, study: Study) -> Result:
    begun = [folder / "runs" / name for name in study.runs if (folder / "runs" / name).is_dir()]
    done = [run for run in begun if _scored(run)]
    noted = {"record": "record.json", "settings": "settings.yaml"}  # JSON is YAML too
    runs = {run.name: {what: read_yaml(run / at) for what, at in noted.items()} for run in done}
    breaks = {n: r["record"].get("train", {}).get("interrupted", 0) for n, r in runs.items()}
    unfinished = asked.unfinished(folder, study)
    listed = {
        "Not finished": [f"{name} ({state})" for name, state in unfinished.items()],
        "Training was interrupted and went on from a checkpoint": [
            f"{name} ({times} times)" for name, times in breaks.items() if times
        ],
    }
    notes = [f"{what}: {', '.join(names)}." for what, names in listed.items() if names]
    if unfinished:
        notes[0] += f" Only the others are shown; {asked.call(study)} goes on."
    if any(breaks.values()) and study.host == "fairseq":
        notes.append("fairseq's batches come in another order after that than without a break.")
    if study.quick_run:
        study.title = f"QUICK RUN: {study.title}"
        study.report.title = f"QUICK RUN: {study.report.title}"
        notes.insert(0, "A quick run, to see that everything works: its numbers say nothing.")
    scores = pd.concat([read(run / "scores.csv", TIDY) for run in done], ignore_index=True)
    trainings = Counter(asked.training(run.name)[0] for run in done)
    items = [NO_ITEMS]
    for run in begun:
        variant, seed = asked.training(run.name)
        mine = scores[scores["variant"] == variant]
        mine = mine.drop_duplicates(["evaluation", "condition", "metric"])
        if run not in done and folders.state(run).startswith("failed"):  # it may have diverged
            scores = pd.concat([scores, mine.assign(seed=seed, value=np.nan, items=np.nan)])
        elif run in done and trainings[variant] >= TRAININGS:
            for name in mine["evaluation"].unique():
                own = _items(run / f"items-{name}.csv")
                items.append(own.assign(variant=variant, seed=seed, evaluation=name))
    every = pd.concat(items, ignore_index=True)
    return Result(study, scores, every, notes, runs, asked.elsewhere(folder, study), unfinished)


def _any_scored(folder: Path, study: Study) -> bool:
    return any(_scored(folder / "runs" / name) for name in study.runs)


def _scored(run: Path) -> bool:
    return (run / "scores.csv").exists()
