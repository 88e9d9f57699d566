"""fairseq: fairseq-train trains, with a recipe fairseq-hydra-train; ``cape-fairseq-eval`` tests."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cape_studies.hosts import PYTHON, Machine, Options, apart, words

MODULE = "fairseq"
AXES = 1
PACKAGES = ("fairseq-fixed", "fairseq")
CHECKPOINT = "checkpoint_best.pt"
CONDITION: tuple[str, ...] = ()
WHOLE: tuple[str, ...] = ()
CHANCE = "empty translations"
EVERY_STEP: Options = {"log-interval": 1, "log-format": "simple"}
STEP = re.compile(r"num_updates=\d+")


def train(
    recipe: Path | None, options: Options, seed: int, folder: Path, machine: Machine
) -> list[str]:
    """fairseq starts a process for each GPU."""
    gpus = machine.gpus
    scripts = Path(PYTHON).parent
    if recipe is None:
        data, rest = apart(options, "data")
        rest |= {"seed": seed, "save-dir": folder, "cpu": not gpus}
        rest["distributed-world-size"] = gpus or None
        return [str(scripts / "fairseq-train"), data, *words(rest)]
    own = {**dict(_dotted(options)), "common.seed": seed}
    own |= {"common.cpu": not gpus, "checkpoint.save_dir": folder}
    own |= {"distributed_training.distributed_world_size": gpus} if gpus else {}
    start = [str(scripts / "fairseq-hydra-train"), "--config-dir", str(recipe.parent)]
    changes = [f"++{name}={_hydra(value)}" for name, value in own.items()]
    return [*start, "--config-name", recipe.stem, *changes, f"hydra.run.dir={folder}"]


def _dotted(options: Options, above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested options as Hydra types them: ``model.pos`` and its value."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _dotted(dict(value), f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _hydra(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_hydra, value))}]"
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    return str(value)


def test(
    command: str | None, options: Options, name: str, checkpoint: Path, own: Options
) -> list[str]:
    """``cape-fairseq-eval bleu`` or ``loss``."""
    data, rest = apart(options, "data")
    given = words({**rest, **own, "model": f"{name}={checkpoint}"})
    return [PYTHON, "-m", "cape_studies.evaluate.fairseq", str(command), data, *given]


def problem(machine: Machine) -> str:
    """Nothing: the wheel has its trainer."""
    return ""


def typed(options: Options, own: Options, variant: str) -> str:
    """The options of fairseq-train."""
    return " ".join(words({"arch": options["arch"], "pos": variant, **own}))
