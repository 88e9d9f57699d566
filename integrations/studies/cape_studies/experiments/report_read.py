"""What cape-run left of studies: each study, its scores and test items, and what each run notes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cape_studies.experiments.scores import TIDY
from cape_studies.experiments.study import Report, Study, find, load, load_written, read_yaml

TRAININGS = 3  # for an interval: of two, Student's is 13 times as wide as their standard error
STATS = [f"stats_{i}" for i in range(10)]  # of an item in BLEU
#: how items make a score → the columns of theirs that do
PARTS = {"percent": ["value", "weight"], "mean": ["value", "weight"]}
PARTS |= {"bleu": STATS, "bleu_unsmoothed": STATS}
_ITEMS = ["variant", "seed", "evaluation", "condition", "metric", "how", "item"]


@dataclass(frozen=True)
class Run:
    """One training and its tests.

    Attributes:
        scores: tidy rows.
        settings: all that the training depends on.
        record: commands, versions, machine, seconds.
    """

    folder: Path
    variant: str
    seed: int
    scores: pd.DataFrame
    settings: dict[str, Any]
    record: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What is shown of one study, or of evaluators' CSVs.

    Attributes:
        name: the folder's or file's.
        title: in words.
        about: what is shown first, and with what.
        scores: tidy rows of all trainings.
        items: what each test item adds to them, of variants with ``TRAININGS`` and more; empty
            where that is not stored.
        variants: in the order to show.
        notes: what a reader should know.
        runs: that are done; none of CSVs.
        study: as it was run; None of evaluators' CSVs.
        begun: (variant, seed) of all trainings that have begun.
    """

    name: str
    title: str
    about: Report
    scores: pd.DataFrame
    items: pd.DataFrame
    variants: list[str]
    notes: list[str]
    runs: list[Run] = field(default_factory=list)
    study: Study | None = None
    begun: list[tuple[str, int]] = field(default_factory=list)


def table(path: Path, columns: Sequence[str] = ()) -> pd.DataFrame:
    """A CSV, compressed or not; an empty value is missing, ``nan`` in a name is not.

    Raises:
        ValueError: it cannot be read, or lacks one of the columns; names the file.
    """
    text = dict.fromkeys(("variant", "condition", "metric", "how", "item"), str)
    try:
        rows = pd.read_csv(path, dtype=text, keep_default_na=False, na_values=[""])
        for name in rows.columns.intersection(["seed", "value", "weight", *STATS]):
            numbers = pd.to_numeric(rows[name].replace(["nan", "NaN"], np.nan))
            rows[name] = numbers.replace([np.inf, -np.inf], np.nan)
        if lacking := [name for name in columns if name not in rows]:
            raise ValueError(f"it has no column {lacking[0]!r}")
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())[:200]}") from error
    return rows


def items(path: Path) -> pd.DataFrame:
    """Of a file that may not be there; none of one from before evaluators said how they count.

    Raises:
        ValueError: it cannot be read, or an item lacks a number; names the file.
    """
    if not path.exists() or "how" not in (rows := table(path, ["condition", "metric", "item"])):
        return pd.DataFrame(columns=_ITEMS)
    for how, same in rows.groupby("how", dropna=False):
        if how not in PARTS:
            raise ValueError(f"{path}: how is {how!r}, not one of {', '.join(PARTS)}")
        lacking = same.reindex(columns=PARTS[how]).isna().any(axis=1)
        if lacking.any():
            item, condition = same[lacking][["item", "condition"]].iloc[0]
            raise ValueError(f"{path}: item {item} of {condition!r} lacks a number")
    return rows


def read(paths: Sequence[Path]) -> list[Result]:
    """The studies in folders, one without a study.yaml may hold several, and in stored scores.

    Raises:
        ValueError: a folder is missing, of something else or without scores, two are of one name,
            a file cannot be read, or there are runs of different settings, which must not pass for
            seeds.
    """
    found: list[Result] = []
    for path in map(Path.resolve, paths):
        if path.is_file():
            found += _stored(path)
            continue
        if not path.is_dir():
            raise ValueError(f"no such file or folder: {path}")
        inside = [path, *sorted(path.iterdir())]
        inside = [one for one in inside if (one / "study.yaml").exists()]
        if not inside:
            raise ValueError(f"{path} was not written by cape-run: there is no study.yaml")
        found += [_read(one) for one in (inside[:1] if inside[0] == path else inside)]
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{names.count(name)} studies {name!r}: report them apart")
    return found


