"""What a study asks for: preparations, trainings and tests, each with its folder and its command.

A folder is named after what was asked: its name has a digest of the resolved configuration. So
equal configurations of two studies are one folder, and another option is another folder. It is done
when its last file is there. Code, versions and the content of data do not count; ``config.yaml``
has them.

    out/prepared/NAME-DIGEST/       done when NAME-DIGEST.yaml is there
    out/runs/VARIANT-seedN-DIGEST/  config.yaml, train.log, train/; trained.yaml when it is trained
        EVALUATION-DIGEST/          config.yaml, log, items.csv; done when scores.csv is there
"""

import hashlib
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import cape_plugins
from cape_studies import config, hosts
from cape_studies.config import Evaluation, Prepare, Study, read_yaml
from cape_studies.hosts import PYTHON, Machine, Options, Training, espnet


def digest(value: object) -> str:
    """Ten hexadecimal digits that identify a JSON-like value."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def merge(base: Options, over: Options) -> Options:
    """``base`` with the values of ``over``, mapping by mapping."""
    merged = OmegaConf.merge(OmegaConf.create(base), over)
    return OmegaConf.to_container(merged)  # type: ignore[return-value]


def fill(value: Any, places: Mapping[str, object]) -> Any:
    """A value with the places in all its strings filled.

    Raises:
        ValueError: a place is not defined for this step.
    """
    if isinstance(value, str):
        try:
            return value.format_map(places)
        except KeyError as error:
            raise ValueError(f"{value!r}: there is no {error} at that step") from error
    if isinstance(value, Mapping):
        return {key: fill(one, places) for key, one in value.items()}
    return [fill(one, places) for one in value] if isinstance(value, list) else value


def script_name(path: Path | None) -> str | None:
    """A script, as it counts in a digest: by its path in the checkout, else by its whole path."""
    for folder in config.folders():
        root = folder.parents[1].resolve()
        if path and path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return str(path) if path else None


@cache
def data_mark(folder: Path) -> str:
    """How many files a folder holds, their size, and when the newest was written."""
    files = size = 0
    newest = 0.0
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                about = os.stat(os.path.join(at, name))
            except OSError:  # a link that leads nowhere
                continue
            files, size, newest = files + 1, size + about.st_size, max(newest, about.st_mtime)
    return f"{files} files, {size} bytes, newest {newest:.0f}"


@cache
def here(host: str, gpus: int) -> dict[str, Any]:
    """Versions, commit and machine, as ``config.yaml`` notes them."""
    wanted = {"torch", *hosts.host(host).PACKAGES}
    versions = {one.name: one.version for one in distributions() if one.name in wanted}
    commit = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    device = f"{gpus} x {_said(_GPU)}" if gpus else "cpu"
    return {
        "versions": {"cape-plugins": cape_plugins.__version__, **dict(sorted(versions.items()))},
        "commit": _said([*commit, "--abbrev=40"]) or "unknown",
        "machine": f"{socket.gethostname()}, {os.cpu_count()} cores, {device}",
    }


#: A process of its own, so that it frees the GPU's memory.
_GPU = [PYTHON, "-c", "import torch; print(torch.cuda.get_device_name())"]


def _said(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


@dataclass(frozen=True)
class Prepared:
    """A folder that is made once for all runs.

    Attributes:
        name: in the study.
        folder: to make.
        command: that makes it.
        asked: what is digested in the folder's name.
    """

    name: str
    folder: Path
    command: list[str]
    asked: dict[str, Any]

    @property
    def note(self) -> Path:
        """Beside the folder, written when it is done."""
        return self.folder.with_name(f"{self.folder.name}.yaml")

    @property
    def log(self) -> Path:
        """Of all attempts."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def lock(self) -> Path:
        """Who makes it holds this."""
        return self.folder.with_name(f"{self.folder.name}.lock")

    def done(self) -> bool:
        """Whether it was made."""
        return self.note.exists() and self.folder.is_dir()

    def facts(self) -> dict[str, Any]:
        """What the data decide, as the preparation wrote it."""
        path = self.folder / "facts.yaml"
        return read_yaml(path) if path.exists() else {}


@dataclass(frozen=True)
class Test:
    """An evaluation of a trained model."""

    name: str
    evaluation: Evaluation
    folder: Path

    @property
    def scores(self) -> Path:
        """What the evaluation wrote; it is there when all is done."""
        return self.folder / "scores.csv"

    @property
    def items(self) -> Path:
        """What test items add to each score, summed for each condition; it may not exist."""
        return self.folder / "items.csv"

    @property
    def log(self) -> Path:
        """Of all attempts."""
        return self.folder / "log"


