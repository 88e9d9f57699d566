"""ESPnet: espnet2.bin.asr_train trains, ``cape-espnet-eval`` tests."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml

from cape_studies.hosts import PYTHON, Host, Machine, Options, Progress


def _lower(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Espnet(Host):
    """Its asr_train trains."""

    NAME = "espnet"
    MODULE = "espnet2"
    PACKAGES = ("espnet",)
    CHECKPOINT = ""
    CONDITION = ("test_set",)
    WHOLE = ("bin",)
    SPLITS_AT = ","
    CHANCE = "empty transcripts"
    EVERY_STEP: ClassVar = {"log_interval": 1}

    def words(self, options: Mapping[str, Any]) -> list[str]:
        """Options as ESPnet's commands take them: ``{a: 1, b: true, c: [1, 2], d: {x: true}}`` is
        ``--a 1 --b true --c 1 --c 2 --d x=true``. null leaves an option out."""
        found: list[str] = []
        for key, value in options.items():
            several = value if isinstance(value, list) else [value]
            if isinstance(value, Mapping):
                several = [f"{k}={_lower(one)}" for k, one in value.items() if one is not None]
            for one in several:
                found += [] if one is None else [f"--{key}", _lower(one)]
        return found

    def train(
        self, recipe: Path | None, options: Options, seed: int, folder: Path, machine: Machine
    ) -> list[str]:
        """ESPnet goes on by itself (``resume``)."""
        own: Options = {"seed": seed, "ngpu": machine.gpus, "resume": True, "output_dir": folder}
        if machine.gpus > 1:
            own["multiprocessing_distributed"] = True
        given = self.words({"config": recipe, **options, **own})
        return [PYTHON, "-m", "espnet2.bin.asr_train", *given]

    def progress(self, line: str, options: Options) -> Progress | None:
        """Of ``3epoch:train:1-50batch: …, loss=2.1, …``."""
        if found := re.search(r"(\d+)epoch:train:\d+-(\d+)batch:.*?\bloss=([^\s,]+)", line):
            epoch, batch, loss = found.groups()
            most, each = options.get("max_epoch"), options.get("num_iters_per_epoch")
            done = int(epoch) - 1 + (int(batch) / int(each) if each else 0)
            return Progress(done / int(most) if most else None, f"epoch {epoch}", loss)
        return None

    def validated(self, line: str) -> float | None:
        """Of ``3epoch results: [train] …, [valid] …, loss=2.1, …``."""
        found = re.search(r"epoch results:.*\[valid\].*?\bloss=([\d.]+)", line)
        return float(found[1]) if found else None

    def typed(self, options: Options, own: Options, variant: str) -> str:
        """The encoder's keys in a config, with its sizes if the options have the recipe's too."""
        conf = {k: v for k, v in options.get("encoder_conf", {}).items() if v is not None}
        if "pos" in conf:
            conf = {"pos": conf.pop("pos").format(variant=variant), **conf}
        shown = {**own, "encoder": options.get("encoder", "cape_transformer"), "encoder_conf": conf}
        how: Any = {"sort_keys": False, "default_flow_style": True, "width": 1000}
        return str(yaml.safe_dump(shown, **how)).strip()


HOST = Espnet()
