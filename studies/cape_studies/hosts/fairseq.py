"""fairseq: fairseq-train trains, with a recipe fairseq-hydra-train; ``cape-fairseq-eval`` tests."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from cape_studies.hosts import PYTHON, Host, Machine, Options, Progress, words

SIZES = "encoder-", "decoder-", "share-"  # options that begin so are the model's


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


class Fairseq(Host):
    """Its two commands train."""

    NAME = MODULE = "fairseq"
    PACKAGES = ("fairseq-fixed", "fairseq")
    CHECKPOINT = "checkpoint_best.pt"
    SPLITS_AT = ",:"
    CHANCE = "empty translations"
    EVERY_STEP: ClassVar = {"log-interval": 1, "log-format": "simple"}

    def train(
        self, recipe: Path | None, options: Options, seed: int, folder: Path, machine: Machine
    ) -> list[str]:
        """fairseq starts a process for each GPU."""
        gpus = machine.gpus
        scripts = Path(PYTHON).parent
        if recipe is None:
            own = {**options, "seed": seed, "save-dir": folder, "cpu": not gpus}
            own["distributed-world-size"] = gpus or None
            return [str(scripts / "fairseq-train"), own.pop("data"), *words(own)]
        own = {**dict(_dotted(options)), "common.seed": seed}
        own |= {"common.cpu": not gpus, "checkpoint.save_dir": folder}
        own |= {"distributed_training.distributed_world_size": gpus} if gpus else {}
        start = [str(scripts / "fairseq-hydra-train"), "--config-dir", str(recipe.parent)]
        changes = [f"++{name}={_hydra(value)}" for name, value in own.items()]
        return [*start, "--config-name", recipe.stem, *changes, f"hydra.run.dir={folder}"]

    def progress(self, line: str, options: Options) -> Progress | None:
        """Of ``epoch 003:  50 / 300 loss=2.1, …, num_updates=650, …``, also as JSON."""
        pattern = r"\bepoch\W+(\d+).*?\bloss\W+([\d.]+).*?num_updates\W+(\d+)"
        if found := re.search(pattern, line):
            epoch, loss, updates = found.groups()
            most = options.get("max-update") or options.get("optimization", {}).get("max_update")
            part = int(updates) / int(most) if most else None
            return Progress(part, f"epoch {int(epoch)}", loss)
        return None

    def validated(self, line: str) -> float | None:
        """Of ``… valid on 'valid' subset | loss 2.1 | …``, also as JSON."""
        found = re.search(r"\bvalid(?:_| on .*? subset \| )loss\W+([\d.]+)", line)
        return float(found[1]) if found else None

    def named_by(self, recipe: Path | None) -> tuple[str, ...]:
        """Its architecture, which a recipe has under another key."""
        return () if recipe else ("arch",)

    def typed(self, options: Options, own: Options, variant: str) -> str:
        """The options of fairseq-train that make the model, with its sizes."""
        sizes = {name: one for name, one in options.items() if name.startswith(SIZES)}
        return " ".join(words({"arch": options["arch"], "pos": variant, **sizes, **own}))


HOST = Fairseq()
