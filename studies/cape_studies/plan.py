"""What a study asks for: preparations, trainings and tests, each with its folder and its command.

This module names and says; nothing here is done. :mod:`.work` does one preparation or run, by
:mod:`.process`, which starts and ends commands; :mod:`.run` is the command line, which does all.

A folder is named after what was asked: its name has a digest of the resolved configuration and of
what is in the user's data. So equal configurations of two studies are one folder, and another
option, or data that changed, are another folder. It is done when its last file is there. Code and
versions do not count; ``config.yaml`` has them.

    out/data/NAME-DIGEST            a link to the user's folder that has these contents
    out/prepared/NAME-DIGEST/       done when NAME-DIGEST.yaml is there
    out/runs/VARIANT-seedN-DIGEST/  config.yaml, train.log, train/; trained.yaml when it is trained,
                                    failed when its last step failed
                                    test.log of all its evaluations
        EVALUATION-DIGEST/          config.yaml, items.csv; done when scores.csv is there
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from hydra.utils import get_method

from cape_studies import hosts
from cape_studies.config import Evaluation, Prepare, Study, study_of
from cape_studies.hosts import PYTHON, Machine, Options, Progress
from cape_studies.needs import Data
from cape_studies.yamls import composed, folders, merge, read_yaml

PARTS = 10  #: of a log, whose mean losses say whether a training had converged


def digest(value: object) -> str:
    """Ten hexadecimal digits that identify a JSON-like value."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def fill(value: Any, places: Mapping[str, object]) -> Any:
    """A value with the places in all its strings filled.

    Places are filled as text: from a Path ``{trained.…}`` could reach the environment.

    Raises:
        ValueError: a place is not defined for this step.
    """
    if isinstance(value, str):
        try:
            return value.format_map({name: str(place) for name, place in places.items()})
        except KeyError as error:
            there = ", ".join(places)
            raise ValueError(f"{value!r}: no {error} at that step; there is {there}") from error
        except AttributeError as error:
            raise ValueError(f"{value!r}: a place is a name in braces, without a dot") from error
    if isinstance(value, Mapping):
        return {key: fill(one, places) for key, one in value.items()}
    return [fill(one, places) for one in value] if isinstance(value, list) else value


def script_name(path: Path | None) -> str | None:
    """A script, as it counts in a digest: by its path in the checkout, else by its whole path."""
    for folder in folders():
        root = folder.parents[1].resolve()
        if path and path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return str(path) if path else None


@dataclass(frozen=True)
class Prepared:
    """A folder that is made once for all runs.

    Attributes:
        name: in the study.
        folder: to make; beside it are its ``.log``, its ``.lock``, and its ``.yaml`` when it is
            made.
        command: that makes it.
        asked: what is digested in the folder's name.
        data: of the user, from which it is made.
    """

    name: str
    folder: Path
    command: list[str]
    asked: dict[str, Any]
    data: Sequence[Data]

    def beside(self, suffix: str) -> Path:
        """A file beside the folder."""
        return self.folder.with_name(f"{self.folder.name}{suffix}")

    def done(self) -> bool:
        """Whether it was made."""
        return self.beside(".yaml").exists() and self.folder.is_dir()


@dataclass(frozen=True)
class Test:
    """An evaluation of a trained model, and its folder.

    ``scores.csv`` is there when all is done. ``items.csv`` has what test items add to each score,
    summed for each condition; it may not exist.
    """

    evaluation: Evaluation
    folder: Path

    @property
    def scores(self) -> Path:
        """What the evaluation wrote."""
        return self.folder / "scores.csv"

    @property
    def written(self) -> tuple[Path, Path]:
        """The CSVs of scores and of items while the evaluation writes them."""
        return self.folder / ".scores.csv", self.folder / ".items.csv"