def _stored(path: Path) -> list[Result]:
    """The studies of a ``scores.csv`` that cape-report wrote, under any name."""
    rows = table(path, TIDY[:-1]).reindex(columns=TIDY)  # older ones have no how
    parts = items(path.with_name(f"{path.stem}-items.csv.xz"))
    note = f"From {path.name}: the test items of these trainings are not stored, so that intervals"
    found = []
    for name, scores in rows.groupby("study", sort=False):
        (study,) = load(find(str(name)))
        mine = parts[parts["study"] == name] if len(parts) else parts
        variants = list(dict.fromkeys(scores["variant"]))
        notes = [] if len(mine) else [f"{note}, from three trainings on, leave them out."]
        about = (study.title, study.report, scores, mine, variants, notes)
        found.append(Result(str(name), *about, study=study))
    return found


def _read(folder: Path) -> Result:
    study = load_written(folder / "study.yaml")
    there = sorted(path.name for path in (folder / "runs").glob("*") if path.is_dir())
    names = study.runs or there
    done = [name for name in names if (folder / "runs" / name / "scores.csv").exists()]
    if not done:
        raise ValueError(f"{folder} has no scores yet: cape-run {folder.name} makes them")
    runs = [_run(folder / "runs" / name, study) for name in done]
    _check_alike(runs)
    breaks = {run.folder.name: run.record.get("train", {}).get("interrupted", 0) for run in runs}
    listed = {
        "Not finished": [name for name in names if name not in done],
        "Left out, as the study has other settings now": [n for n in there if n not in names],
        "Training was interrupted and went on from a checkpoint": [
            f"{name} ({times} times)" for name, times in breaks.items() if times
        ],
    }
    notes = [f"{what}: {', '.join(names)}." for what, names in listed.items() if names]
    if any(breaks.values()) and study.host == "fairseq":
        notes.append("fairseq's batches come in another order after that than without a break.")
    title, shown = study.title, study.report
    if study.quick_run:
        title, shown.title = f"QUICK RUN: {title}", f"QUICK RUN: {shown.title}"
        notes.insert(0, "A quick run, to see that everything works: its numbers say nothing.")
    scores = pd.concat([run.scores for run in runs], ignore_index=True)
    trainings = Counter(run.variant for run in runs)
    parts = [
        items(run.folder / f"items-{evaluation}.csv").assign(
            variant=run.variant, seed=run.seed, evaluation=evaluation
        )
        for run in runs
        if trainings[run.variant] >= TRAININGS
        for evaluation in run.scores["evaluation"].unique()
    ]
    parts = [one for one in parts if len(one)]
    every = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=_ITEMS)
    parted = [name.rpartition("-")[0].rpartition("-seed") for name in names if name in there]
    begun = [(variant, int(seed)) for variant, _, seed in parted]
    about = (folder.name, title, shown, scores, every, list(study.variants), notes, runs, study)
    return Result(*about, begun)


def _run(folder: Path, study: Study) -> Run:
    rows = table(folder / "scores.csv", TIDY)
    told = rows[["variant", "seed"]].drop_duplicates()
    if len(told) != 1 or told["variant"].iat[0] not in study.variants:
        raise ValueError(f"{folder}/scores.csv must be of one seed of a variant of {study.path}")
    about = [folder / name for name in ("settings.yaml", "record.json")]  # which is YAML too
    notes = [read_yaml(path) if path.exists() else {} for path in about]
    return Run(folder, told["variant"].iat[0], int(told["seed"].iat[0]), rows, *notes)


def _check_alike(runs: Sequence[Run]) -> None:
    """Raise ValueError if runs of a variant differ in anything but the seed."""
    for i, run in enumerate(runs):
        for other in [one for one in runs[:i] if one.variant == run.variant]:
            mine, its = run.settings, other.settings
            keys = {**mine, **its}.keys() - {"seed", "start", "study", "variant"}
            wrong = sorted(key for key in keys if mine.get(key) != its.get(key))
            if wrong or run.seed == other.seed:
                raise ValueError(
                    f"{other.folder.name} and {run.folder.name} in {run.folder.parent} are not two "
                    f"seeds of one training ({', '.join(wrong) or 'seed'}): move one of them away"
                )
