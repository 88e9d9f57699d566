"""A study's steps: their commands, their outputs, and the keys in the outputs' names.

A key is a digest of settings, versions, code and inputs. In it a place such as ``{corpus}`` counts
by its content, not by its path: a study that is moved to another folder keeps its keys.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import cape_plugins
import cape_studies
from cape_studies.experiments import hosts, scores
from cape_studies.experiments.hosts import Machine
from cape_studies.experiments.study import Evaluation, Study, merge, places_in, read_yaml

SMALL = 2**26  # bytes in a folder up to which the contents of its files count


def digest(value: object) -> str:
    """Ten hexadecimal digits that identify a JSON-like value."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


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


@cache
def data_mark(folder: Path) -> str:
    """A digest of the names and contents of a folder's files, hidden ones left out.

    If the files have more than :data:`SMALL` bytes in all, sizes and times of the last change count
    in place of contents.
    """
    files = sorted(_files(folder))
    small = sum(stat.st_size for _, stat in files) <= SMALL
    found = hashlib.sha256()
    for path, stat in files:
        about = path.read_bytes() if small else f"{stat.st_size} {stat.st_mtime_ns}".encode()
        name = str(path.relative_to(folder)).encode(errors="surrogateescape")
        found.update(digest([name.hex(), hashlib.sha256(about).hexdigest()]).encode())
    return found.hexdigest()[:10]


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    seen = set()
    for at, inside, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(at)
        if real in seen:  # a link back to a folder that was read
            inside.clear()
            continue
        seen.add(real)
        inside[:] = [name for name in inside if not name.startswith(".")]
        for path in [Path(at, name) for name in names if not name.startswith(".")]:
            if path.is_file():
                yield path, path.stat()


@cache
def versions(host: str) -> dict[str, str]:
    """The versions of the packages that scores depend on."""
    wanted = {"torch", *hosts.HOSTS[host].packages}
    found = {one.name: one.version for one in distributions() if one.name in wanted}
    return {"cape-plugins": cape_plugins.__version__, **dict(sorted(found.items()))}


@cache
def code_mark(package: Path, host: str) -> str:
    """A digest of the code of one of our packages, without its parts for other hosts."""
    files = sorted([*package.glob("*.py"), *(package / host).rglob("*.py")])
    return digest([(str(path.relative_to(package)), path.read_text("utf-8")) for path in files])


PLUGIN, STUDIES = Path(cape_plugins.__file__).parent, Path(cape_studies.__file__).parent
EVALUATION, ASK = STUDIES / "evaluation", STUDIES / "ask"


@cache
def script_mark(path: Path | None) -> str | None:
    """A digest of a script and of the scripts beside it that it imports."""
    files = sorted(hosts.read_script(path)[0]) if path else []
    return digest([file.read_text("utf-8") for file in files]) if files else None


def _prepares(module: str | None, host: str) -> str:
    """A digest of our code that a preparation depends on.

    For a module of ``ask`` that is the module itself, ``held_out`` and what reads text.
    """
    package, _, name = (module or "").rpartition(".")
    if package == "cape_studies.ask":
        files = ASK / f"{name}.py", ASK / "held_out.py", PLUGIN / "text.py"
        return digest([script_mark(path) for path in files])
    return code_mark(EVALUATION if package == "cape_studies.evaluation" else PLUGIN, host)


@dataclass(frozen=True)
class Step:
    """What one command makes under a key: a preparation, a training or an evaluation.

    Attributes:
        path: of what it makes, or the beginning of these paths. It has the key in it; log and
            record lie beside it.
        command: gives the command when the step starts, as a checkpoint to go on from may exist by
            then.
        outputs: files that it leaves. If one is missing, the step has failed or must be done anew.
        inputs: marks of inputs that may be made anew under the same key, such as the time when a
            training ended.
        resumes: whether it goes on from what it left when it was interrupted; else that is removed.
        finish: called once the outputs exist.
    """

    path: Path
    command: Callable[[], list[str]]
    outputs: list[Path]
    inputs: list[Any]
    resumes: bool = False
    finish: Callable[[], object] = list

    @property
    def log(self) -> Path:
        """The log of all attempts; a process that writes to it holds its lock."""
        return self.path.with_name(f"{self.path.name}.log")

    @property
    def record_path(self) -> Path:
        """The record, which has ``began`` while the step is not done, and ``ended`` afterwards."""
        return self.path.with_name(f"{self.path.name}.json")

    def record(self) -> dict[str, Any]:
        """The content of the record."""
        return read_record(self.record_path)

    def done(self) -> bool:
        """Whether it has ended with today's inputs, and its outputs exist."""
        record = self.record()
        made = "ended" in record and record["inputs"] == self.inputs
        return made and all(path.exists() for path in self.outputs)


def read_record(path: Path) -> dict[str, Any]:
    """The content of a record; empty if it does not exist or cannot be read."""
    with suppress(OSError, ValueError):
        return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}


@dataclass(frozen=True)
class Setting:
    """Where a study runs.

    Attributes:
        study: the one that runs.
        folder: of its results.
        out: of all results.
        machine: what each run gets.
        places: name of a need or of a prepared folder → its path.
        marks: name of a need or of a prepared folder → a digest of its content.
    """

    study: Study
    folder: Path
    out: Path
    machine: Machine
    places: dict[str, str]
    marks: dict[str, str]