class Run:
    """A training with a seed, and its tests.

    Attributes:
        plan, variant, seed: what is trained.
        fresh: whether it is made beside what is there, which it then replaces.
        start: the run whose training this one starts from, if there is one.
        options: of the host, with their places not filled.
        asked: what is digested in the folder's name.
        folder: of the run: that of a variant of another name, if it has this configuration; of a
            fresh one ``.fresh`` in it.
        trained: the folder that the host trains into.
        checkpoint: the file in it to test.
        log, test_log: of the training, and of the evaluations.
        note: written when the training is done: its seconds.
        failed: says why the last step failed, if it did.
        lock: who trains or tests holds this.
        tests: evaluations by name.
    """

    def __init__(
        self, plan: "Plan", variant: str, seed: int, fresh: bool = False, tested: bool = True
    ) -> None:
        study = plan.study
        self.plan, self.variant, self.seed, self.fresh = plan, variant, seed, fresh
        own = study.variants[variant]
        self.start = Run(plan, own.after, seed) if own.after else None
        self.recipe = own.recipe or study.recipe
        self.options = merge(study.options, own.options)
        marks = {**plan.marks, "variant": variant, "seed": seed}
        marks["after"] = self.start.key if self.start else ""
        self.asked: dict[str, Any] = {
            "host": study.host,
            "recipe": read_yaml(self.recipe) if self.recipe else {},
            "trainer": script_name(study.trainer),
            "options": fill(self.options, marks),
            "seed": seed,
        }
        if plan.machine.gpus > 1:
            self.asked["processes"] = plan.machine.gpus
        whole = self._folder()
        self.folder = whole / ".fresh" if fresh else whole
        self.trained = self.folder / "train"
        name = plan.host.CHECKPOINT if study.checkpoint is None else study.checkpoint
        self.checkpoint = self.trained / name
        self.log, self.note = self.folder / "train.log", self.folder / "trained.yaml"
        self.test_log = self.folder / "test.log"
        self.failed, self.lock = self.folder / "failed", whole / ".lock"
        self.tests: dict[str, Test] = {}
        marks |= dict.fromkeys(("trained", "checkpoint", "csv", "items"), "")
        for test, one in study.evaluations.items() if tested else ():
            options = merge(one.options, own.evaluate.get(test, {}))
            one = one.model_copy(update={"options": options})
            about = one.model_dump(mode="json") | {"script": script_name(one.script)}
            key = digest([name, fill(about, marks)])
            self.tests[test] = Test(one, self.folder / f"{test}-{key}")

    @cached_property
    def key(self) -> str:
        """The digest of what the training depends on."""
        return digest(self.asked)

    def _folder(self) -> Path:
        runs, name = self.plan.out / "runs", f"seed{self.seed}-{self.key}"
        there = sorted(runs.glob(f"*-{name}")) or [runs / f"{self.variant}-{name}"]
        return self.plan.named.setdefault(self.key, there[0])

    @property
    def depth(self) -> int:
        """How many trainings it starts from, one after the other."""
        return 1 + self.start.depth if self.start else 0

    @property
    def label(self) -> str:
        """Its name in what cape-run prints."""
        return f"{self.plan.name} {self.variant} seed {self.seed}"

    def done(self) -> bool:
        """Whether all its tests are done, or the training that has none."""
        files = [test.scores for test in self.tests.values()] or [self.note]
        return all(one.exists() for one in files)

    @property
    def places(self) -> dict[str, Any]:
        """What the places in options stand for."""
        after = self.start.trained if self.start else ""
        own = {"variant": self.variant, "seed": self.seed, "after": after}
        return {**self.plan.places, **own}

    def progress(self, line: str) -> Progress | None:
        """What a line of the training's log says of how far it is, if it does."""
        if self.plan.study.trainer:
            return hosts.progress(line)
        options = merge(self.asked["recipe"], self.asked["options"])
        return self.plan.host.progress(line, options)

    def losses(self) -> tuple[str, list[float]]:
        """``validation`` and its losses in their order, as far as the log has them. Of a trainer
        that says none: ``training`` and the means of its losses in ten parts of the log."""
        text = self.log.read_text("utf-8", errors="replace") if self.log.exists() else ""
        lines = text.splitlines()
        found = [loss for loss in map(self.plan.host.validated, lines) if loss is not None]
        if found and not self.plan.study.trainer:
            return "validation", found
        every: list[float] = []
        for one in filter(None, map(self.progress, lines)):
            with suppress(ValueError):  # a trainer of one's own may write anything there
                every.append(float(one.loss))
        many = max(1, len(every) / PARTS)
        edges = [round(i * many) for i in range(min(PARTS, len(every)) + 1)]
        return "training", [fmean(every[low:high]) for low, high in pairwise(edges)]

    def typed(self) -> str:
        """The variant as a user of the host types it, with the sizes of the model."""
        own = self.plan.study.variants[self.variant]
        options = merge(self.asked["recipe"], self.options) | {"evaluate": own.evaluate}
        return self.plan.host.typed(options, own.options, self.variant)

    def train_command(self, folder: Path, more: Options | None = None) -> list[str]:
        """The command that trains into a folder, or goes on from a checkpoint in it.

        ``more`` are options that replace the run's own.
        """
        study, machine = self.plan.study, self.plan.machine
        options = fill(merge(self.options, more or {}), self.places)
        if study.trainer:
            own = {"seed": self.seed, "out": folder, "device": machine.device}
            return [PYTHON, str(study.trainer), *hosts.words({**options, **own})]
        return self.plan.host.train(self.recipe, options, self.seed, folder, machine)

    def tests_by_process(self) -> list[dict[str, Test]]:
        """The tests that are not done: the host's evaluator does its own together."""
        left = {name: test for name, test in self.tests.items() if not test.scores.exists()}
        scripts = [{name: test} for name, test in left.items() if test.evaluation.script]
        others = {name: test for name, test in left.items() if not test.evaluation.script}
        return [others, *scripts] if others else scripts

    def test_command(self, test: Test, csv: Path, items: Path) -> list[str]:
        """The command of an evaluation, which writes two files."""
        one, device = test.evaluation, self.plan.machine.device
        own: Options = {"device": device, "csv": csv, "items": items}
        places = {**self.places, **own, "trained": self.trained, "checkpoint": self.checkpoint}
        options = fill(one.options, places)
        if one.script:
            return [PYTHON, str(one.script), *hosts.words({**options, "device": device})]
        own["overwrite"] = True
        return self.plan.host.test(one.command, options, self.variant, self.checkpoint, own)


