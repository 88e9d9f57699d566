"""Folders of WAV or FLAC files → what ``espnet2.bin.asr_train`` reads, without Kaldi.

Each file has a .txt of its name beside it, or one file has all transcripts: a line for each
utterance with its name, a tab or a space, and the words (TSV or Kaldi's ``text``). An utterance is
named after its file, with its sub-folder: ``ann/001``. Spaces in names become ``_``. Words are
brought to Unicode's NFC, in which a letter with its accent is one character, as is a token.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
from espnet2.text.char_tokenizer import CharTokenizer
from espnet2.text.word_tokenizer import WordTokenizer

from cape_studies.data.files import account, complain, files, kinds
from cape_studies.data.text import read_lines, read_text, write_lines

KINDS = ".wav", ".flac"
SPECIAL = "<blank>", "<unk>", "<sos/eos>"
#: in libsndfile's log of a WAV; a program that streams writes a length of 2³¹ or 2³² less something
SHORTER, STREAMED = re.compile(r"data : (\d+) \(should be (\d+)\)"), 2**30


class Utterance(NamedTuple):
    """A file, its duration, its sampling rate in Hz, its words with single spaces, and a digest of
    its samples, the same in WAV and FLAC."""

    path: Path
    seconds: float
    rate: int
    text: str
    sound: bytes = b""


def read(folder: Path, transcripts: Path | None = None) -> tuple[dict[str, Utterance], str]:
    """The utterances of a folder by name, sorted, and the account of its files.

    Args:
        folder: of the audio, searched with its sub-folders.
        transcripts: a file of all transcripts; None: a .txt beside each audio file.

    Raises:
        ValueError: no audio, two files of one name, audio that is unreadable, empty, silent, cut
            off, NaN or not mono, or a transcript that is missing, empty, there twice, or no UTF-8.
        OSError: a folder cannot be read.
    """
    every = list(files(folder))
    audio = [path for path in every if path.suffix.lower() in KINDS]
    if not audio:
        raise ValueError(f"no WAV or FLAC file in {folder}, but {kinds(every) or 'no file'}")
    told = _table(transcripts) if transcripts else {}
    found: dict[str, Utterance] = {}
    faults: list[str] = []
    changed = 0
    for path in audio:
        name = path.relative_to(folder).with_suffix("").as_posix()
        key = "_".join(name.split())
        beside = path.with_suffix(".txt")
        try:
            if key in found:
                raise ValueError(f"{found[key].path} and {path} have the same name: rename one")
            if transcripts:  # a name without folder serves one file
                text = told.pop(_known_as(name), None) or told.pop(_known_as(path.name), "")
            else:
                text = read_text(beside) if beside.is_file() else ""
            if not text.split():
                raise ValueError(f"{path} has no transcript: looked in {transcripts or beside}")
            composed = unicodedata.normalize("NFC", text)
            changed += composed != text
            seconds, rate, sound = _heard(path)
            found[key] = Utterance(path, seconds, rate, " ".join(composed.split()), sound)
        except ValueError as error:
            faults.append(str(error))
    complain(faults)
    texts = [transcripts] if transcripts else [path.with_suffix(".txt") for path in audio]
    used = account([*audio, *texts], every, "neither audio nor its transcript")
    more = f"; {changed:,} transcripts brought to Unicode's NFC" if changed else ""
    return found, f"{len(found):,} recordings ({used}{more})"


def _table(path: Path) -> dict[str, str]:
    """Name → words of a file of transcripts."""
    found: dict[str, str] = {}
    for line in filter(str.strip, read_lines(path)):
        given, _, text = line.strip().partition("\t" if "\t" in line else " ")
        if (name := _known_as(given)) in found:
            raise ValueError(f"{path} has {name} twice")
        found[name] = text
    return found


def _known_as(name: str) -> str:
    """A name without its suffix, in NFC: macOS writes names of files in NFD."""
    return unicodedata.normalize("NFC", re.sub(r"(?i)\.(wav|flac)$", "", name.strip()))


def _heard(path: Path) -> tuple[float, int, bytes]:
    """Seconds, sampling rate and digest of an audio file."""
    try:
        info = soundfile.info(path, verbose=True)
        samples, rate = soundfile.read(path, dtype="float32")
    except soundfile.LibsndfileError as error:
        raise ValueError(f"{path} cannot be read as audio: {error}") from error
    if len(samples) == 0:
        raise ValueError(f"{path} is empty")
    less = SHORTER.search(info.extra_info)
    if len(samples) < info.frames or (less and int(less[2]) < int(less[1]) < STREAMED):
        raise ValueError(f"{path} is cut off: it has less audio than it says")
    if samples.ndim > 1:
        raise ValueError(f"{path} has {info.channels} channels, allowed is 1")
    if not np.isfinite(samples).all():
        raise ValueError(f"{path} has samples that are NaN or infinite")
    if np.ptp(samples) == 0:
        raise ValueError(f"{path} is silent: all samples are {samples[0]:g}")
    return len(samples) / rate, rate, sha256(samples).digest()


def the_one_rate(utterances: Iterable[Utterance]) -> int:
    """The sampling rate of all files; ValueError names one of each rate, if there are several."""
    rates = {one.rate: one.path for one in utterances}
    if len(rates) > 1:
        shown = " and ".join(f"{path} at {rate} Hz" for rate, path in rates.items())
        raise ValueError(
            f"there is {shown}: ESPnet resamples nothing, so bring all files to one rate (sox, "
            "ffmpeg)"
        )
    return next(iter(rates))


def write(out: Path, parts: Mapping[str, Mapping[str, Utterance]], token_type: str) -> None:
    """Write <out>/<part>/wav.scp and text, and <out>/tokens.txt of ``train``.

    tokens.txt has special tokens, then words or letters, the most frequent first, as asr.sh.
    """
    for name, part in parts.items():
        (out / name).mkdir(parents=True, exist_ok=True)
        lines = sorted(part.items())
        write_lines(out / name / "wav.scp", (f"{key} {one.path.absolute()}" for key, one in lines))
        write_lines(out / name / "text", (f"{key} {one.text}" for key, one in lines))
    if "train" in parts:
        # not espnet2.bin.tokenize_text, whose imports take long and look for data on the net
        split = (CharTokenizer() if token_type == "char" else WordTokenizer()).text2tokens
        counts = Counter(token for one in parts["train"].values() for token in split(one.text))
        tokens = [token for token, _ in counts.most_common() if token not in SPECIAL]
        write_lines(out / "tokens.txt", [*SPECIAL[:2], *tokens, SPECIAL[2]])
