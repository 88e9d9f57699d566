"""WER and CER of ESPnet's ASR models by duration: ``cape-espnet-eval``.

Section 4.2 of the paper: greedy CTC decoding without a language model. WER by duration, WER of
audio cut into pieces of 10 … 45 s, and WER and throughput for each hop. It takes any model of
``espnet2.bin.asr_train`` with a CTC, and other models with ``--search``.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from typing import Any

import jiwer

from cape_studies.evaluate.espnet.decoding import decode
from cape_studies.evaluate.espnet.models import Model, sources
from cape_studies.evaluate.espnet.options import EspnetOptions
from cape_studies.evaluate.espnet.testset import Piece, Utterance, cut, open_sets
from cape_studies.evaluate.output import Score

OPTIONS = EspnetOptions
_logger = logging.getLogger(__name__)


def run(options: EspnetOptions) -> Iterator[Score]:
    """The scores of all models under all conditions.

    Raises:
        ValueError: something does not fit; that is found before any work and before a file is made.
    """
    files = sources(options.model)
    sets = open_sets(options.data)
    place = options.place
    models = [Model(name, file, options.search, place) for name, file in files.items()]
    for model, (name, utterances) in product(models, sets.items()):
        check_fit(model, name, utterances, options)
    lengths = [None if one == "whole" else one for one in options.segment]
    cuts = {(name, length): cut(sets[name], length) for name, length in product(sets, lengths)}
    hops: Sequence[float | None] = options.hops or [None]
    for model, hop, name, length in product(models, hops, sets, lengths):
        if hop is not None:
            model.set_hop(hop)
        about: dict[str, object] = {"model": model.name, "checkpoint": str(model.file)}
        about |= {"test_set": name, "segment": length, "hop_ms": hop}
        yield from test(model, sets[name], cuts[name, length], about, options)


def check_fit(
    model: Model, name: str, utterances: Sequence[Utterance], options: EspnetOptions
) -> None:
    """Refuse a model that cannot be tested on a set or with the options.

    Raises:
        ValueError: the audio has another sampling rate, a hop is out of range, or no token of the
            transcripts is in the model's list.
    """
    for hop in options.hops:
        model.set_hop(hop)
    rate = utterances[0].rate
    if model.rate not in (None, rate):
        raise ValueError(
            f"{name} has audio at {rate} Hz, {model.name} was trained at {model.rate} Hz: "
            "resample the audio"
        )
    tokens = {token for one in utterances for token in model.tokens(one.text)}
    if tokens and not tokens & model.known:
        raise ValueError(
            f"no token in the transcripts of {name} is in the token list of {model.name}, such as "
            f"{sorted(tokens)[:5]}: does it have other words, or upper case for lower case?"
        )


def test(
    model: Model,
    utterances: Sequence[Utterance],
    pieces: Sequence[Piece],
    about: dict[str, object],
    options: EspnetOptions,
) -> Iterator[Score]:
    """Word and character error rates of a model under a condition: over all, and in each bin."""
    title = " ".join(str(v) for key, v in about.items() if key != "checkpoint" and v is not None)
    found, computing = decode(model, utterances, pieces, options, title)
    texts = joined(len(utterances), pieces, [model.hypothesis(ids or []) for ids in found])
    if short := [utterances[pieces[i].utterance] for i, ids in enumerate(found) if ids is None]:
        _logger.warning(
            "%d of %d in %s are too short for a single frame, such as %s: their text is empty",
            *(len(short), len(pieces), about["test_set"], short[0].name),
        )
    pairs = [(model.reference(u.text), text) for u, text in zip(utterances, texts, strict=True)]
    kinds = {"wer": jiwer.process_words, "cer": jiwer.process_characters}
    counted = {name: [errors(kind, *pair) for pair in pairs] for name, kind in kinds.items()}
    for label, low, high in bins(options.bins):
        inside = [i for i, one in enumerate(utterances) if low <= one.samples / one.rate < high]
        for metric in counted if inside else ():
            items = [(utterances[i].name, *counted[metric][i]) for i in inside]
            yield Score.of({**about, "bin": label}, metric, "percent", items)
    if options.hops and computing > 0:
        about = {**about, "bin": "all"}
        seconds = sum(one.samples / one.rate for one in utterances)
        speed = seconds / computing
        yield Score(about, "throughput", "number", speed, len(utterances), seconds)


def bins(edges: Sequence[float]) -> list[tuple[str, float, float]]:
    """Label, least seconds, and upper limit of each bin: ``all``, ``<10``, ``10-15``, ``>=15``."""
    found: list[tuple[str, float, float]] = [("all", 0, math.inf)]
    for low, high in pairwise([0, *sorted(edges), math.inf] if edges else []):
        label = f"{low:g}-{high:g}" if low else f"<{high:g}"
        found.append((label if high < math.inf else f">={low:g}", low, high))
    return found


def errors(process: Callable[..., Any], reference: str, hypothesis: str) -> tuple[int, int]:
    """Number of edits, and of words or characters (spaces too) in the reference, by jiwer."""
    found = process(reference, hypothesis)
    changed = found.substitutions + found.deletions
    return changed + found.insertions, changed + found.hits


def joined(count: int, pieces: Sequence[Piece], texts: Sequence[str]) -> list[str]:
    """The text of each utterance: the texts of its pieces, joined in their order."""
    parts: list[list[str]] = [[] for _ in range(count)]
    for piece, text in zip(pieces, texts, strict=True):
        if text:
            parts[piece.utterance].append(text)
    return [" ".join(part) for part in parts]
