"""transformers: its Trainer trains, in ``train_clm.py``; ``cape-transformers-eval`` tests."""

from pathlib import Path

from cape_studies import hosts
from cape_studies.hosts import PYTHON, Machine, Options, Progress, words

MODULE = "transformers"
AXES = 1
PACKAGES = ("transformers", "accelerate", "tokenizers")
CHECKPOINT = "model"
CONDITION: tuple[str, ...] = ("length",)
WHOLE = ("position",)
APART = ""
CHANCE = "the frequencies of tokens"
EVERY_STEP: Options = {"log": 1}


def train(
    recipe: Path | None, options: Options, seed: int, folder: Path, machine: Machine
) -> list[str]:
    """Trainer, by torchrun on several GPUs."""
    if recipe is not None:
        raise ValueError("transformers has no recipes: give options")
    several = ["-m", "torch.distributed.run", f"--nproc-per-node={machine.gpus}", "--standalone"]
    start = [PYTHON, *(several if machine.gpus > 1 else []), "-m", "cape_studies.train_clm"]
    return [*start, *words({**options, "seed": seed, "out": folder, "device": machine.device})]


def test(
    command: str | None, options: Options, name: str, checkpoint: Path, own: Options
) -> list[str]:
    """``cape-transformers-eval``."""
    start = [PYTHON, "-m", "cape_studies.evaluate.transformers"]
    return [*start, *words({**options, "model": f"{name}={checkpoint}", **own})]


def progress(line: str, options: Options) -> Progress | None:
    """What ``train_clm`` prints."""
    return hosts.progress(line)


def problem(machine: Machine) -> str:
    """Nothing: the wheel has its trainer."""
    return ""


def typed(options: Options, own: Options, variant: str) -> str:
    """The model, as Python makes it, what changes its positions in training, and the scaling that
    it was tested with."""

    def named(pairs: Options) -> str:
        return "".join(f", {key}={value!r}" for key, value in pairs.items() if value is not None)

    config = {**options.get("config", {})}
    if config.get("pos"):
        config["pos"] = config["pos"].format(variant=variant)
    sizes = f"{named(config)}, vocab_size=len(tokenizer)"
    made = f"AutoConfig.for_model({options['model-type']!r}{sizes})"
    text = f"model = AutoModelForCausalLM.from_config({made})"
    if pos := options.get("augment"):
        text += f"; augment_positions(model, {pos!r}{named(options.get('augment-options', {}))})"
    for test in options.get("evaluate", {}).values():
        if scaling := test.get("rope-scaling"):
            text += f"  # in the test rope_parameters of rope_type {scaling!r}"
    return text
