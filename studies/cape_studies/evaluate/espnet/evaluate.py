"""WER and CER of ESPnet's ASR models by duration: ``cape-espnet-eval``.

Section 4.2 of the paper: greedy CTC decoding without a language model. WER by duration, WER of
audio cut into pieces of 10 … 45 s, and WER and throughput for each hop. It takes any model of
``espnet2.bin.asr_train`` with a CTC, and other models with ``--search``.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import jiwer

from cape_studies.evaluate.espnet.decoding import decode
from cape_studies.evaluate.espnet.models import Model, sources, split_name
from cape_studies.evaluate.espnet.options import EspnetOptions
from cape_studies.evaluate.espnet.testset import Utterance, read
from cape_studies.evaluate.output import Score, in_bins
from cape_studies.options import once

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
        for one in options.hops:
            model.set_hop(one)
        for name, (_, rate) in sets.items():
            if model.rate not in (None, rate):
                raise ValueError(
                    f"{name} has audio at {rate} Hz, {model.name} was trained at {model.rate} Hz: "
                    "resample the audio"
                )
    hops: Sequence[float | None] = options.hops or [None]
    for model, hop, name, length in product(models, hops, sets, options.segment):
        if hop is not None:
            model.set_hop(hop)
        about: dict[str, object] = {"model": model.name, "checkpoint": str(model.file)}
        about |= {"test_set": name, "segment": None if length == "whole" else length, "hop_ms": hop}
        yield from test(model, sets[name][0], about, options)


def test(
    model: Model, utterances: Sequence[Utterance], about: dict[str, Any], options: EspnetOptions
) -> Iterator[Score]:
    """Word and character error rates of a model under a condition: over all, and in each bin."""
    title = " ".join(str(v) for key, v in about.items() if key != "checkpoint" and v is not None)
    texts, computing = decode(model, utterances, about["segment"], options, title)
    kinds = {"wer": jiwer.process_words, "cer": jiwer.process_characters}
    counted = {
        name: [
            (one.name, *errors(kind, model.reference(one.text), text))
            for one, text in zip(utterances, texts, strict=True)
        ]
        for name, kind in kinds.items()
    }
    durations = [one.seconds for one in utterances]
    yield from in_bins(about, counted, durations, options.bins)
    if options.hops:
        about, audio = {**about, "bin": "all"}, sum(durations)
        yield Score(about, "throughput", "number", audio / computing, len(utterances), audio)


def errors(process: Callable[..., Any], reference: str, hypothesis: str) -> tuple[int, int]:
    """Number of edits, and of words or characters (spaces too) in the reference, by jiwer."""
    found = process(reference, hypothesis)
    changed = found.substitutions + found.deletions
    return changed + found.insertions, changed + found.hits
