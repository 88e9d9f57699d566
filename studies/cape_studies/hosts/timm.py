"""timm: its own train.py trains, which is not in its wheel; ``cape-timm-eval`` tests."""

import re
from pathlib import Path
from typing import ClassVar

from cape_studies.hosts import Host, Machine, Options, Progress, words

COMMIT = "aa4b5850"  # of pytorch-image-models, whose train.py was tried


class Timm(Host):
    """Its own train.py trains."""

    NAME = MODULE = "timm"
    AXES = 2
    PACKAGES = ("timm",)
    CHECKPOINT = "last.pth.tar"
    MODEL = "checkpoint"
    CONDITION = ("resolution",)
    WHOLE = ("bin",)
    CHANCE = "always the commonest class"
    EVERY_STEP: ClassVar = {"log-interval": 1}

    def train(
        self, recipe: Path | None, options: Options, seed: int, folder: Path, machine: Machine
    ) -> list[str]:
        """timm's train.py, by torchrun on several GPUs."""
        last = folder / "last.pth.tar"
        own: Options = {"seed": seed, "device": machine.device}
        own |= {"device-modules": "cape_plugins.timm"}
        own |= {"output": folder.parent, "experiment": folder.name}
        own["resume"] = last if last.exists() else None
        script = f"{machine.timm_scripts or '<timm-scripts>'}/train.py"
        return [*machine.python, script, *words({"config": recipe, **options, **own})]

    def progress(self, line: str, options: Options) -> Progress | None:
        """Of ``Train: 3 [ 50/781 …] Loss: 2.1 (2.3)``."""
        if found := re.search(r"Train: (\d+) \[ *(\d+)/ *(\d+) .*?Loss: *(\S+)", line):
            epoch, batch, of, loss = found.groups()
            done = int(epoch) + (int(batch) + 1) / int(of)
            epochs = options.get("epochs")
            return Progress(done / int(epochs) if epochs else None, f"epoch {epoch}", loss)
        return None

    def trainer_lacks(self, machine: Machine) -> str:
        """Where timm's train.py comes from, if it is not there."""
        if machine.timm_scripts and (machine.timm_scripts / "train.py").is_file():
            return ""
        where = machine.timm_scripts or "--timm-scripts DIR, which was not given"
        return (
            f"no train.py of timm in {where}: "
            "git clone https://github.com/huggingface/pytorch-image-models && "
            f"git -C pytorch-image-models checkout {COMMIT} && mkdir scripts && "
            "cp pytorch-image-models/{train,validate,benchmark}.py scripts; "
            "then --timm-scripts scripts"
        )

    def named_by(self, recipe: Path | None) -> tuple[str, ...]:
        """Its name in timm."""
        return ("model",)

    def typed(self, options: Options, own: Options, variant: str) -> str:
        """The model, as Python creates it."""
        name = options["model"].format(variant=variant)
        size = {"img_size": options["img-size"]} if "img-size" in options else {}
        kwargs = {**size, **(options.get("model-kwargs") or {})}
        kwargs |= {"pretrained": True} if options.get("pretrained") else {}
        given = {key: value for key, value in kwargs.items() if value is not None}
        pairs = "".join(f", {key}={value!r}" for key, value in given.items())
        return f"import cape_plugins.timm; timm.create_model({name!r}{pairs})"


HOST = Timm()
