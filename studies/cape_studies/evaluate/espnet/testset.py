"""Test sets in Kaldi's format, whole or cut into pieces of a given length.

The paper tests its TED-LIUM models on pieces of T = 10, 15, …, 45 s (RV, section 4.2). Their audio
is not public, and no code of the authors that makes the cuts was found: the cuts here are ours.
Pieces follow each other without gap or overlap; each ends at the quietest place of its last half
second, so that words are seldom cut in two.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
from espnet2.fileio.read_text import read_2columns_text

from cape_studies.evaluate.espnet.options import SHORTEST_SECONDS

SLACK_SECONDS = 0.5
_QUIET_SECONDS = 0.02  # as long as the quiet must last


class Utterance(NamedTuple):
    """One line of wav.scp: its id, audio file, transcript, and duration in seconds."""

    name: str
    path: str
    text: str
    seconds: float


def read(folder: Path) -> tuple[list[Utterance], int]:
    """The utterances of a folder in the order of wav.scp, and their sampling rate in Hz.

    Relative paths in wav.scp start at the current folder, as in ESPnet.

    Raises:
        ValueError: a file cannot be read; an utterance has no transcript, or a transcript no audio;
            or audio is not mono, or has several sampling rates.
    """
    try:
        wavs, texts = (read_2columns_text(folder / name) for name in ("wav.scp", "text"))
        heads = {key: soundfile.info(path) for key, path in wavs.items()}
    except (OSError, RuntimeError, ValueError) as error:  # they name the file
        raise ValueError(f"{folder} needs wav.scp, text and audio: {error}") from error
    if alone := sorted(wavs.keys() ^ texts.keys()):
        raise ValueError(
            f"{len(alone)} utterances are in one of wav.scp and text in {folder}, not in both, "
            f"such as {alone[0]}"
        )
    kinds = {(one.samplerate, one.channels): key for key, one in heads.items()}
    if len(kinds) != 1 or next(iter(kinds))[1] != 1:
        shown = ", ".join(f"{hz} Hz × {many} ({key})" for (hz, many), key in kinds.items())
        raise ValueError(f"{folder} needs mono audio of one sampling rate, it has {shown or 'no'}")
    utterances = [Utterance(key, wavs[key], texts[key], one.duration) for key, one in heads.items()]
    return utterances, next(iter(kinds))[0]


def cut(samples: np.ndarray, rate: int, seconds: float | None) -> list[np.ndarray]:
    """Consecutive pieces of audio (N,), in the order of time.

    Args:
        samples: of an utterance.
        rate: sampling rate in Hz.
        seconds: longest duration of a piece; None leaves the audio whole. The rest at the end is a
            piece of its own; if it is shorter than 1 s, it belongs to the piece before it.
    """
    pieces = []
    longest = len(samples) if seconds is None else round(seconds * rate)
    while len(samples) - longest >= round(SHORTEST_SECONDS * rate):
        first = longest - round(SLACK_SECONDS * rate)
        end = first + quietest(samples[first:longest], rate)
        pieces.append(samples[:end])
        samples = samples[end:]
    return [*pieces, samples]


def quietest(samples: np.ndarray, rate: int) -> int:
    """The centre of the 20 ms of least energy."""
    width = round(_QUIET_SECONDS * rate)
    energy = np.convolve(np.square(samples, dtype=np.float64), np.ones(width), mode="valid")
    return int(np.argmin(energy)) + width // 2
