"""WER and CER of ESPnet's ASR models by duration: ``cape-espnet-eval``.

Section 4.2 of the paper: greedy CTC decoding without a language model. It takes any model of
``espnet2.bin.asr_train`` with a CTC, and other models with ``--search``.
``studies/data/score_recordings.py`` has pieces of audio, and hops.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import jiwer
import soundfile
import torch
from pydantic import Field, PositiveFloat
from tqdm import tqdm

from cape_studies.command import Pairs, once
from cape_studies.data.recordings import Utterance
from cape_studies.evaluate.espnet.models import Model, sources, split_name
from cape_studies.evaluate.espnet.testset import read
from cape_studies.evaluate.output import EvaluationOptions, Score, in_bins

_logger = logging.getLogger(__name__)


class EspnetOptions(EvaluationOptions):
    """Error rates of ESPnet's ASR models by greedy CTC decoding, or by ESPnet's own search."""

    model: list[str] = Field(
        min_length=1,
        description="[NAME=]PATH: the folder of asr_train, or a .pth with config.yaml beside it",
    )
    search: Pairs = Field(
        {}, description="decode by asr_inference, with these options of its own; none: greedy CTC"
    )
    data: list[str] = Field(
        min_length=1, description="[NAME=]DIR: a folder with Kaldi's wav.scp and text"
    )

    bins: list[PositiveFloat] = Field(
        [10.0, 15.0, 20.0],
        description="edges in seconds: durations between two edges get a score of their own",
    )


OPTIONS = EspnetOptions


def run(options: EspnetOptions) -> Iterator[Score]:
    """The scores of all models under all conditions.

    Raises:
        ValueError: something does not fit; that is found before any work and before a file is made.
    """
    folders = [split_name(one, "--data") for one in options.data]
    once([name for name, _ in folders], "--data", ": give names with --data NAME=FOLDER")
    sets = {name: read(folder) for name, folder in folders}
    models = [Model(*one, options.search, options.place) for one in sources(options.model)]
    for model in models:
        for name, (_, rate) in sets.items():
            if model.rate not in (None, rate):
                raise ValueError(
                    f"{name} has audio at {rate} Hz, {model.name} was trained at {model.rate} Hz: "
                    "resample the audio"
                )
    for model, (name, (utterances, _)) in product(models, sets.items()):
        about = {"model": model.name, "checkpoint": str(model.file), "test_set": name}
        texts = decode(model, utterances, options, f"{model.name} {name}")
        counted = errors_of(model, utterances, texts)
        seconds = [one.seconds for one in utterances.values()]
        yield from in_bins(about, counted, seconds, options.bins)


def decode(
    model: Model, utterances: Mapping[str, Utterance], options: EspnetOptions, title: str = ""
) -> list[str]:
    """The text of each utterance.

    Raises:
        ValueError: the model's output is not finite.
    """
    kind = torch.device(model.speech2text.device).type
    texts: list[str] = []
    with torch.inference_mode(), torch.autocast(kind, torch.bfloat16, enabled=options.amp):
        for name, one in tqdm(utterances.items(), title, disable=None, leave=False):
            ids = model.tokens(model.heard(name, soundfile.read(one.path, dtype="float32")[0]))
            if ids is None:
                _logger.warning("%s is too short for a frame: no text", name)
            texts.append(model.hypothesis(ids or []))
    return texts


def errors_of(
    model: Model, utterances: Mapping[str, Utterance], texts: Sequence[str]
) -> dict[str, list[tuple[str, int, int]]]:
    """``wer`` and ``cer``: of each utterance its name and :func:`errors`."""
    kinds = {"wer": jiwer.process_words, "cer": jiwer.process_characters}
    return {
        metric: [
            (name, *errors(kind, model.reference(one.text), text))
            for (name, one), text in zip(utterances.items(), texts, strict=True)
        ]
        for metric, kind in kinds.items()
    }


def errors(process: Callable[..., Any], reference: str, hypothesis: str) -> tuple[int, int]:
    """Number of edits, and of words or characters (spaces too) in the reference, by jiwer."""
    found = process(reference, hypothesis)
    changed = found.substitutions + found.deletions
    return changed + found.insertions, changed + found.hits
