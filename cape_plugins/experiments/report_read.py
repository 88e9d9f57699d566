"""What cape-run left of studies: each study, its scores, and what each run notes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from cape_plugins.experiments.scores import TIDY
from cape_plugins.experiments.study import Study, load, merge, places_in


@dataclass(frozen=True)
class Run:
    """The folder of one training and its tests.

    Attributes:
        scores: tidy rows.
    """

    folder: Path
    variant: str
    seed: int
    scores: pd.DataFrame

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All that the training depends on."""
        path = self.folder / "settings.yaml"
        return yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}

    @cached_property
    def record(self) -> dict[str, Any]:
        """Commands, versions, machine, seconds."""
        path = self.folder / "record.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Of the training: step, epoch, name, value."""
        path = self.folder / "metrics.csv"
        return pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["name"])

    def parts(self, evaluation: str, metric: str, condition: str) -> pd.DataFrame | None:
        """What each test item, by its name, adds to a score; None where nothing tells."""
        rows = _items(self.folder / f"items-{evaluation}.csv")
        if rows is None:
            return None
        rows = rows[(rows["condition"] == condition) & (rows.get("metric", metric) == metric)]
        numbers = [n for n in rows if n in ("value", "weight") or n.startswith("stats_")]
        return rows.groupby("item")[numbers].sum() if len(rows) else None


@cache
def _items(path: Path) -> pd.DataFrame | None:
    return pd.read_csv(path, dtype={"condition": str, "item": str}) if path.exists() else None


@dataclass(frozen=True)
class Result:
    """A study's folder.

    Attributes:
        name: the folder's.
        study: as it was run.
        runs: that are done.
        notes: what a reader should know about the others.
    """

    name: str
    study: Study
    runs: list[Run]
    notes: list[str]

    @property
    def scores(self) -> pd.DataFrame:
        """Tidy rows of all runs."""
        return pd.concat([run.scores for run in self.runs], ignore_index=True)


def read(folders: Sequence[Path]) -> list[Result]:
    """The studies in folders; one without a study.yaml may hold several that have it.

    Raises:
        ValueError: a folder is missing, of something else or without scores, two are of one name,
            or there are runs of different settings, which must not pass for seeds.
    """
    found: list[Path] = []
    for folder in map(Path.resolve, folders):
        if not folder.is_dir():
            raise ValueError(f"no such folder: {folder}")
        inside = [folder, *sorted(folder.iterdir())]
        inside = [path for path in inside if (path / "study.yaml").exists()]
        if not inside:
            raise ValueError(f"{folder} was not written by cape-run: there is no study.yaml")
        found += inside[:1] if inside[0] == folder else inside
    names = [path.name for path in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{names.count(name)} folders of a study {name!r}: report them apart")
    _items.cache_clear()
    return [_read(folder) for folder in found]


def _read(folder: Path) -> Result:
    study = load(folder / "study.yaml")[0]
    there = sorted(path.name for path in (folder / "runs").glob("*") if path.is_dir())
    names = study.runs or there
    done = [name for name in names if (folder / "runs" / name / "scores.csv").exists()]
    if not done:
        raise ValueError(f"{folder} has no scores yet: cape-run {folder.name} makes them")
    runs = [_run(folder / "runs" / name, study) for name in done]
    _check_alike(study, runs)
    aside = {
        "Not finished": [name for name in names if name not in done],
        "Left out, as the study has other settings now": [n for n in there if n not in names],
    }
    notes = [f"{what}: {', '.join(names)}." for what, names in aside.items() if names]
    return Result(folder.name, study, runs, notes)


def _run(folder: Path, study: Study) -> Run:
    path = folder / "scores.csv"
    kinds = {"condition": str, "variant": str}
    try:
        table = pd.read_csv(path, dtype=kinds, keep_default_na=False, na_values=[""])
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if lacking := [name for name in TIDY if name not in table]:
        raise ValueError(f"{path} was not written by cape-run: it has no column {lacking[0]!r}")
    told = table[["variant", "seed"]].drop_duplicates()
    if len(told) != 1 or told["variant"].iat[0] not in study.variants:
        raise ValueError(f"{path} must be of one seed of a variant of {study.path}")
    return Run(folder, told["variant"].iat[0], int(told["seed"].iat[0]), table)


def _check_alike(study: Study, runs: Sequence[Run]) -> None:
    """Raise ValueError if runs of a variant differ in anything but the seed."""
    for i, run in enumerate(runs):
        apart = {"seed", "start", "study", "variant"}  # start: a training of the same seed
        if places_in(merge(study.options, study.variants[run.variant].options)) & {"seed", "after"}:
            apart.add("options")
        for other in [one for one in runs[:i] if one.variant == run.variant]:
            keys = [key for key in {**run.settings, **other.settings} if key not in apart]
            wrong = [key for key in keys if run.settings.get(key) != other.settings.get(key)]
            if wrong or run.seed == other.seed:
                raise ValueError(
                    f"{other.folder.name} and {run.folder.name} in {run.folder.parent} are not two "
                    f"seeds of one training ({', '.join(wrong) or 'seed'}): move one of them away"
                )
