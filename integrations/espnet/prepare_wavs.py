"""Folders of WAV or FLAC files → what ``espnet2.bin.asr_train`` reads, without Kaldi.

    python integrations/espnet/prepare_wavs.py --out data --token-type char \
        --split train wavs/train --split valid wavs/valid --split test wavs/test test.tsv

A split is a name, a folder (searched with its sub-folders, also those behind links) and,
optionally, a file of transcripts. That file has a line for each utterance: its name, a tab or a
space, the words (TSV or Kaldi's ``text``). Lines whose audio is not in the folder are skipped.
Without the file each ``a.wav`` has an ``a.txt`` beside it. Transcripts are UTF-8. An utterance is
named after its file, and after its sub-folder too where two files have one name: ``ann/001``.
Spaces in names become ``_``. Hidden files (``._a.wav`` of a Mac) are left out.

Writes <out>/<split>/wav.scp and text, <out>/tokens.txt from the transcripts of ``train`` (and
<out>/bpe.model for ``--token-type bpe``). Everything is checked first, and nothing is written if
anything is wrong.
"""

import argparse
import logging
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
from espnet2.text.char_tokenizer import CharTokenizer
from espnet2.text.word_tokenizer import WordTokenizer

KINDS = ".wav", ".flac"
TOKEN_TYPES = ("word", "char", "bpe")
SPECIAL = "<blank>", "<unk>", "<sos/eos>"
SHOWN = 10  # faults in a message
#: in libsndfile's log of a WAV; a program that streams writes a length of 2³¹ or 2³² less something
SHORTER, STREAMED = re.compile(r"data : (\d+) \(should be (\d+)\)"), 2**30


class Split(NamedTuple):
    """Where a set of utterances comes from.

    Attributes:
        name: the name of the set and of its folder.
        folder: of the audio files.
        transcripts: file of all transcripts; None: a .txt beside each audio file.
    """

    name: str
    folder: Path
    transcripts: Path | None = None


class Utterance(NamedTuple):
    """A file, its duration, its sampling rate in Hz, and its words with single spaces."""

    path: Path
    seconds: float
    rate: int
    text: str


