"""Test sets in Kaldi's format, whole or cut into pieces of a given length.

The paper tests its TED-LIUM models on pieces of T = 10, 15, …, 45 s (RV, section 4.2). Their audio
is not public, and no code of the authors that makes the cuts was found: the cuts here are ours.
Pieces follow each other without gap or overlap; each ends at the quietest place of its last half
second, so that words are seldom cut in two.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
from espnet2.fileio.read_text import read_2columns_text
from espnet2.fileio.sound_scp import soundfile_read

from cape_studies.evaluate.espnet.options import SHORTEST_SECONDS
from cape_studies.options import named, once

SLACK_SECONDS = 0.5
_QUIET_SECONDS = 0.02  # as long as the quiet must last


class Utterance(NamedTuple):
    """One line of wav.scp: its id, audio file, transcript, samples, and sampling rate in Hz."""

    name: str
    path: str
    text: str
    samples: int
    rate: int


def split_name(given: str, option: str) -> tuple[str, Path]:
    """NAME=PATH in two parts; without NAME it is the last part of PATH."""
    name, path = named(given, option)
    return name or Path(os.path.abspath(path)).name, Path(path)  # a link keeps its name


def open_sets(given: Sequence[str]) -> dict[str, list[Utterance]]:
    """Names and utterances of ``--data``, in the order of wav.scp.

    Relative paths in wav.scp start at the current folder, as in ESPnet.

    Raises:
        ValueError: a name is given twice; a file cannot be read; an utterance has no transcript;
            audio has several channels; or a set has several sampling rates.
    """
    folders = [split_name(one, "--data") for one in given]
    once([repr(name) for name, _ in folders], "--data", ": give names with --data NAME=FOLDER")
    return {name: _open_set(folder) for name, folder in folders}


def _open_set(folder: Path) -> list[Utterance]:
    try:
        wavs, texts = (read_2columns_text(folder / name) for name in ("wav.scp", "text"))
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"{folder} needs wav.scp and text: {error}") from error
    if alone := sorted(wavs.keys() ^ texts.keys()):
        raise ValueError(
            f"{len(alone)} utterances are in one of wav.scp and text in {folder}, not in both, "
            f"such as {alone[0]}"
        )
    utterances = []
    for key, path in wavs.items():
        try:
            about = soundfile.info(path)
        except soundfile.LibsndfileError as error:
            raise ValueError(f"{key} in {folder}/wav.scp cannot be read: {error}") from error
        if about.channels != 1:
            raise ValueError(
                f"{key} in {folder}/wav.scp has {about.channels} channels: make it mono"
            )
        utterances.append(Utterance(key, path, texts[key], about.frames, about.samplerate))
    rates = {utterance.rate: utterance.name for utterance in utterances}
    if len(rates) != 1:
        shown = ", ".join(f"{rate} Hz ({key})" for rate, key in rates.items())
        raise ValueError(f"{folder} must have one sampling rate, it has {shown or 'no audio'}")
    return utterances


class Piece(NamedTuple):
    """A stretch of an utterance: its index, first sample, and the sample after the last."""

    utterance: int
    start: int
    end: int


def cut(utterances: Sequence[Utterance], seconds: float | None) -> list[Piece]:
    """Consecutive pieces of each utterance, in the order of time.

    ``seconds`` is the longest duration of a piece; None leaves utterances whole. The rest at the
    end is a piece of its own; if it is shorter than 1 s, it belongs to the piece before it.
    """
    pieces = []
    for index, utterance in enumerate(utterances):
        rate, start = utterance.rate, 0
        longest = utterance.samples if seconds is None else round(seconds * rate)
        while utterance.samples - start - longest >= round(SHORTEST_SECONDS * rate):
            last = start + longest
            end = quietest(utterance, last - round(SLACK_SECONDS * rate), last)
            pieces.append(Piece(index, start, end))
            start = end
        pieces.append(Piece(index, start, utterance.samples))
    return pieces


def quietest(utterance: Utterance, first: int, last: int) -> int:
    """The centre of the 20 ms of least energy between two samples."""
    audio, _ = soundfile_read(utterance.path, dtype="float32", start=first, end=last)
    width = round(_QUIET_SECONDS * utterance.rate)
    energy = np.convolve(np.square(audio, dtype=np.float64), np.ones(width), mode="valid")
    return first + int(np.argmin(energy)) + width // 2
