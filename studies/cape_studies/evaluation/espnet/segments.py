"""The same audio cut into pieces of about one length, as test sets of longer and longer input.

The paper tests its TED-LIUM models on sets of T = 10, 15, …, 45 s (RV, section 4.2). Their audio
is not public, and no code of the authors that makes the cuts was found: the cuts here are ours.
Pieces follow each other without gap or overlap; each ends at the quietest place of its last half
second, so that words are seldom cut in two.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from espnet2.fileio.sound_scp import soundfile_read

from cape_studies.evaluation.espnet.testset import Utterance

SLACK_SECONDS = 0.5
SHORTEST_SECONDS = 1.0
_QUIET_SECONDS = 0.02  # as long as the quiet must last


class Piece(NamedTuple):
    """A stretch of an utterance: its index, first sample, and the sample after the last."""

    utterance: int
    start: int
    end: int


def cut(utterances: Sequence[Utterance], seconds: float | None) -> list[Piece]:
    """Cut utterances into consecutive pieces.

    Args:
        utterances: to be cut; those not longer than a piece stay whole.
        seconds: the longest piece. What is left at the end is a piece of its own, or part of the
            one before if it is shorter than 1 s. None leaves every utterance whole.

    Returns:
        the pieces, in the order of time within each utterance.
    """
    pieces = []
    for index, utterance in enumerate(utterances):
        rate, start = utterance.rate, 0
        longest = utterance.samples if seconds is None else round(seconds * rate)
        shortest = round(SHORTEST_SECONDS * rate)
        if utterance.samples - longest >= shortest:
            audio, _ = soundfile_read(utterance.path, dtype="float32")
            while len(audio) - start - longest >= shortest:
                last = start + longest
                end = quietest(audio, last - round(SLACK_SECONDS * rate), last, rate)
                pieces.append(Piece(index, start, end))
                start = end
        pieces.append(Piece(index, start, utterance.samples))
    return pieces


def quietest(audio: np.ndarray, first: int, last: int, rate: int) -> int:
    """The centre of the 20 ms of least energy between two samples."""
    width = round(_QUIET_SECONDS * rate)
    power = np.square(audio[first:last], dtype=np.float64)
    energy = np.convolve(power, np.ones(width), mode="valid")
    return first + int(np.argmin(energy)) + width // 2
