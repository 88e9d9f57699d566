"""Folders of WAV files → what ``espnet2.bin.asr_train`` reads, without Kaldi.

    python integrations/espnet/prepare_wavs.py --out data --token-type char \
        --split train wavs/train --split valid wavs/valid --split test wavs/test test.tsv

A split is a name, a folder (searched with its sub-folders) and, optionally, a file of transcripts.
That file has a line for each utterance: its name, a tab or a space, the words (TSV or Kaldi's
``text``). Lines whose WAV is not in the folder are skipped. Without the file each ``a.wav`` has an
``a.txt`` beside it. An utterance is named after its WAV file. Transcripts are UTF-8. A byte order
mark and carriage returns, as Windows writes them, are left out of the output.

Writes <out>/<split>/wav.scp and text, <out>/tokens.txt from the transcripts of ``train`` (and
<out>/bpe.model for ``--token-type bpe``). Everything is checked first, and nothing is written if
anything is wrong.
"""

import argparse
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from cape_plugins.text import read_lines, read_text, same, two_forms
from espnet2.text.char_tokenizer import CharTokenizer
from espnet2.text.word_tokenizer import WordTokenizer

TOKEN_TYPES = ("word", "char", "bpe")
SHOWN = 10  # complaints of each split


@dataclass(frozen=True)
class Split:
    """Where a set of utterances comes from.

    Attributes:
        name: the name of the set and of its folder.
        wavs: folder of WAV files.
        transcripts: file of all transcripts; None: a .txt beside each WAV.
    """

    name: str
    wavs: Path
    transcripts: Path | None = None


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
    except ValueError as error:
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
    """Write wav.scp and text of each split, and the token list.

    Args:
        splits: the sets of utterances; the one named ``train`` gives the token list.
        out: folder to write.
        token_type: ``word``, ``char`` or ``bpe`` (SentencePiece's unigram model, as asr.sh).
        bpe_tokens: SentencePiece's vocabulary size.
        overwrite: replace files that are there.

    Returns:
        the sampling rate in Hz of all files.

    Raises:
        ValueError: no files, two of one name or of different sampling rates, audio that is
            unreadable, empty, NaN or not mono, missing or empty transcripts, or files that are
            there already.
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

    found, rates = {}, {}
    for split in splits:
        wavs = find_wavs(split)
        texts = read_transcripts(split, wavs)
        found[split.name] = (wavs, texts)
        rates.update(check_audio(split, wavs))
    rate = the_one_rate(rates)
    if told := two_forms(text for _, texts in found.values() for text in texts.values()):
        logging.warning(told)

    if "train" in found:
        lines = {name: list(texts.values()) for name, (_, texts) in found.items()}
        write_tokens(out, lines, token_type, bpe_tokens)
    for name, (wavs, texts) in found.items():
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        write_lines(folder / "wav.scp", (f"{key} {path}" for key, path in wavs.items()))
        write_lines(folder / "text", (f"{key} {texts[key]}" for key in wavs))
    return rate


def find_wavs(split: Split) -> dict[str, Path]:
    """Utterance → WAV file, sorted by name.

    Raises:
        ValueError: there is none, two have one name, or a name has spaces.
    """
    if not split.wavs.is_dir():
        raise ValueError(f"{split.name}: no such folder: {split.wavs}")
    files = sorted(path for path in split.wavs.rglob("*") if path.suffix.lower() == ".wav")
    if not files:
        raise ValueError(f"{split.name}: no WAV file in {split.wavs}")
    wavs: dict[str, Path] = {}
    wrong = []
    for path in files:
        if path.stem in wavs:
            wrong.append(f"{wavs[path.stem]} and {path} have the same name: rename one")
        elif path.stem.split() != [path.stem]:
            wrong.append(f"{path} has spaces in its name, which wav.scp cannot have")
        wavs.setdefault(path.stem, path.resolve())
    complain(split, wrong)
    return dict(sorted(wavs.items()))


def read_transcripts(split: Split, wavs: dict[str, Path]) -> dict[str, str]:
    """Utterance → its words, separated by single spaces.

    Raises:
        ValueError: one is missing, empty, there twice or no UTF-8.
    """
    wrong = []
    texts: dict[str, str] = {}
    if split.transcripts is None:
        for key, path in wavs.items():
            if beside := transcript_beside(path):
                try:
                    texts[key] = read_text(beside)
                except ValueError as error:
                    wrong.append(str(error))
                    texts[key] = "?"  # told already
    else:
        if not split.transcripts.is_file():
            raise ValueError(f"{split.name}: no such file: {split.transcripts}")
        try:
            lines = read_lines(split.transcripts)
        except ValueError as error:
            raise ValueError(f"{split.name}: {error}") from error
        alike = {same(key): key for key in wavs}
        for line in lines:
            if not line.strip():
                continue
            name, _, text = line.strip().replace("\t", " ", 1).partition(" ")
            key = name[:-4] if name.lower().endswith(".wav") else name
            key = alike.get(same(key), key)  # a file's name may be NFD, as macOS writes it
            if key in texts:
                wrong.append(f"{split.transcripts} has {key} twice")
            texts[key] = text
    for key, path in wavs.items():
        if key not in texts:
            where = split.transcripts or path.with_suffix(".txt")
            wrong.append(f"{path} has no transcript: looked for {key} in {where}")
        elif not texts[key].split():
            wrong.append(f"{path} has an empty transcript")
    complain(split, wrong)
    return {key: " ".join(texts[key].split()) for key in wavs}


def transcript_beside(audio: Path) -> Path | None:
    """The .txt (or .TXT, .Txt) beside an audio file; None where there is none."""
    for suffix in (".txt", ".TXT", ".Txt"):
        if (beside := audio.with_suffix(suffix)).is_file():
            return beside
    return None


def check_audio(split: Split, wavs: dict[str, Path]) -> dict[Path, int]:
    """WAV file → its sampling rate in Hz.

    Raises:
        ValueError: a file is unreadable, empty, not mono, or has samples that are not finite.
    """
    wrong = []
    rates = {}
    for path in wavs.values():
        try:
            info = soundfile.info(path)
            # integers are finite: only floating-point files must be read for that
            floats = info.subtype in ("FLOAT", "DOUBLE")
            samples = soundfile.read(path)[0] if floats else np.zeros(1)
        except (OSError, soundfile.LibsndfileError) as error:
            wrong.append(f"{path} cannot be read: {error}")
            continue
        if info.frames == 0:
            wrong.append(f"{path} is empty")
        elif info.channels != 1:
            wrong.append(f"{path} has {info.channels} channels, allowed is 1")
        elif not np.isfinite(samples).all():
            wrong.append(f"{path} has samples that are NaN or infinite")
        rates[path] = info.samplerate
    complain(split, wrong)
    return rates


def the_one_rate(rates: dict[Path, int]) -> int:
    """The sampling rate of all files; ValueError names two that differ."""
    first, rate = next(iter(rates.items()))
    for path, other in rates.items():
        if other != rate:
            raise ValueError(
                f"{first} is at {rate} Hz and {path} at {other} Hz: ESPnet resamples nothing, so "
                "bring all files to one rate (sox, ffmpeg)"
            )
    return rate


def complain(split: Split, wrong: Sequence[str]) -> None:
    """Raise ValueError with the first complaints, if there are any."""
    if wrong:
        more = f"\n  … and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise ValueError(f"{split.name}:\n  " + "\n  ".join(wrong[:SHOWN]) + more)


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
        tokens = [token for token, _ in counts["train"].most_common()]
        for name, found in counts.items():
            unknown = sorted(found.keys() - set(tokens))
            if unknown:
                logging.warning(
                    f"{name}: {len(unknown)} of its {token_type}s are not in train, such as "
                    f"{unknown[0]!r}: they become <unk>, which the model cannot learn"
                )
    write_lines(out / "tokens.txt", ["<blank>", "<unk>", *tokens, "<sos/eos>"])


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
    pieces = read_lines(prefix.with_suffix(".vocab"))
    kept = [piece.split("\t")[0] for piece in pieces]
    return [piece for piece in kept if piece not in ("<unk>", "<s>", "</s>")]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file in UTF-8."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