def prepare(
    study: Study, out: Path, machine: Machine, data: Mapping[str, Path | None], folder: Path
) -> tuple[Setting, list[Step]]:
    """The setting of a study's runs, and the steps that come before any run.

    Args:
        study, out, machine, folder: see :class:`Setting`.
        data: name of a need → folder; None if it was not given.
    """
    places = {name: str(path or f"<{name}>") for name, path in data.items()}
    marks = {name: data_mark(path) if path else "" for name, path in data.items()}
    if study.recipe is not None:
        places["recipe"] = str(study.recipe)
        marks["recipe"] = digest(read_yaml(study.recipe))
    steps = []
    for name, step in study.prepare.items():
        program = ["-m", step.module] if step.module else [str(step.script)]
        espnet = program[-1].startswith("espnet2.")
        code = _prepares(step.module, study.host)
        mark = step.module or script_mark(step.script)
        settings = fill([*step.arguments, step.options], {**marks, "out": ""})
        key = digest([versions(study.host), code, mark, settings])
        made = out / "prepared" / f"{name}-{key}"
        given, options = fill([step.arguments, step.options], {**places, "out": made})
        command = [hosts.PYTHON, *program, *map(str, given), *hosts.words(options, espnet=espnet)]
        places[name], marks[name] = str(made), key
        steps.append(Step(made, partial(list, command), [made], []))
    return Setting(study, folder, out, machine, places, marks), steps


class Run:
    """One training of a study, and its evaluations, with the options of its variant.

    Attributes:
        start: the run whose training this one starts from, if there is one.
        options: of the training, with their places not filled.
        settings: everything that the training depends on; ``key`` is their digest.
        folder: of the run; see folders.py.
    """

    def __init__(self, setting: Setting, variant: str, seed: int) -> None:
        self.setting, self.variant, self.seed = setting, variant, seed
        self.study = study = setting.study
        own = study.variants[variant]
        self.start: Run | None = Run(setting, own.after, seed) if own.after else None
        self.recipe = own.recipe or study.recipe
        self.options = merge(study.options, own.options)
        marks = {**setting.marks, "variant": variant}
        apart = {"seed": "{seed}", "after": "{after}"}  # settings of their own
        self.settings: dict[str, Any] = {
            "host": study.host,
            "recipe": read_yaml(self.recipe) if self.recipe else {},
            "trainer": script_mark(hosts.script(study, setting.machine)),
            "options": fill(self.options, {**marks, **apart}),
            "seed": seed,
            "processes": setting.machine.gpus,
            "start": self.start.key if self.start else "",
            "versions": versions(study.host),
            "code": code_mark(PLUGIN, study.host),
        }
        self.key: str = digest(self.settings)
        self.folder = setting.folder / "runs" / f"{variant}-seed{seed}-{self.key}"
        #: the file that is tested, in the folder of the training; empty: the folder
        self.checkpoint = study.checkpoint or hosts.HOSTS[study.host].checkpoint
        self.evaluations: dict[str, Evaluation] = {}
        self.evaluation_keys: dict[str, str] = {}
        marks |= dict.fromkeys(("after", "trained", "checkpoint", "csv", "items"), "")
        whose = [study.name, variant, self.key, study.checkpoint]
        for name, one in study.evaluations.items():
            changes = own.evaluate.get(name, {})
            if changes is not None:
                one = one.model_copy(update={"options": merge(one.options, changes)})
                about = one.model_dump(mode="json", exclude={"script"})
                about = fill(about, {**marks, "seed": seed})
                parts = [whose, code_mark(EVALUATION, study.host), about, script_mark(one.script)]
                self.evaluations[name], self.evaluation_keys[name] = one, digest(parts)

    @property
    def home(self) -> Path:
        """The folder that its steps write to: its own, or that of a run with this training."""
        return (self.folder / "train.json").resolve().parent

    @property
    def training(self) -> Step:
        """The step that trains, or goes on with the training."""
        path, tested = self.home / "train", self.evaluations.values()
        whole = all(one.script and "checkpoint" not in places_in(one.options) for one in tested)
        needed = path if whole else path / self.checkpoint
        inputs = [self.start.training.record().get("ended")] if self.start else []
        return Step(path, lambda: self.train_command, [needed], inputs, resumes=True)

    def evaluation(self, name: str) -> Step:
        """The step of one evaluation."""
        one, trained = self.evaluations[name], self.training.record().get("ended")
        path, raw, items = (self.csv(name, kind) for kind in ("", "-raw", "-items"))
        return Step(
            path.with_suffix(""),
            lambda: self.evaluation_command(name),
            [path, items] if "items" in places_in(one.options) else [path],
            [trained],
            finish=lambda: scores.finish(one, self.study.host, path, raw, items),
        )

    def csv(self, name: str, kind: str = "") -> Path:
        """A CSV of an evaluation: the scores; ``-raw``, its items; ``-items``, their sums."""
        return self.home / "evaluations" / f"{name}-{self.evaluation_keys[name]}{kind}.csv"

    @property
    def train_command(self) -> list[str]:
        """The command that trains now; it names the checkpoint to go on from, if one exists."""
        options, folder = fill(self.options, self._places()), self.home / "train"
        machine = self.setting.machine
        return hosts.train(self.study, self.recipe, options, self.seed, folder, machine)

    def evaluation_command(self, name: str) -> list[str]:
        """The command of one evaluation."""
        one, host = self.evaluations[name], self.study.host
        trained, device = self.home / "train", self.setting.machine.device
        own: dict[str, Any] = {"checkpoint": trained / self.checkpoint, "device": device}
        own |= {"csv": self.csv(name), "items": self.csv(name, "-raw")}
        options = fill(one.options, {**self._places(), **own, "trained": trained})
        if one.script:
            return [hosts.PYTHON, str(one.script), *hosts.words({**options, "device": device})]
        return hosts.evaluate(host, one.command, options, self.variant, {**own, "overwrite": True})

    def _places(self) -> dict[str, Any]:
        after = self.start.home / "train" if self.start else ""
        return {**self.setting.places, "variant": self.variant, "seed": self.seed, "after": after}
