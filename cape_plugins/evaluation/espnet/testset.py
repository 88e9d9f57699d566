"""Test sets in Kaldi's format: a folder with ``wav.scp`` and ``text``."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from espnet2.fileio.read_text import read_2columns_text
from espnet2.fileio.sound_scp import soundfile_read
from tqdm import tqdm

from cape_plugins.evaluation.options import named, once

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Utterance:
    """One line of wav.scp.

    Attributes:
        name: the utterance's id.
        path: of the audio file.
        text: its transcript, as in the file ``text``.
        samples: how many it has.
        rate: sampling rate in Hz.
    """

    name: str
    path: str
    text: str
    samples: int
    rate: int

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.samples / self.rate


@dataclass(frozen=True)
class TestSet:
    """A named folder of utterances, in the order of wav.scp.

    Attributes:
        name: in the tables.
        folder: that holds wav.scp and text.
        utterances: all of them.
    """

    __test__ = False  # not pytest's

    name: str
    folder: Path
    utterances: list[Utterance]


def split_name(given: str, option: str) -> tuple[str, Path]:
    """NAME=PATH in two; a PATH without a name has that of its last part."""
    name, path = named(given, option)
    return name or Path(os.path.abspath(path)).name, Path(path)  # a link keeps its name


def open_sets(given: Sequence[str]) -> list[TestSet]:
    """Read the test sets of ``--data`` and look at all audio; transcripts without any are logged.

    Args:
        given: NAME=FOLDER, or FOLDER, whose name it then is. Relative paths in wav.scp start at
            the current folder, as in ESPnet.

    Raises:
        ValueError: a name is given twice; a file is missing; an utterance has no transcript; a
            ``segments`` file, or a pipe in wav.scp; audio that cannot be read, is empty, not
            finite or has several channels; several sampling rates in a set.
    """
    folders = [split_name(one, "--data") for one in given]
    once([repr(name) for name, _ in folders], "--data", ": give names with --data NAME=FOLDER")
    tables = [(name, folder, *_read_tables(folder)) for name, folder in folders]
    sets = []
    for name, folder, wavs, texts in tables:
        bar = tqdm(wavs.items(), f"reading {name}", disable=None, leave=False)
        utterances = [_look_at(key, path, texts[key], folder) for key, path in bar]
        rates = {utterance.rate: utterance.name for utterance in utterances}
        if len(rates) > 1:
            shown = ", ".join(f"{rate} Hz ({key})" for rate, key in rates.items())
            raise ValueError(f"{folder} has several sampling rates: {shown}")
        if beyond := [key for key in texts if key not in wavs]:
            _logger.warning(
                "%s/text has %d utterances that wav.scp does not have, such as %s: they are not "
                "scored",
                *(folder, len(beyond), beyond[0]),
            )
        sets.append(TestSet(name, folder, utterances))
    return sets


def _read_tables(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """wav.scp and text, if they belong together."""
    if not folder.is_dir():
        raise ValueError(f"no such folder of test data: {folder}")
    if (folder / "segments").exists():
        raise ValueError(
            f"{folder} has a segments file, which ESPnet's loader does not read: write one WAV "
            "per utterance first (asr.sh stage 3, scripts/audio/format_wav_scp.sh)"
        )
    tables = []
    for name in ("wav.scp", "text"):
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{folder} has no {name}")
        try:
            tables.append(read_2columns_text(path))
        except (RuntimeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: {error}") from error
    wavs, texts = tables
    if not wavs:
        raise ValueError(f"{folder}/wav.scp is empty")
    if missing := [key for key in wavs if key not in texts]:
        raise ValueError(
            f"{len(missing)} utterances of {folder}/wav.scp are not in text, such as {missing[0]}"
        )
    for key, path in wavs.items():
        if path.endswith("|"):
            raise ValueError(
                f"{key} in {folder}/wav.scp is a pipe, which ESPnet's loader does not run: write "
                "WAV files first (asr.sh stage 3, scripts/audio/format_wav_scp.sh)"
            )
        if not Path(path).is_file():
            raise ValueError(f"{key} in {folder}/wav.scp: no such file: {path!r}")
    return wavs, texts


def _look_at(key: str, path: str, text: str, folder: Path) -> Utterance:
    where = f"{key} in {folder}/wav.scp ({path})"
    try:
        samples, rate = soundfile_read(path, dtype="float32")
    except (soundfile.SoundFileError, RuntimeError, OSError) as error:
        raise ValueError(f"{where} cannot be read: {error}") from error
    if samples.ndim != 1:
        raise ValueError(f"{where} has {samples.shape[1]} channels: make it mono")
    if len(samples) == 0:
        raise ValueError(f"{where} is empty: remove it from the data")
    if not np.isfinite(samples).all():
        raise ValueError(f"{where} has samples that are NaN or infinite")
    return Utterance(key, path, text, len(samples), rate)
