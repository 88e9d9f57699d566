"""What a study's steps do and depend on: commands, folders and the keys that they are cached by.

A key is a digest of settings, versions and inputs. In it a place such as ``{corpus}`` stands for
what made it, not for where it is: a study moved to another folder is the same study.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

import cape_plugins
from cape_plugins.experiments import hosts
from cape_plugins.experiments.hosts import Machine
from cape_plugins.experiments.study import Study, merge, read_yaml


def digest(value: object) -> str:
    """Ten digits that tell a JSON-like value from others."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def fill(value: Any, places: Mapping[str, object]) -> Any:
    """A value with the places in all its strings filled.

    Raises:
        ValueError: a place that has no meaning there.
    """
    if isinstance(value, str):
        try:
            return value.format_map(places)
        except KeyError as error:
            raise ValueError(f"{value!r}: there is no {error} at that step") from error
    if isinstance(value, Mapping):
        return {key: fill(one, places) for key, one in value.items()}
    return [fill(one, places) for one in value] if isinstance(value, list) else value


def data_mark(folder: Path, patterns: list[str]) -> str:
    """Tells data from others by the names and sizes of the files that the study names."""
    found = sorted({path for pattern in patterns for path in folder.glob(pattern)})
    sizes = [path.stat().st_size if path.is_file() else None for path in found]
    return digest(
        [(str(path.relative_to(folder)), n) for path, n in zip(found, sizes, strict=True)]
    )


def versions(host: str) -> dict[str, str]:
    """Of what numbers depend on."""
    wanted = {"torch", *hosts.HOSTS[host].packages}
    found = {one.name: one.version for one in distributions() if one.name in wanted}
    return {"cape-plugins": cape_plugins.__version__, **dict(sorted(found.items()))}


def script_mark(path: Path | None) -> str | None:
    """Of the content of a script.

    Raises:
        ValueError: there is none.
    """
    if path is not None and not path.is_file():
        raise ValueError(f"the study's script {path} does not exist")
    return digest(path.read_text(encoding="utf-8")) if path else None


class Preparation(NamedTuple):
    """A folder to be made before any run: the study's name for it, the step's key, how."""

    name: str
    key: str
    folder: Path
    command: list[str]


@dataclass(frozen=True)
class Setting:
    """Where a study runs.

    Attributes:
        study: the YAML's content.
        folder: of the study's results.
        out: folder of the results of all studies.
        machine: what each run gets.
        places: name of what is needed or prepared → folder.
        marks: the same names → what tells their content.
        versions: of what numbers depend on.
    """

    study: Study
    folder: Path
    out: Path
    machine: Machine
    places: dict[str, str]
    marks: dict[str, str]
    versions: dict[str, str]

    def run(self, variant: str, seed: int) -> "Run":
        """One training of the study, and its evaluations."""
        return Run(self, variant, seed)


def prepare(
    study: Study,
    out: Path,
    machine: Machine,
    data: Mapping[str, Path | None],
    folder: Path | None = None,
) -> tuple[Setting, list[Preparation]]:
    """The study's steps before any run, and where its runs find what they need.

    Args:
        study, out, machine: see :class:`Setting`.
        data: what is needed → folder, None where it was not given.
        folder: of the study's results. Default: of its name, in ``out``.
    """
    places = {name: str(path or f"<{name}>") for name, path in data.items()}
    marks = {n: data_mark(path, study.needs[n].files) if path else "" for n, path in data.items()}
    if study.recipe is not None:
        places["recipe"] = str(study.recipe)
        marks["recipe"] = digest(read_yaml(study.recipe))
    about, steps = versions(study.host), []
    for name, step in study.prepare.items():
        program = ["-m", str(step.module)] if step.module else [str(step.script)]
        espnet = program[-1].startswith("espnet2.")
        key = digest(
            [
                about,
                step.module or script_mark(step.script),
                fill([*step.arguments, step.options], {**marks, "out": ""}),
            ]
        )
        made = out / "prepared" / f"{name}-{key}"
        given, options = fill([step.arguments, step.options], {**places, "out": made})
        command = [hosts.PYTHON, *program, *map(str, given), *hosts.words(options, espnet=espnet)]
        places[name], marks[name] = str(made), key
        steps.append(Preparation(name, key, made, command))
    folder = folder or out / study.name
    return Setting(study, folder, out, machine, places, marks, about), steps


