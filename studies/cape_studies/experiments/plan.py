"""What a study's steps do and depend on: commands, outputs and the keys that these lie under.

A key is a digest of settings, versions, code and inputs. In it a place such as ``{corpus}`` stands
for what made it, not for where it is: a study moved to another folder is the same study.
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

SMALL = 2**26  # bytes of a folder up to which its files are read


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


@cache
def data_mark(folder: Path) -> str:
    """Tells a folder from others by all its files but hidden ones: names and contents.

    Where they are more than :data:`SMALL` in all: names, sizes and times of the last change.
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
        if real in seen:  # a link to a folder above
            inside.clear()
            continue
        seen.add(real)
        inside[:] = [name for name in inside if not name.startswith(".")]
        for path in [Path(at, name) for name in names if not name.startswith(".")]:
            if path.is_file():
                yield path, path.stat()


@cache
def versions(host: str) -> dict[str, str]:
    """Of what numbers depend on."""
    wanted = {"torch", *hosts.HOSTS[host].packages}
    found = {one.name: one.version for one in distributions() if one.name in wanted}
    return {"cape-plugins": cape_plugins.__version__, **dict(sorted(found.items()))}


@cache
def code_mark(package: Path, host: str) -> str:
    """Of the code of a package of ours, without its parts for other hosts."""
    files = sorted([*package.glob("*.py"), *(package / host).rglob("*.py")])
    return digest([(str(path.relative_to(package)), path.read_text("utf-8")) for path in files])


PLUGIN, STUDIES = Path(cape_plugins.__file__).parent, Path(cape_studies.__file__).parent
EVALUATION, ASK = STUDIES / "evaluation", STUDIES / "ask"


@cache
def script_mark(path: Path | None) -> str | None:
    """Of the content of a script, and of those beside it that it imports."""
    files = sorted(hosts.read_script(path)[0]) if path else []
    return digest([file.read_text("utf-8") for file in files]) if files else None


def _prepares(module: str | None, host: str) -> str:
    """Of our code that a preparation depends on; of ``ask`` its module, what holds items out and
    what reads text."""
    package, _, name = (module or "").rpartition(".")
    if package == "cape_studies.ask":
        files = ASK / f"{name}.py", ASK / "held_out.py", PLUGIN / "text.py"
        return digest([script_mark(path) for path in files])
    return code_mark(EVALUATION if package == "cape_studies.evaluation" else PLUGIN, host)


@dataclass(frozen=True)
class Step:
    """What one command makes under a key: a preparation, a training or an evaluation.

    Attributes:
        path: of what it makes, or what the names of that begin with; the key is in it, and its log
            and its record lie beside it.
        command: made when it starts: what there is to go on from may come until then.
        outputs: that it leaves; if one is missing it has failed, or is to be done anew.
        inputs: tells inputs that the key does not tell from the same ones made at another time.
        resumes: it goes on from what it left when it was interrupted; else that is removed.
        finish: what is done with the outputs.
    """

    path: Path
    command: Callable[[], list[str]]
    outputs: list[Path]
    inputs: list[Any]
    resumes: bool = False
    finish: Callable[[], object] = list

    @property
    def log(self) -> Path:
        """Of all its attempts; who writes to it holds its lock."""
        return self.path.with_name(f"{self.path.name}.log")

    @property
    def record_path(self) -> Path:
        """Of the record, which tells ``began`` while the step is not done, ``ended`` afterwards."""
        return self.path.with_name(f"{self.path.name}.json")

    def record(self) -> dict[str, Any]:
        """What is noted of its making."""
        return read_record(self.record_path)

    def done(self) -> bool:
        """Whether it has ended, from the inputs that there are now, and its outputs are there."""
        record = self.record()
        made = "ended" in record and record["inputs"] == self.inputs
        return made and all(path.exists() for path in self.outputs)


def read_record(path: Path) -> dict[str, Any]:
    """What a record notes; nothing where it is not there or cannot be read."""
    with suppress(OSError, ValueError):
        return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}


@dataclass(frozen=True)
class Setting:
    """Where a study runs: folder of its results, and of all results, and what each run gets.

    ``places`` are the folders of what is needed or prepared, by name, ``marks`` what tells their
    content.
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
    """The study's steps before any run, and where its runs find what they need.

    Args:
        study, out, machine, folder: see :class:`Setting`.
        data: what is needed → folder, None where it was not given.
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
        options: of the training, places not filled.
        settings: all that the training depends on; ``key`` is their digest.
        folder: of the run: a view on what its steps have made (see folders.py).
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
        """The folder that its steps make things in: its own, or a run's that trains alike."""
        return (self.folder / "train.json").resolve().parent

    @property
    def training(self) -> Step:
        """Its step that trains, or goes on."""
        path, tested = self.home / "train", self.evaluations.values()
        whole = all(one.script and "checkpoint" not in places_in(one.options) for one in tested)
        needed = path if whole else path / self.checkpoint
        inputs = [self.start.training.record().get("ended")] if self.start else []
        return Step(path, lambda: self.train_command, [needed], inputs, resumes=True)

    def evaluation(self, name: str) -> Step:
        """One of its steps that test."""
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
        """What an evaluation writes: scores, or ``-raw`` items, of which ``-items`` are made."""
        return self.home / "evaluations" / f"{name}-{self.evaluation_keys[name]}{kind}.csv"

    @property
    def train_command(self) -> list[str]:
        """As it has to be now: it names a checkpoint where there is one to go on from."""
        options, folder = fill(self.options, self._places()), self.home / "train"
        machine = self.setting.machine
        return hosts.train(self.study, self.recipe, options, self.seed, folder, machine)

    def evaluation_command(self, name: str) -> list[str]:
        """Of one evaluation."""
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
