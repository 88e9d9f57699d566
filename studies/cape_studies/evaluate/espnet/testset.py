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
from espnet2.fileio.sound_scp import soundfile_read
from tqdm import tqdm

from cape_studies.data.text import read_lines
from cape_studies.evaluate.espnet.options import SHORTEST_SECONDS
from cape_studies.options import named, once

SLACK_SECONDS = 0.5
_QUIET_SECONDS = 0.02  # as long as the quiet must last
_WAVS = "write one WAV per utterance first (asr.sh stage 3, scripts/audio/format_wav_scp.sh)"


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
    """Names and utterances of ``--data``, in the order of wav.scp; all audio is read once.

    Relative paths in wav.scp start at the current folder, as in ESPnet.

    Raises:
        ValueError: a name is given twice; a file is missing; an utterance has no transcript; there
            is a ``segments`` file, or a pipe in wav.scp; audio cannot be read, is empty, is not
            finite or has several channels; or a set has several sampling rates.
    """
    folders = [split_name(one, "--data") for one in given]
    once([repr(name) for name, _ in folders], "--data", ": give names with --data NAME=FOLDER")
    return {name: _open_set(name, folder) for name, folder in folders}


def _open_set(name: str, folder: Path) -> list[Utterance]:
    tables = []
    for path in (folder / "wav.scp", folder / "text"):
        if not path.is_file():
            raise ValueError(f"no such file of test data: {path}")
        tables.append(_two_columns(path))
    wavs, texts = tables
    if (folder / "segments").exists():
        raise ValueError(f"{folder} has a segments file, which ESPnet does not read: {_WAVS}")
    if not wavs:
        raise ValueError(f"{folder}/wav.scp is empty")
    if alone := sorted(wavs.keys() ^ texts.keys()):
        raise ValueError(
            f"{len(alone)} utterances are in one of wav.scp and text in {folder}, not in both, "
            f"such as {alone[0]}"
        )
    bar = tqdm(wavs.items(), f"reading {name}", disable=None, leave=False)
    utterances = [_look_at(key, path, texts[key], folder) for key, path in bar]
    rates = {utterance.rate: utterance.name for utterance in utterances}
    if len(rates) > 1:
        shown = ", ".join(f"{rate} Hz ({key})" for rate, key in rates.items())
        raise ValueError(f"{folder} has several sampling rates: {shown}")
    return utterances


def _two_columns(path: Path) -> dict[str, str]:
    """Key → the rest of its line, as ESPnet's ``read_2columns_text``, which knows no marks."""
    found: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        key, _, rest = line.strip().replace("\t", " ", 1).partition(" ")
        if key in found:
            raise ValueError(f"{path} line {number}: {key} is duplicated")
        found[key] = rest.strip()
    return found


def _look_at(key: str, path: str, text: str, folder: Path) -> Utterance:
    where = f"{key} in {folder}/wav.scp ({path})"
    try:
        samples, rate = soundfile_read(path, dtype="float32")
    except (RuntimeError, OSError) as error:  # soundfile's own is a RuntimeError
        raise ValueError(f"{where} cannot be read ({error}): if it is a pipe, {_WAVS}") from error
    if samples.ndim != 1:
        raise ValueError(f"{where} has {samples.shape[1]} channels: make it mono")
    if len(samples) == 0:
        raise ValueError(f"{where} is empty: remove it from the data")
    if not np.isfinite(samples).all():
        raise ValueError(f"{where} has samples that are NaN or infinite")
    return Utterance(key, path, text, len(samples), rate)


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