def main() -> None:
    """Check, write, and print the sampling rate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--split",
        nargs="+",
        action="append",
        required=True,
        metavar="NAME",
        help="NAME FOLDER [TRANSCRIPTS]; give it once for each set",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--token-type", choices=TOKEN_TYPES, default="char")
    parser.add_argument("--bpe-tokens", type=int, default=500, help="size of the BPE vocabulary")
    parser.add_argument("--overwrite", action="store_true", help="replace what is in --out")
    arguments = parser.parse_args()
    for values in arguments.split:
        if len(values) not in (2, 3):
            parser.error(f"--split takes a name, a folder and maybe a file, got {values}")
    splits = [Split(name, *map(Path, paths)) for name, *paths in arguments.split]
    try:
        rate = prepare(
            splits,
            arguments.out,
            token_type=arguments.token_type,
            bpe_tokens=arguments.bpe_tokens,
            overwrite=arguments.overwrite,
        )
    except (ValueError, OSError) as error:
        parser.exit(1, f"error: {error}\n")
    print(
        f"{arguments.out}: all files are at {rate} Hz. In frontend_conf set fs: {rate}, "
        f"win_length: {round(0.025 * rate)} (25 ms), hop_length: {round(0.01 * rate)} (10 ms)"
    )


def prepare(
    splits: Sequence[Split],
    out: Path,
    *,
    token_type: str = "char",
    bpe_tokens: int = 500,
    overwrite: bool = False,
) -> int:
    """Read the splits and :func:`write` them; prints how many utterances each has.

    Args:
        splits: the sets of utterances; the one named ``train`` gives the token list.
        out: folder to write.
        token_type: ``word``, ``char`` or ``bpe`` (SentencePiece's unigram model, as asr.sh).
        bpe_tokens: SentencePiece's vocabulary size.
        overwrite: replace files that are there.

    Returns:
        the sampling rate in Hz of all files.

    Raises:
        ValueError: see :func:`read`; or files have different sampling rates, or are there already.
    """
    if token_type not in TOKEN_TYPES:
        raise ValueError(f"token_type must be one of {', '.join(TOKEN_TYPES)}, got {token_type!r}")
    names = [split.name for split in splits]
    if len(set(names)) < len(names):
        raise ValueError(f"each split needs its own name, got {', '.join(names)}")
    targets = [out / name / file for name in names for file in ("wav.scp", "text")]
    there = [path for path in [*targets, out / "tokens.txt"] if path.exists()]
    if there and not overwrite:
        raise ValueError(f"{there[0]} exists: choose another folder or give --overwrite")
    parts: dict[str, dict[str, Utterance]] = {}
    for split in splits:
        try:
            parts[split.name], account = read(split.folder, split.transcripts)
        except ValueError as error:
            raise ValueError(f"{split.name}: {error}") from error
        print(f"{split.name}: {account}")
    rate = the_one_rate([one for part in parts.values() for one in part.values()])
    write(out, parts, token_type, bpe_tokens)
    return rate


def read(folder: Path, transcripts: Path | None = None) -> tuple[dict[str, Utterance], str]:
    """The utterances of a folder by name, sorted, and how many there are of how many files.

    Raises:
        ValueError: no audio, two files of one name, audio that is unreadable, empty, NaN or not
            mono, or a transcript that is missing, empty, there twice, no UTF-8, or has a word that
            ESPnet keeps for itself.
    """
    every = list(files(folder))
    audio = [path for path in every if path.suffix.lower() in KINDS]
    if not audio:
        raise ValueError(f"no WAV or FLAC file in {folder}, but {kinds(every)}")
    stems = Counter(path.stem for path in audio)
    told = {} if transcripts is None else table(transcripts)
    used = {*audio}
    found: dict[str, Utterance] = {}
    wrong: list[str] = []
    for path in audio:
        inside = path.relative_to(folder).with_suffix("").as_posix()
        names = [inside, path.stem] if stems[path.stem] == 1 else [inside]
        key = "_".join(names[-1].split())
        if key in found:
            wrong.append(f"{found[key].path} and {path} have the same name: rename one")
            continue
        try:
            if transcripts is None:
                beside = next(filter(Path.is_file, map(path.with_suffix, (".txt", ".TXT"))), None)
                used |= {beside} - {None}
                text = "" if beside is None else read_text(beside)
            else:
                beside = next((name for name in map(same, names) if name in told), None)
                text = told.get(beside, "")
            if beside is None:
                where = transcripts or path.with_suffix(".txt")
                raise ValueError(f"{path} has no transcript: looked for {key} in {where}")
            if not text.split():
                raise ValueError(f"{path} has an empty transcript")
            if kept := {*text.split()} & {SPECIAL[0], SPECIAL[2]}:
                raise ValueError(f"{path} has {kept.pop()} in its transcript, a word of ESPnet's")
            found[key] = Utterance(path, *heard(path), " ".join(text.split()))
        except ValueError as error:
            wrong.append(str(error))
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise ValueError("; ".join(wrong[:SHOWN]) + more)
    left = [path for path in every if path not in used and path != transcripts]
    account = f"{len(found):,} recordings ({kinds(audio)})"
    return found, f"{account}, left out: {kinds(left)}" if left else account


def files(folder: Path) -> Iterator[Path]:
    """All files below a folder, sorted, also behind links, each once; hidden ones are left out. A
    link that leads nowhere is among them, with a warning.

    Raises:
        ValueError: a folder cannot be read, or a name is not UTF-8.
    """

    def stop(error: OSError) -> None:
        raise ValueError(f"no such folder, or it cannot be read: {error.filename}") from error

    known: set[Path] = set()
    for root, folders, names in os.walk(folder, onerror=stop, followlinks=True):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        for path in (Path(root, name) for name in sorted(names) if name[0] != "."):
            if any("\ud800" <= letter <= "\udfff" for letter in path.name):
                raise ValueError(f"{str(path)!r} has a name that is not UTF-8: rename it")
            if not path.exists():
                logging.warning(f"{path} is a link that leads nowhere")
            if path.resolve() not in known:
                known.add(path.resolve())
                yield path


def kinds(paths: Iterable[Path]) -> str:
    """How many files of which suffix: ``10 .wav, 3 .mp3``."""
    found = Counter(path.suffix.lower() or path.name for path in paths)
    return ", ".join(f"{many:,} {suffix}" for suffix, many in found.most_common()) or "no file"


def table(path: Path) -> dict[str, str]:
    """Name → words of a file of transcripts.

    Raises:
        ValueError: it cannot be read, or has a name twice.
    """
    found: dict[str, str] = {}
    for line in filter(str.strip, read_text(path).split("\n")):
        name, _, text = line.strip().partition("\t" if "\t" in line else " ")
        if same(name) in found:
            raise ValueError(f"{path} has {name} twice")
        found[same(name)] = text
    return found


def same(name: str) -> str:
    """A name without its suffix, in NFC: macOS writes names of files in NFD."""
    name = unicodedata.normalize("NFC", name.strip())
    return next((name[: -len(kind)] for kind in KINDS if name.lower().endswith(kind)), name)


def read_text(path: Path) -> str:
    """A file's text; ValueError if it cannot be read or is not UTF-8."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as UTF-8: {error}") from error
    if "\0" in text:
        raise ValueError(f"{path} cannot be read as UTF-8: it has NUL bytes, as UTF-16 has")
    return text


def heard(path: Path) -> tuple[float, int]:
    """Seconds and sampling rate of an audio file.

    Raises:
        ValueError: it is unreadable, empty, not mono, or has samples that are not finite.
    """
    try:
        info = soundfile.info(path, verbose=True)
        # integers are finite, and the header of a WAV says how much is there
        whole = info.format != "WAV" or info.subtype in ("FLOAT", "DOUBLE")
        samples = soundfile.read(path)[0] if whole else np.zeros(info.frames)
    except (OSError, soundfile.LibsndfileError) as error:
        raise ValueError(f"{path} cannot be read as audio: {error}") from error
    if len(samples) == 0:
        raise ValueError(f"{path} is empty")
    found = SHORTER.search(info.extra_info)
    if len(samples) < info.frames or (found and int(found[2]) < int(found[1]) < STREAMED):
        raise ValueError(f"{path} is cut off: it has less audio than it says")
    if info.channels != 1:
        raise ValueError(f"{path} has {info.channels} channels, allowed is 1")
    if not np.isfinite(samples).all():
        raise ValueError(f"{path} has samples that are NaN or infinite")
    return info.frames / info.samplerate, info.samplerate


def the_one_rate(utterances: Sequence[Utterance]) -> int:
    """The sampling rate of all files; ValueError names two that differ."""
    first = utterances[0]
    for one in utterances:
        if one.rate != first.rate:
            raise ValueError(
                f"{first.path} is at {first.rate} Hz and {one.path} at {one.rate} Hz: ESPnet "
                "resamples nothing, so bring all files to one rate (sox, ffmpeg)"
            )
    return first.rate


def write(
    out: Path,
    parts: Mapping[str, Mapping[str, Utterance]],
    token_type: str,
    bpe_tokens: int = 500,
) -> None:
    """Write wav.scp and text of each part, and the token list of ``train``.

    Raises:
        ValueError: SentencePiece cannot make so many tokens.
    """
    if "train" in parts:
        texts = {name: [one.text for one in part.values()] for name, part in parts.items()}
        write_tokens(out, texts, token_type, bpe_tokens)
    for name, part in parts.items():
        (out / name).mkdir(parents=True, exist_ok=True)
        lines = sorted(part.items())
        write_lines(out / name / "wav.scp", (f"{key} {one.path.absolute()}" for key, one in lines))
        write_lines(out / name / "text", (f"{key} {one.text}" for key, one in lines))


def write_tokens(
    out: Path, texts: dict[str, Sequence[str]], token_type: str, bpe_tokens: int
) -> None:
    """Write tokens.txt: special tokens, then those of ``train``, the most frequent first.

    That is asr.sh's order. A warning names words or letters that ``train`` lacks.
    """
    out.mkdir(parents=True, exist_ok=True)
    if token_type == "bpe":
        tokens = train_bpe(texts["train"], out / "bpe", bpe_tokens)
    else:
        counts = {name: count_tokens(words, token_type) for name, words in texts.items()}
        tokens = [token for token, _ in counts["train"].most_common() if token not in SPECIAL]
        for name, found in counts.items():
            unknown = sorted(found.keys() - {*tokens, *SPECIAL})
            if unknown:
                logging.warning(
                    f"{name}: {len(unknown)} of its {token_type}s are not in train, such as "
                    f"{unknown[0]!r}: they become <unk>, which the model cannot learn"
                )
    write_lines(out / "tokens.txt", [*SPECIAL[:2], *tokens, SPECIAL[2]])


def count_tokens(lines: Iterable[str], token_type: str) -> Counter[str]:
    """How often each word or letter occurs, as ESPnet splits lines."""
    # not espnet2.bin.tokenize_text, whose imports take long and look for data on the net
    tokenizer = CharTokenizer() if token_type == "char" else WordTokenizer()
    return Counter(token for line in lines for token in tokenizer.text2tokens(line))


def train_bpe(words: Sequence[str], prefix: Path, size: int) -> list[str]:
    """Train SentencePiece on lines of words; returns its pieces without the special ones.

    Raises:
        ValueError: SentencePiece cannot make so many tokens of the text.
    """
    import sentencepiece

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(words),
            model_prefix=str(prefix),
            vocab_size=size,
            model_type="unigram",
            character_coverage=1.0,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(f"SentencePiece cannot make {size} tokens: {error}") from error
    pieces = read_text(prefix.with_suffix(".vocab")).removesuffix("\n").split("\n")
    kept = [piece.split("\t")[0] for piece in pieces]
    return [piece for piece in kept if piece not in ("<unk>", "<s>", "</s>")]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file in UTF-8."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