class Run:
    """One training and its evaluations.

    Attributes:
        setting: of the study.
        variant, seed: of the training.
        start: the run whose training this one starts from, if there is one.
        options: of the training, places not filled.
        settings: all that the training depends on.
        key: their digest.
        folder: of everything about the run; the host writes to ``train`` in it.
        places: that the training's options may name.
        evaluations: name → the study's, with the options of this variant.
    """

    def __init__(self, setting: Setting, variant: str, seed: int) -> None:
        self.setting, self.variant, self.seed = setting, variant, seed
        study, own = setting.study, setting.study.variants[variant]
        self.start: Run | None = Run(setting, own.after, seed) if own.after else None
        self.recipe = own.recipe or study.recipe
        self.options = merge(study.options, own.options)
        about = {"seed": seed, "variant": variant}
        marks = {**setting.marks, **about, "after": self.start.key if self.start else ""}
        self.settings: dict[str, Any] = {
            "host": study.host,
            "recipe": read_yaml(self.recipe) if self.recipe else {},
            "trainer": script_mark(study.trainer),
            "options": fill(self.options, marks),
            "seed": seed,
            "processes": setting.machine.gpus * setting.machine.nodes,
            "start": marks["after"],
            "versions": setting.versions,
        }
        self.key: str = digest(self.settings)
        self.folder = setting.folder / "runs" / f"{variant}-seed{seed}-{self.key}"
        after = self.start.folder / "train" if self.start else ""
        self.places: dict[str, object] = {**setting.places, **about, "after": after}
        self.evaluations = {
            name: one.model_copy(
                update={"options": merge(one.options, own.evaluate.get(name) or {})}
            )
            for name, one in study.evaluations.items()
            if own.evaluate.get(name, {}) is not None
        }
        none = dict.fromkeys(("trained", "checkpoint", "csv", "items"), "")
        what = partial(fill, places={**marks, **none})
        self.evaluation_keys = {
            name: digest(
                [
                    [study.name, variant, self.key, study.checkpoint],
                    what(one.model_dump(mode="json", exclude={"script"})),
                    script_mark(one.script),
                ]
            )
            for name, one in self.evaluations.items()
        }

    @property
    def study(self) -> Study:
        """The whole."""
        return self.setting.study

    @property
    def train_command(self) -> list[str]:
        """As it has to be now: it names a checkpoint where there is one to go on from."""
        options, folder = fill(self.options, self.places), self.folder / "train"
        machine = self.setting.machine
        return hosts.train(self.study, self.recipe, options, self.seed, folder, machine)

    def evaluation_command(self, name: str) -> list[str]:
        """Of one evaluation; empty where the training's own metrics are its scores."""
        one, study = self.evaluations[name], self.study
        trained, device = self.folder / "train", self.setting.machine.device
        file = study.checkpoint or hosts.HOSTS[study.host].checkpoint
        own: dict[str, Any] = {"checkpoint": trained / file, "device": device}
        own |= {"csv": self.csv(name), "items": self.csv(name, "items-raw")}
        options = fill(one.options, {**self.places, **own, "trained": trained})
        if one.script:
            return [hosts.PYTHON, str(one.script), *hosts.words({**options, "device": device})]
        own["overwrite"] = True
        if one.command == "training":
            return []
        return hosts.evaluate(study.host, one.command, options, self.variant, own)

    def csv(self, evaluation: str, kind: str = "evaluate") -> Path:
        """What an evaluation writes, or what is made of it."""
        return self.folder / f"{kind}-{evaluation}.csv"
