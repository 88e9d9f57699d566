"""Decodes pieces of audio, by greedy CTC in batches or by ESPnet's own search."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from espnet2.asr.encoder.conformer_encoder import TooShortUttError
from espnet2.fileio.sound_scp import soundfile_read
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.benchmark import timer
from torch.utils.data import DataLoader
from tqdm import tqdm

from cape_studies.command import Diverged
from cape_studies.evaluate.espnet.models import Model
from cape_studies.evaluate.espnet.options import EspnetOptions
from cape_studies.evaluate.espnet.testset import Piece, Utterance

Ids = list[int] | None  # tokens without blanks; None if there is not a single frame


def decode(
    model: Model,
    utterances: Sequence[Utterance],
    pieces: Sequence[Piece],
    options: EspnetOptions,
    title: str = "",
) -> tuple[list[Ids], float]:
    """The tokens of each piece, and the seconds of computing from samples to tokens.

    With ``--hops`` the first batch, the longest, is decoded once before the time counts.

    Raises:
        ValueError: the model's output is not finite.
    """
    place = torch.device(model.speech2text.device)
    recognise = _searched if model.searches else _greedy
    padded = model.padded and not model.searches
    most = options.batch_seconds * utterances[0].rate if padded else 0
    lengths = (piece.end - piece.start for piece in pieces)
    samples = {i: length for i, length in enumerate(lengths) if length >= model.shortest}
    loader: Any = DataLoader(
        batches(samples, most),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=options.workers,
        collate_fn=partial(_read, model.prepare, utterances, pieces),
    )
    found: list[Ids] = [None] * len(pieces)
    seconds, warm = 0.0, not options.hops
    with torch.inference_mode():
        for group, *given in tqdm(loader, title, disable=None, leave=False):
            batch = [part.to(place) for part in given]
            with torch.autocast(place.type, torch.bfloat16, enabled=options.amp):
                if not warm:
                    recognise(model, *batch)
                    warm = True
                began = timer()  # waits for the GPU
                tokens = recognise(model, *batch)
                seconds += timer() - began
            for index, ids in zip(group, tokens, strict=True):
                found[index] = ids
    return found, seconds


def batches(samples: dict[int, int], most: float) -> list[list[int]]:
    """Indices of pieces in groups, longest first.

    The size of a group times its longest piece is at most ``most`` samples, unless it is one piece.
    """
    groups: list[list[int]] = []
    for i in sorted(samples, key=lambda i: -samples[i]):
        if groups and (len(groups[-1]) + 1) * samples[groups[-1][0]] <= most:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _read(
    prepare: Any, utterances: Sequence[Utterance], pieces: Sequence[Piece], group: list[int]
) -> tuple[list[int], Tensor, Tensor]:
    """A group of pieces: their indices, padded samples (B, N), and lengths (B,)."""
    audio = []
    for index in group:
        piece = pieces[index]
        one = utterances[piece.utterance]
        samples, _ = soundfile_read(one.path, "float32", start=piece.start, end=piece.end)
        audio.append(torch.from_numpy(prepare(one.name, {"speech": samples})["speech"]))
    lengths = torch.tensor([len(samples) for samples in audio])
    return group, pad_sequence(audio, batch_first=True), lengths


def _greedy(model: Model, speech: Tensor, lengths: Tensor) -> list[Ids]:
    """The likeliest token of each frame, with repeats merged and without blanks.

    asr_inference with a beam of one differs: it sums the alignments of a text.
    """
    asr = model.asr
    try:
        out, out_lengths = asr.encode(speech, lengths)
    except TooShortUttError:  # ESPnet raises it if the longest is too short
        return [None] * len(speech)
    logits = asr.ctc.ctc_lo(out[0] if isinstance(out, tuple) else out)  # intermediate CTC
    frames = torch.arange(logits.shape[1], device=logits.device)
    real = frames < out_lengths.to(logits.device)[:, None]
    if not bool((logits.isfinite().all(dim=2) | ~real).all()):
        raise Diverged("the model's output is not finite: did its training diverge?")
    left_out = {asr.blank_id, asr.sos, asr.eos}
    best = logits.argmax(dim=2).cpu()
    merged = (row[:n].unique_consecutive() for row, n in zip(best, out_lengths, strict=True))
    return [[i for i in ids.tolist() if i not in left_out] for ids in merged]


def _searched(model: Model, speech: Tensor, lengths: Tensor) -> list[Ids]:
    """The tokens of a single utterance, by asr_inference's search."""
    try:
        found = model.speech2text(speech[0])
    except TooShortUttError:
        return [None]
    return [(found[0] if isinstance(found, tuple) else found)[0][2]]  # intermediate CTC
