"""ESPnet: espnet2.bin.asr_train trains, ``cape-espnet-eval`` tests."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cape_studies import hosts
from cape_studies.hosts import PYTHON, Machine, Options, Progress

MODULE = "espnet2"
AXES = 1
PACKAGES = ("espnet",)
CHECKPOINT = ""
CONDITION: tuple[str, ...] = ("test_set",)
WHOLE = ("bin",)
APART = ","
CHANCE = "empty transcripts"
EVERY_STEP: Options = {"log_interval": 1}


def words(options: Mapping[str, Any]) -> list[str]:
    """Options as ESPnet's commands take them: ``{a: 1, b: true, c: [1, 2], d: {x: true}}`` is
    ``--a 1 --b true --c 1 --c 2 --d x=true``. null leaves an option out."""
    found: list[str] = []
    for key, value in options.items():
        several = value if isinstance(value, list) else [value]
        if isinstance(value, Mapping):
            several = [f"{name}={_lower(one)}" for name, one in value.items() if one is not None]
        found += [word for one in several if one is not None for word in (f"--{key}", _lower(one))]
    return found


def _lower(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def train(
    recipe: Path | None, options: Options, seed: int, folder: Path, machine: Machine
) -> list[str]:
    """ESPnet goes on by itself (``resume``)."""
    own: Options = {"seed": seed, "ngpu": machine.gpus, "resume": True, "output_dir": folder}
    if machine.gpus > 1:
        own["multiprocessing_distributed"] = True
    return [PYTHON, "-m", "espnet2.bin.asr_train", *words({"config": recipe, **options, **own})]


def test(
    command: str | None, options: Options, name: str, checkpoint: Path, own: Options
) -> list[str]:
    """``cape-espnet-eval``."""
    given = hosts.words({**options, **own, "model": f"{name}={checkpoint}"})
    return [PYTHON, "-m", "cape_studies.evaluate", "espnet", *given]


def progress(line: str, options: Options) -> Progress | None:
    """Of ``3epoch:train:1-50batch: …, loss=2.1, …``."""
    if found := re.search(r"(\d+)epoch:train:\d+-(\d+)batch:.*?\bloss=([^\s,]+)", line):
        epoch, batch, loss = found.groups()
        most, each = options.get("max_epoch"), options.get("num_iters_per_epoch")
        done = int(epoch) - 1 + (int(batch) / int(each) if each else 0)
        return Progress(done / int(most) if most else None, f"epoch {epoch}, loss {loss}")
    return None


def problem(machine: Machine) -> str:
    """Nothing: the wheel has its trainer."""
    return ""


def typed(options: Options, own: Options, variant: str) -> str:
    """The encoder's keys in a config, with its sizes where the options have the recipe's too."""
    conf = {k: v for k, v in options.get("encoder_conf", {}).items() if v is not None}
    if "pos" in conf:
        conf["pos"] = conf["pos"].format(variant=variant)
    shown = {**own, "encoder": options.get("encoder", "cape_transformer"), "encoder_conf": conf}
    return str(yaml.safe_dump(shown, sort_keys=False, default_flow_style=True, width=1000)).strip()
