"""How many values a language model recalls, by length and by the distance of the pair.

    python studies/data/score_recall.py --data recall --model run/model --csv scores.csv \
        --items items.csv

A value counts if it is the most probable of all tokens behind its key. The distance is the number
of tokens from the key's first place to its second. ``rope-scaling`` and ``trained-length`` are
those of ``cape-transformers-eval``.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from cape_studies.command import script
from cape_studies.data.tokens import texts_of
from cape_studies.evaluate.output import EvaluationOptions, Score, write
from cape_studies.evaluate.transformers.evaluate import BATCH_TOKENS, TextOptions, load
from cape_studies.train_clm import NO_LABEL


def main(
    data: Path,
    model: Path,
    csv: Path,
    items: Path,
    subset: Literal["valid", "test"] = "test",
    rope_scaling: Literal["none", "linear", "dynamic", "yarn"] = "none",
    trained_length: int = 32,
    device: Literal["cpu", "cuda"] = "cpu",
) -> None:
    """Score, write.

    Args:
        data: from make_recall.py.
        model: folder of the trained model.
        csv: file to write, with condition, metric, value, items.
        items: file to write, with what each sequence adds.
        subset: valid or test.
        rope_scaling: transformers' own, beyond ``trained_length``.
        trained_length: tokens of a training sequence, and the first bin of distances.
        device: cpu or cuda.
    """
    tokens = texts_of(np.load(data / f"{subset}.npy"))
    ends = np.cumsum([len(one) for one in tokens])
    labels = np.split(np.load(data / f"{subset}-labels.npy"), ends[:-1])
    lengths = sorted({len(one) for one in tokens})
    asked = {"model": [str(model)], "data": data, "length": [trained_length], "scored": 1}
    asked |= {"rope_scaling": rope_scaling, "trained_length": trained_length, "device": device}
    options = TextOptions.model_validate(asked)

    def found() -> Iterator[Score]:
        for length in lengths:
            of = [
                torch.from_numpy(np.stack([one for one in every if len(one) == length])).long()
                for every in (tokens, labels)
            ]
            edges = [0, *(one for one in lengths if one < length), length]
            given = of[0].to(options.place)
            yield from of_length(load(model, length, options), given, of[1], edges)

    outputs = {"csv": csv, "items": items, "overwrite": True}
    write(EvaluationOptions.model_validate(outputs), found())


@torch.inference_mode()
def of_length(
    model: nn.Module, tokens: Tensor, labels: Tensor, edges: list[int]
) -> Iterator[Score]:
    """Scores of sequences of one length: of all values, and of those in each bin of distances.

    Args:
        model: in evaluation.
        tokens, labels: (sequences, length).
        edges: of the bins, each of which ends with one; the last is the length.
    """
    length = tokens.shape[1]
    parts = tokens.split(max(1, BATCH_TOKENS // length))
    said = torch.cat([model(one).logits.argmax(-1).cpu() for one in parts])
    right = said[:, :-1] == labels[:, 1:]  # what follows a place is said there
    back = distances(tokens.cpu(), labels)[:, 1:]
    bins = {f"{length}": (1, length)}
    if len(edges) > 2:
        bins |= {f"{length}, {low + 1}–{high}": (low + 1, high) for low, high in pairwise(edges)}
    for name, (low, high) in bins.items():
        asked = (back >= low) & (back <= high)
        counted = zip((right & asked).sum(1).tolist(), asked.sum(1).tolist(), strict=True)
        adds = [(i, *one) for i, one in enumerate(counted) if one[1]]
        if adds:
            yield Score.of({"condition": name}, "exact", "percent", adds)


def distances(tokens: Tensor, labels: Tensor) -> Tensor:
    """Of each label the tokens from its key's first place to its second; 0 elsewhere. Of tokens'
    shape."""
    place = torch.arange(tokens.shape[1])
    same = (tokens[:, :, None] == tokens[:, None]) & (place[:, None] > place)
    back = torch.where(
        same.any(-1), place - same.int().argmax(-1), 0
    )  # of each token, to its first
    return torch.where(labels == NO_LABEL, 0, back.roll(1, 1))  # of the key before a label


if __name__ == "__main__":
    script(main)