@dataclass(eq=False)
class Run:
    """A training with a seed, and its tests.

    Attributes:
        plan: of the study.
        variant, seed: what is trained.
        start: the run whose training this one starts from, if there is one.
        options: of the host, with their places not filled.
        asked: what is digested in the folder's name.
        tests: evaluations by name.
    """

    plan: "Plan"
    variant: str
    seed: int
    start: "Run | None" = None
    options: Options = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)
    tests: dict[str, Test] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plan, study, variant = self.plan, self.plan.study, self.variant
        own = study.variants[variant]
        self.start = Run(plan, own.after, self.seed) if own.after else None
        self.recipe = own.recipe or study.recipe
        self.options = merge(study.options, own.options)
        self.checkpoint = study.checkpoint
        if self.checkpoint is None:
            self.checkpoint = plan.host.CHECKPOINT
        marks = {**plan.marks, "variant": variant, "seed": self.seed}
        marks["after"] = self.start.key if self.start else ""
        self.asked = {
            "host": study.host,
            "recipe": read_yaml(self.recipe) if self.recipe else {},
            "trainer": script_name(study.trainer),
            "options": fill(self.options, marks),
            "seed": self.seed,
        }
        if plan.machine.gpus > 1:
            self.asked["processes"] = plan.machine.gpus
        for name, one in study.evaluations.items():
            changes = own.evaluate.get(name, {})
            if changes is not None:
                one = one.model_copy(update={"options": merge(one.options, changes)})
                about = one.model_dump(mode="json") | {"script": script_name(one.script)}
                empty = dict.fromkeys(("trained", "checkpoint", "csv", "items"), "")
                key = digest([self.checkpoint, fill(about, {**marks, **empty})])
                self.tests[name] = Test(name, one, self.folder / f"{name}-{key}")

    @cached_property
    def key(self) -> str:
        """The digest of what the training depends on."""
        return digest(self.asked)

    @cached_property
    def folder(self) -> Path:
        """Of the run: that of a variant of another name, if it has this configuration."""
        runs, key = self.plan.out / "runs", self.key
        there = sorted(runs.glob(f"*-seed{self.seed}-{key}"))
        own = there[0] if there else runs / f"{self.variant}-seed{self.seed}-{key}"
        return self.plan.named.setdefault(key, own)

    @property
    def label(self) -> str:
        """Its name in what cape-run prints."""
        return f"{self.plan.name} {self.variant} seed {self.seed}"

    @property
    def trained(self) -> Path:
        """The folder that the host trains into."""
        return self.folder / "train"

    @property
    def note(self) -> Path:
        """Written when the training is done: its seconds and memory."""
        return self.folder / "trained.yaml"

    @property
    def lock(self) -> Path:
        """Who trains or tests holds this."""
        return self.folder / ".lock"

    @property
    def failed(self) -> Path:
        """Why the last attempt failed, if it did: ``what``, ``why`` and ``diverged``."""
        return self.folder / "failed.yaml"

    def done(self) -> bool:
        """Whether all its tests are done."""
        return all(test.scores.exists() for test in self.tests.values())

    @property
    def places(self) -> dict[str, Any]:
        """What the places in options stand for."""
        after = self.start.trained if self.start else ""
        own = {"variant": self.variant, "seed": self.seed, "after": after}
        return {**self.plan.places, **own}

    def train_command(self, folder: Path, more: Options | None = None) -> list[str]:
        """The command that trains into a folder, or goes on from a checkpoint in it.

        ``more`` are options that replace the run's own.
        """
        study, machine = self.plan.study, self.plan.machine
        options = fill(merge(self.options, more or {}), self.places)
        if study.trainer:
            own = {"seed": self.seed, "out": folder, "device": machine.device}
            return [PYTHON, str(study.trainer), *hosts.words({**options, **own})]
        return self.plan.host.train(Training(self.recipe, options, self.seed, folder, machine))

    def test_command(self, test: Test, csv: Path, items: Path) -> list[str]:
        """The command of an evaluation, which writes two files."""
        one, device = test.evaluation, self.plan.machine.device
        checkpoint = self.trained / str(self.checkpoint)
        own: Options = {"device": device, "csv": csv, "items": items}
        places = {**self.places, **own, "trained": self.trained, "checkpoint": checkpoint}
        options = fill(one.options, places)
        if one.script:
            return [PYTHON, str(one.script), *hosts.words({**options, "device": device})]
        own["overwrite"] = True
        return self.plan.host.test(one.command, options, self.variant, checkpoint, own)

    def inputs(self) -> dict[str, str]:
        """What the training reads, as it is now: of each folder a mark."""
        found = {name: data_mark(path) for name, path in self.plan.data.items()}
        for one in self.plan.prepared:
            if one.note.exists():
                found[one.name] = str(read_yaml(one.note)["made"])
        if self.start and self.start.note.exists():
            found["after"] = str(read_yaml(self.start.note)["ended"])
        return found

    def scripts(self) -> dict[str, str]:
        """The study's own scripts that train and test, as they are now: of each a mark."""
        paths = [self.plan.study.trainer, *(one.evaluation.script for one in self.tests.values())]
        return {path.name: digest(path.read_text("utf-8")) for path in paths if path}

    def here(self) -> dict[str, Any]:
        """Versions, commit, machine and inputs, as they are now."""
        noted = here(self.plan.study.host, self.plan.machine.gpus)
        return {**noted, "inputs": self.inputs(), "scripts": self.scripts()}


