"""Loss of causal language models by length and by position: ``cape-transformers-eval``.

A window is the beginning of a text, of as many tokens as the greatest length. At each length a
model sees the last tokens of the window, and the same last ones are scored: what differs is the
context alone. By position, the whole window is scored at the greatest length.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from typing_extensions import Self  # pydantic's

from cape_studies.command import named
from cape_studies.data.tokens import texts_of
from cape_studies.evaluate.output import EvaluationOptions, Score

BATCH_TOKENS = 16384  # the most of a batch


class TextOptions(EvaluationOptions):
    """Score the last tokens of windows of text after contexts of several lengths, in nats."""

    model: list[str] = Field(min_length=1, description="[NAME=]FOLDER, one for each training")
    data: Path = Field(description="folder that cape_studies.data.tokens made")
    subset: str = Field("test", description="test or valid")
    length: list[PositiveInt] = Field([256, 512, 1024], description="tokens that a model sees")
    scored: PositiveInt = Field(
        64, description="last tokens of a window, which are scored at every length"
    )
    bins: list[PositiveInt] = Field(
        [64, 128, 256, 512, 1024], description="last positions of bins, at the greatest length"
    )
    windows: PositiveInt = Field(1000, description="most windows; each is of one file")
    rope_scaling: Literal["none", "linear", "dynamic", "yarn"] = Field(
        "none",
        description="transformers' own, of a model of its own, beyond --trained-length; the factor "
        "is length / --trained-length",
    )
    trained_length: PositiveInt = Field(256, description="tokens of a training sequence")

    @model_validator(mode="after")
    def check_lengths(self) -> Self:
        """Refuse to score more tokens than the shortest input has."""
        if self.scored >= min(self.length):
            raise ValueError(f"--scored {self.scored} must be below the least --length")
        return self


OPTIONS = TextOptions


def run(options: TextOptions) -> Iterator[Score]:
    """Scores of each model.

    Raises:
        ValueError: a folder cannot be read, a text is too short, or a scaling is not for a model.
    """
    windows = read_windows(options)
    for given in options.model:
        name, folder = named(given, "--model")
        about: dict[str, Any] = {"model": name or Path(folder).name}
        for length in options.length:
            model = load(Path(folder), length, options)
            nats = losses(model, windows[:, -length:], options)  # (windows, length - 1)
            yield from scores(
                {**about, "length": length, "position": "all"}, nats[:, -options.scored :]
            )
            if length == max(options.length):
                for low, high in pairwise([1, *options.bins]):  # the first token is not predicted
                    if low < length:
                        where = f"{low + 1}-{high}"
                        part = nats[:, low - 1 : high - 1]
                        yield from scores({**about, "length": length, "position": where}, part)


def read_windows(options: TextOptions) -> Tensor:
    """The beginnings of all texts that are long enough, (windows, greatest length).

    Raises:
        ValueError: there is none, or no such file.
    """
    path, longest = options.data / f"{options.subset}.npy", max(options.length)
    try:
        tokens = np.load(path)
    except OSError as error:
        raise ValueError(f"--data: {path} cannot be read: {error}") from error
    long = [one[:longest] for one in texts_of(tokens) if len(one) >= longest]
    found = long[: options.windows]
    if not found:
        raise ValueError(f"--length {longest}: no text of {path} has so many tokens")
    return torch.from_numpy(np.stack(found).astype(np.int64))


def load(folder: Path, length: int, options: TextOptions) -> nn.Module:
    """A model in evaluation, with transformers' scaling for this length if asked for.

    Its folder alone is read: no model of the Hugging Face Hub, and no code that a folder names.

    Raises:
        ValueError: it is no folder of a model; or the model is ours, which transformers does not
            scale.
    """
    if not (folder / "config.json").is_file():  # transformers would ask the Hub for such a name
        raise ValueError(f"--model: {folder} is no folder with transformers' config.json")
    here = dict(local_files_only=True, trust_remote_code=False)
    config = AutoConfig.from_pretrained(folder, **here)
    if options.rope_scaling != "none" and length > options.trained_length:
        theirs = getattr(config, "rope_parameters", None)
        if theirs is None or config.model_type.startswith("cape_"):
            raise ValueError(f"--rope-scaling is of transformers' rotary models, not {folder}")
        config.max_position_embeddings = options.trained_length
        config.rope_parameters = {
            "rope_type": options.rope_scaling,
            "rope_theta": theirs["rope_theta"],
            "factor": length / options.trained_length,
            "original_max_position_embeddings": options.trained_length,
        }
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, **here)
    return model.eval().to(options.place)


@torch.inference_mode()
def losses(model: nn.Module, windows: Tensor, options: TextOptions) -> Tensor:
    """Nats of each token but the first, (windows, length - 1)."""
    found = []
    for batch in windows.split(max(1, BATCH_TOKENS // windows.shape[1])):
        tokens = batch.to(options.place)
        with torch.autocast(options.place.type, torch.bfloat16, enabled=options.amp):
            logits = model(tokens, use_cache=False).logits[:, :-1].float()
        found.append(F.cross_entropy(logits.mT, tokens[:, 1:], reduction="none").cpu())
    return torch.cat(found)


def scores(about: dict[str, Any], nats: Tensor) -> Iterator[Score]:
    """Mean loss, an item for each window, and the perplexity."""
    count = nats.shape[1]
    items = [(i, total, count) for i, total in enumerate(nats.double().sum(dim=1).tolist())]
    loss = Score.of(about, "loss", "mean", items)
    yield loss
    value = math.exp(min(loss.value, 700.0))
    yield Score(about, "perplexity", "number", value, loss.count, loss.weight)
