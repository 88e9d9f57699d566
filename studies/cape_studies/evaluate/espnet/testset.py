"""Test sets in Kaldi's format."""

from pathlib import Path

import soundfile
from espnet2.fileio.read_text import read_2columns_text

from cape_studies.data.recordings import Utterance


def read(folder: Path) -> tuple[dict[str, Utterance], int]:
    """The utterances of a folder by name, in the order of wav.scp, and their rate in Hz.

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
    ((rate, _),) = kinds
    found = {
        key: Utterance(Path(wavs[key]), one.duration, rate, texts[key])
        for key, one in heads.items()
    }
    return found, rate
