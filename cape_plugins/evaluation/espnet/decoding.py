"""Decoding pieces of audio in batches: greedy CTC, or ESPnet's search."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from espnet2.asr.espnet_model import ESPnetASRModel
from espnet2.fileio.sound_scp import soundfile_read
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from cape_plugins.espnet.seconds import TooShortUttError
from cape_plugins.evaluation import device
from cape_plugins.evaluation.espnet import frontends
from cape_plugins.evaluation.espnet.segments import Piece
from cape_plugins.evaluation.espnet.testset import Utterance

Prepare = Callable[[str, dict[str, np.ndarray]], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Runtime(device.Runtime):
    """Where and how models run.

    Attributes:
        batch_seconds: a batch times its longest piece lasts at most so long.
        batch_size: pieces at once, at most; None is no limit.
        padding: ``auto`` pads where that changes nothing and else batches pieces of one length
            only; ``always``, ``never``.
        workers: processes that read audio.
    """

    batch_seconds: float = 120.0
    batch_size: int | None = None
    padding: str = "auto"
    workers: int = 0


@dataclass(frozen=True)
class Decoded:
    """What decoding found.

    Attributes:
        ids: of each piece, its tokens without blanks; empty if it was too short.
        too_short: pieces without a single frame.
        seconds: of computing, from samples on the device to tokens; reading is not in it.
    """

    ids: list[list[int]]
    too_short: list[int]
    seconds: float


def decode(
    model: ESPnetASRModel,
    utterances: Sequence[Utterance],
    pieces: Sequence[Piece],
    runtime: Runtime,
    *,
    prepare: Prepare | None = None,
    search: Any = None,
    warm_up: bool = False,
    title: str = "",
) -> Decoded:
    """Recognise: without a search, the likeliest token of each frame, repeats merged, no blanks.

    Args:
        model: in eval mode, on the runtime's device, with a CTC unless there is a search.
        utterances: of the pieces, all of one sampling rate.
        pieces: what to decode.
        runtime: where and how.
        prepare: what ESPnet does to audio before it meets the model.
        search: asr_inference's, of the same model; takes single utterances.
        warm_up: decode the longest batch once before the clock runs.
        title: of the progress bar.

    Raises:
        ValueError: a batch does not fit the memory, or the model's output is not finite.
    """
    shortest = frontends.min_samples(model)
    padded = runtime.padding == "always" or (
        runtime.padding == "auto" and frontends.padding_changes_nothing(model)
    )
    recognise = _greedy if search is None else _searched
    if search is not None:
        search.device = str(runtime.device)
    found: list[list[int] | None] = [None] * len(pieces)
    groups = batches(
        [0 if piece.samples < shortest else piece.samples for piece in pieces],
        round(runtime.batch_seconds * utterances[0].rate) if utterances else 0,
        runtime.batch_size,
        padded=padded,
    )
    loader = DataLoader(
        _Audio(utterances, pieces, prepare),
        batch_sampler=groups,
        num_workers=runtime.workers,
        collate_fn=_collate,
        pin_memory=runtime.device.type == "cuda",
    )
    seconds = 0.0
    with torch.inference_mode():
        for speech, lengths, indices in tqdm(loader, title, disable=None, leave=False):
            speech, lengths = speech.to(runtime.device), lengths.to(runtime.device)
            if warm_up:
                recognise(search or model, speech, lengths, runtime)
                warm_up = False
            device.synchronise(runtime.device)
            began = time.perf_counter()
            tokens = recognise(search or model, speech, lengths, runtime)
            device.synchronise(runtime.device)
            seconds += time.perf_counter() - began
            for index, ids in zip(indices, tokens, strict=True):
                found[index] = ids
    too_short = [i for i, ids in enumerate(found) if ids is None]
    return Decoded([ids or [] for ids in found], too_short, seconds)


def batches(
    samples: Sequence[int], most: int, batch_size: int | None, *, padded: bool
) -> list[list[int]]:
    """Indices sorted by length, longest first, and grouped.

    Args:
        samples: of each piece; those of 0 are left out.
        most: a group times its longest piece has at most so many samples; a piece longer than
            that is a group of its own.
        batch_size: pieces of a group, at most.
        padded: pieces of different lengths may share a group.
    """
    groups: list[list[int]] = []
    for i in sorted((i for i, n in enumerate(samples) if n), key=lambda i: -samples[i]):
        group = groups[-1] if groups else []
        longest = samples[group[0]] if group else 0
        fits = (len(group) + 1) * longest <= most and len(group) != batch_size
        if group and fits and (padded or samples[i] == longest):
            group.append(i)
        else:
            groups.append([i])
    return groups


class _Audio(Dataset):
    def __init__(
        self, utterances: Sequence[Utterance], pieces: Sequence[Piece], prepare: Prepare | None
    ) -> None:
        self.utterances = utterances
        self.pieces = pieces
        self.prepare = prepare

    def __getitem__(self, i: int) -> tuple[int, np.ndarray]:
        piece = self.pieces[i]
        utterance = self.utterances[piece.utterance]
        samples, _ = soundfile_read(
            utterance.path, dtype="float32", start=piece.start, end=piece.end
        )
        if self.prepare is not None:
            samples = self.prepare(utterance.name, {"speech": samples})["speech"]
        return i, samples


def _collate(items: list[tuple[int, np.ndarray]]) -> tuple[Tensor, Tensor, list[int]]:
    lengths = torch.tensor([len(samples) for _, samples in items])
    speech = torch.zeros(len(items), int(lengths.max()))
    for row, (_, samples) in zip(speech, items, strict=True):
        row[: len(samples)] = torch.from_numpy(samples)
    return speech, lengths, [i for i, _ in items]


def _greedy(
    model: ESPnetASRModel, speech: Tensor, lengths: Tensor, runtime: Runtime
) -> list[list[int] | None]:
    """Tokens of each utterance of a batch, None for those without a frame."""
    try:
        with runtime.autocast():
            out, out_lengths = model.encode(speech, lengths)
            out = out[0] if isinstance(out, tuple) else out  # intermediate CTC
            logits = model.ctc.ctc_lo(out)
    except TooShortUttError:
        if len(speech) == 1:
            return [None]
        alone = zip(speech.split(1), lengths.split(1), strict=True)
        return [_greedy(model, one[:, : int(n)], n, runtime)[0] for one, n in alone]
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"{len(speech)} × {speech.shape[1]} samples do not fit the memory of "
            f"{runtime.device}: lower --batch-seconds"
        ) from error
    real = (
        torch.arange(logits.shape[1], device=logits.device) < out_lengths.to(logits.device)[:, None]
    )
    if not bool((logits.isfinite().all(dim=2) | ~real).all()):
        raise ValueError("the model's output is not finite: did its training diverge?")
    left_out = {model.blank_id, model.sos, model.eos}
    best = logits.argmax(dim=2).cpu()
    merged = (row[:n].unique_consecutive() for row, n in zip(best, out_lengths, strict=True))
    return [[i for i in ids.tolist() if i not in left_out] for ids in merged]


def _searched(
    search: Any, speech: Tensor, lengths: Tensor, runtime: Runtime
) -> list[list[int] | None]:
    """As :func:`_greedy`, by asr_inference's search."""
    tokens: list[list[int] | None] = []
    for samples, length in zip(speech, lengths, strict=True):
        try:
            with runtime.autocast():
                found = search(samples[:length])
        except TooShortUttError:
            tokens.append(None)
            continue
        best = (found[0] if isinstance(found, tuple) else found)[0]  # intermediate CTC
        tokens.append(best[2])
    return tokens