class Plan:
    """A study with all that a command line says of it.

    Args:
        path: of the YAML.
        overrides: in Hydra's grammar.
        quick: whether the study's changes for ``--quick`` are made.
        data: need → folder of the user.
        out: folder of all results.
        machine: what each run gets.
        named: digest → folder of runs; studies that share it share new folders too.

    Attributes:
        name: of the study.
        study: checked; its facts are known once :meth:`prepare` is through.
        host: its module.
        places: need or preparation → its path.
        marks: the same → how it counts in a digest.
        prepared: the preparations.
        facts: what these have written.

    Raises:
        ValueError: the study is not right.
    """

    def __init__(
        self,
        path: Path,
        overrides: Sequence[str] = (),
        quick: bool = False,
        data: Mapping[str, Path] | None = None,
        out: Path = Path("out"),
        machine: Machine | None = None,
        named: dict[str, Path] | None = None,
    ) -> None:
        self.path, self.name, self.quick = path, path.stem, quick
        self.out, self.machine = out, machine or Machine()
        self.named = {} if named is None else named
        self._config = config.composed(path, overrides, quick)
        self.study: Study = config.study_of(self._config, path, {}, complete=False)
        self.host = hosts.host(self.study.host)
        self.data = {name: one for name, one in (data or {}).items() if name in self.study.needs}
        self.places = {name: str(self.data.get(name, f"<{name}>")) for name in self.study.needs}
        self.marks = dict(self.places)
        if self.study.recipe is not None:
            self.places["recipe"] = str(self.study.recipe)
            self.marks["recipe"] = digest(read_yaml(self.study.recipe))
        self.prepared: list[Prepared] = []
        self.facts: dict[str, Any] = {}

    def prepare(self, make: Callable[[Prepared], object], complete: bool = True) -> None:
        """Go through the preparations in their order, as one may need the facts of those before it.

        Args:
            make: makes one; or fails, or shows it.
            complete: whether they are made, so that all facts are known.
        """
        for name in self.study.prepare:
            study = config.study_of(self._config, self.path, self.facts, complete=False)
            one = self._prepared(name, study.prepare[name])
            make(one)
            self.prepared.append(one)
            self.places[name], self.marks[name] = str(one.folder), one.folder.name
            self.facts |= one.facts()
        self.study = config.study_of(self._config, self.path, self.facts, complete)

    def _prepared(self, name: str, step: Prepare) -> Prepared:
        program = ["-m", step.module] if step.module else [str(step.script)]
        arguments, options = fill([step.arguments, step.options], {**self.marks, "out": ""})
        asked = {
            "program": step.module or script_name(step.script),
            "arguments": arguments,
            "options": options,
        }
        folder = self.out / "prepared" / f"{name}-{digest(asked)}"
        places = {**self.places, "out": folder}
        arguments, options = fill([step.arguments, step.options], places)
        words = espnet.words if (step.module or "").startswith("espnet2.") else hosts.words
        command = [PYTHON, *program, *map(str, arguments), *words(options)]
        return Prepared(name, folder, command, asked)

    def runs(self) -> list[Run]:
        """Of all variants and seeds that are asked for, seed by seed."""
        return [Run(self, name, seed) for seed in self.study.seeds for name in self.study.run]


def known_data(given: Sequence[str], studies: Sequence[Study]) -> tuple[dict[str, Path], list[str]]:
    """The folders of ``--data``, and the words that are none: changes that stand behind it.

    A word is NAME=DIR, or DIR alone where one folder is needed. A name ends at the first "=", as
    paths may have more of them.

    Raises:
        ValueError: a folder without a name, where several are needed.
    """
    needs = {name for one in studies for name in one.needs}
    found, rest = {}, []
    for word in given:
        name, equals, folder = word.partition("=")
        if equals and name in needs:
            found[name] = Path(folder).resolve()
        elif len(needs) == 1 and (not equals or Path(word).is_dir()):
            found[next(iter(needs))] = Path(word).resolve()
        elif equals:
            rest.append(word)
        elif not needs:
            raise ValueError(f"--data {word}: this study needs no data")
        else:
            raise ValueError(
                f"--data must be NAME=DIR here, NAME one of {', '.join(sorted(needs))}"
            )
    return found, rest


def lacking(studies: Sequence[Study], data: Mapping[str, Path]) -> Iterator[str]:
    """A line for each folder of data that is missing or has not what it should."""
    needs = {name: need for one in studies for name, need in one.needs.items()}
    for name, need in needs.items():
        about = f"{need.what} ({need.source}), laid out as {need.layout}"
        folder = data.get(name)
        if folder is None:
            yield f"give --data {name}=DIR: {about}"
        elif not folder.is_dir():
            yield f"no such folder: {folder}; {name} is {about}"
        elif none := [one for one in need.files if not any(folder.glob(one))]:
            yield f"{folder} has no {none[0]}: {name} is {about}"
