"""The hosts: a file for each, whose ``HOST`` has all that is the host's."""

import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar, NamedTuple

from cape_studies.evaluate import THEN

#: name → value, in the names of whoever takes them
Options = dict[str, Any]

PYTHON = sys.executable
EVALUATE = [PYTHON, "-m", "cape_studies.evaluate"]


@dataclass(frozen=True)
class Machine:
    """What a run gets: a number of GPUs (0: the CPU), and the folder of timm's train.py."""

    gpus: int = 0
    timm_scripts: Path | None = None

    @property
    def device(self) -> str:
        """The device by torch's name."""
        return "cuda" if self.gpus else "cpu"

    @property
    def python(self) -> list[str]:
        """Python, for several GPUs by torchrun."""
        several = "-m", "torch.distributed.run", f"--nproc-per-node={self.gpus}", "--standalone"
        return [PYTHON, *(several if self.gpus > 1 else ())]


class Progress(NamedTuple):
    """What a line of a training's log says: the part that is done, if that is known; the epoch or
    update, in words; and the loss, as it is written."""

    part: float | None
    where: str
    loss: str

    @property
    def told(self) -> str:
        """It in words."""
        return f"{self.where}, loss {self.loss}" if self.loss else self.where


class Host:
    """What is a host's: how its trainer is called, what its log says, how its models are tested.

    Attributes:
        NAME: of the host.
        MODULE: must be installed.
        AXES: of its positions, 1 or 2.
        PACKAGES: scores depend on their versions.
        CHECKPOINT: the file to test in the folder of the training; empty: the folder.
        MODEL: the option that its evaluation takes NAME=CHECKPOINT by.
        CONDITION: columns of the evaluation's CSV that name the condition.
        WHOLE: columns whose value must be ``all`` where the condition does not name them.
        SPLITS_AT: letters at which its commands split lists of paths.
        CHANCE: what needs no training, and has the score that an answer calls chance.
        EVERY_STEP: options that make a training log each update.
    """

    NAME: str
    MODULE: str
    AXES = 1
    PACKAGES: tuple[str, ...]
    CHECKPOINT: str
    MODEL = "model"
    CONDITION: tuple[str, ...] = ()
    WHOLE: tuple[str, ...] = ()
    SPLITS_AT = ""
    CHANCE: str
    EVERY_STEP: ClassVar[Options] = {}

    def words(self, options: Mapping[str, Any]) -> list[str]:
        """Options as words of the host's own commands."""
        return words(options)

    def train(
        self, recipe: Path | None, options: Options, seed: int, folder: Path, machine: Machine
    ) -> list[str]:
        """The command that trains, or goes on from a checkpoint in the folder.

        ``recipe`` is the host's own YAML; ``options`` are under its own names.
        """
        raise NotImplementedError

    def test(
        self, command: str | None, options: Options, name: str, checkpoint: Path, own: Options
    ) -> list[str]:
        """The command of ``cape_studies.evaluate`` that tests a checkpoint under the model's name.

        ``command`` is for an evaluation that has several, and comes with ``data`` before the other
        options; ``own`` has device and files to write.
        """
        given = {**options, **own, self.MODEL: f"{name}={checkpoint}"}
        bare = [command, given.pop("data")] if command else []
        return [*EVALUATE, self.NAME, *bare, *words(given)]

    def progress(self, line: str, options: Options) -> Progress | None:
        """What a line of a training's log says; ``options`` also has those of the recipe."""
        return progress(line)

    def validated(self, line: str) -> float | None:
        """The validation's loss that a line of a training's log has; None: it has none."""
        return None

    def trainer_lacks(self, machine: Machine) -> str:
        """What is missing for the host's own trainer, in a line; empty: nothing."""
        return ""

    def named_by(self, recipe: Path | None) -> tuple[str, ...]:
        """The options that name the model, which the host's trainer would choose else."""
        return ()

    def typed(self, options: Options, own: Options, variant: str) -> str:
        """A variant as a user of the host types it, of all options and of the variant's own."""
        raise NotImplementedError


NAMES = sorted(one.name for one in iter_modules(__path__))


def host(name: str) -> Host:
    """A host by its name."""
    return import_module(f"{__name__}.{name}").HOST


def missing(name: str) -> str:
    """What to do if a host is not installed, in a line; empty: it is."""
    if importlib.util.find_spec(host(name).MODULE) is not None:
        return ""
    return f"{name} is not installed: pip install 'cape-studies[{name}]'"


def variants(name: str) -> tuple[str, ...]:
    """The variants of positions that a host has, those of other packages too."""
    from cape_plugins.variants import names  # imports torch

    return names(host(name).AXES)


def words(options: Mapping[str, Any]) -> list[str]:
    """Options as words of a command line: ``{a: 1, b: true, c: [1, 2], d: {x: true}}`` is
    ``--a 1 --b --c 1 2 --d x=True``. null and false leave an option out."""
    found: list[str] = []
    for key, value in options.items():
        if value is None or value is False:
            continue
        several = value if isinstance(value, list) else [value]
        if isinstance(value, Mapping):
            several = [f"{name}={one}" for name, one in value.items() if one is not None]
        found += [f"--{key}", *([] if value is True else map(str, several))]
    return found


def together(tests: Sequence[Sequence[str]]) -> list[str]:
    """Several commands of :meth:`Host.test` as one, which does them in one process."""
    return [*tests[0], *(word for one in tests[1:] for word in (THEN, *one[len(EVALUATE) :]))]


def progress(line: str) -> Progress | None:
    """What a line of a study's own trainer says: ``step 3/12 loss=0.5``."""
    if found := re.match(r"step (\d+)/(\d+)(?: loss=(\S+))?", line):
        step, of, loss = found.groups("")
        return Progress(int(step) / int(of), f"step {step} of {of}", loss)
    return None