class Plan:
    """A study with all that a command line says of it.

    Args:
        path: of the YAML.
        overrides: in Hydra's grammar.
        quick: whether the study's changes for ``--quick`` are made.
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
        out: Path = Path("out"),
        machine: Machine | None = None,
        named: dict[str, Path] | None = None,
    ) -> None:
        self.path, self.name, self.quick = path, path.stem, quick
        self.out, self.machine = out, machine or Machine()
        self.named = {} if named is None else named
        self._config = composed(path, overrides, quick)
        self.facts: dict[str, Any] = {}
        self.study: Study = study_of(self._config, path, self.facts)
        self.host = hosts.host(self.study.host)
        self.data: dict[str, Data] = {}
        self.places = {name: f"<{name}>" for name in self.study.needs}
        self.marks = dict(self.places)
        if self.study.recipe is not None:
            self.places["recipe"] = str(self.study.recipe)
            self.marks["recipe"] = digest(read_yaml(self.study.recipe))
        self.prepared: list[Prepared] = []

    def bring(self, data: Mapping[str, Data]) -> None:
        """Take the user's data, of the needs that this study has."""
        self.data = {name: one for name, one in data.items() if name in self.study.needs}
        for name, one in self.data.items():
            self.places[name], self.marks[name] = str(one.link), one.contents

    def prepare(self, make: Callable[[Prepared], Mapping[str, Any] | None]) -> None:
        """Go through the preparations in their order, as one may need the facts of those before it.

        ``make`` makes one; or fails, or shows it. It may give facts of one that is not made.
        """
        for name in self.study.prepare:
            step = self.study.prepare[name]
            one = self._prepared(name, step)
            found = make(one) or {}
            self.prepared.append(one)
            self.places[name], self.marks[name] = str(one.folder), one.folder.name
            if (facts := one.folder / "facts.yaml").exists():
                found = read_yaml(facts)
            if found and step.facts:
                chosen = {key.replace("-", "_"): value for key, value in step.facts.items()}
                found = get_method(chosen.pop("_target_"))(found, **chosen)
            self.facts |= found
            self.study = study_of(self._config, self.path, self.facts)

    def _prepared(self, name: str, step: Prepare) -> Prepared:
        program = ["-m", step.module] if step.module else [str(step.script)]
        arguments, options = fill([step.arguments, step.options], {**self.marks, "out": ""})
        about = step.module or script_name(step.script)
        asked = {"program": about, "arguments": arguments, "options": options}
        folder = self.out / "prepared" / f"{name}-{digest(asked)}"
        places = {**self.places, "out": folder}
        arguments, options = fill([step.arguments, step.options], places)
        own = (step.module or "").split(".")[0] == self.host.MODULE
        words = self.host.words if own else hosts.words
        command = [PYTHON, *program, *map(str, arguments), *words(options)]
        return Prepared(name, folder, command, asked, [*self.data.values()])

    def unnamed(self) -> Iterator[tuple[str, str]]:
        """Variants that lack an option which names their model, and that option."""
        study = self.study
        if study.trainer and not study.answer:
            return
        for name, own in study.variants.items():
            recipe = own.recipe or study.recipe
            options = merge(read_yaml(recipe) if recipe else {}, merge(study.options, own.options))
            for key in self.host.named_by(recipe):
                if not options.get(key):
                    yield name, key

    def runs(self, fresh: bool = False) -> list[Run]:
        """Of all variants and seeds that are asked for, seed by seed; ``fresh``: and the trainings
        that they start from, before them."""
        study = self.study
        names = [*study.run]
        for name in names:  # names grows
            if fresh and (start := study.variants[name].after) and start not in names:
                names.append(start)
        every = [(name, seed) for seed in study.seeds for name in names]
        return [Run(self, *one, fresh, one[0] in study.run) for one in every]
