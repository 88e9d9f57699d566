"""WER and CER of ESPnet's ASR models by duration: ``cape-espnet-eval``.

Section 4.2 of the paper: greedy CTC decoding without a language model. It takes any model of
``espnet2.bin.asr_train`` with a CTC, and other models with ``--search``.
``studies/data/score_recordings.py`` has pieces of audio, and hops.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import jiwer

from cape_studies.command import once
from cape_studies.data.recordings import Utterance
from cape_studies.evaluate.espnet.decoding import decode
from cape_studies.evaluate.espnet.models import Model, sources, split_name
from cape_studies.evaluate.espnet.options import EspnetOptions
from cape_studies.evaluate.espnet.testset import read
from cape_studies.evaluate.output import Score, in_bins

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
