"""transformers: its Trainer trains, in ``train_clm.py``; ``cape-transformers-eval`` tests."""

from pathlib import Path
from typing import ClassVar

from cape_studies.hosts import Host, Machine, Options, words


class Transformers(Host):
    """Its models, trained by a module of ours, as it has no command that trains."""

    NAME = MODULE = "transformers"
    PACKAGES = ("transformers", "accelerate", "tokenizers")
    CHECKPOINT = "model"
    CONDITION = ("length",)
    WHOLE = ("position",)
    CHANCE = "the frequencies of tokens"
    EVERY_STEP: ClassVar = {"log": 1}

    def train(
        self, recipe: Path | None, options: Options, seed: int, folder: Path, machine: Machine
    ) -> list[str]:
        """Trainer, by torchrun on several GPUs."""
        if recipe is not None:
            raise ValueError("transformers has no recipes: give options")
        own = {"seed": seed, "out": folder, "device": machine.device}
        return [*machine.python, "-m", "cape_studies.train_clm", *words({**options, **own})]

    def named_by(self, recipe: Path | None) -> tuple[str, ...]:
        """Its name in transformers."""
        return ("model-type",)

    def typed(self, options: Options, own: Options, variant: str) -> str:
        """The model, as Python makes it, what changes its positions in training, and the scaling
        that it was tested with."""

        def named(pairs: Options) -> str:
            given = {key: value for key, value in pairs.items() if value is not None}
            return "".join(f", {key}={value!r}" for key, value in given.items())

        config = {**options.get("config", {})}
        if config.get("pos"):
            config["pos"] = config["pos"].format(variant=variant)
        sizes = f"{named(config)}, vocab_size=len(tokenizer)"
        made = f"AutoConfig.for_model({options['model-type']!r}{sizes})"
        text = f"model = AutoModelForCausalLM.from_config({made})"
        if pos := options.get("augment"):
            text += (
                f"; augment_positions(model, {pos!r}{named(options.get('augment-options', {}))})"
            )
        for test in options.get("evaluate", {}).values():
            if scaling := test.get("rope-scaling"):
                text += f"  # in the test rope_parameters of rope_type {scaling!r}"
        return text


HOST = Transformers()
