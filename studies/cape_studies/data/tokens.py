"""Text files as tokens: splits them by folder, trains a byte-level BPE, writes arrays.

    python -m cape_studies.data.tokens --text stdlib --out tokens

Writes tokenizer/ of transformers, and train.npy, valid.npy, test.npy: uint16, each file after the
tokenizer's end-of-text token. A file's part depends alone on the name of its folder below the
text's, or on its own, if it is in none.
"""

import hashlib
import sysconfig
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveInt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from cape_studies.command import script
from cape_studies.data.files import files
from cape_studies.data.text import read_text

END = "<|endoftext|>"
PARTS = ("train", "valid", "test")
RUN = 16  # tokens that are looked for in training
LEAK = 0.2  # of a test's runs; Llama 2's report (Touvron et al. 2023) calls a test with fewer clean
CHUNK = 2**20  # runs of training that are made at once

Vocabulary = Annotated[int, Field(gt=0, le=65536)]  # of uint16


def make(
    text: str,
    out: Path,
    pattern: str = "*.py",
    vocabulary: Vocabulary = 1024,
    longest: PositiveInt = 1024,
) -> None:
    """Write the folder. A fifth of the folders is in test, a tenth in valid.

    Args:
        text: folder; stdlib: the standard library of this Python, without its tests, and without
            encodings, a fifth of its files, which are alike.
        out: folder to make.
        pattern: names of the files to take.
        vocabulary: number of tokens.
        longest: tokens of the longest test. A file of valid or test is left out if training has
            a fifth of the runs of 16 tokens in its beginning of that length.

    Raises:
        ValueError: there are no such files, a part has none, or a file is not UTF-8.
    """
    parts: dict[str, list[str]] = {part: [] for part in PARTS}
    for name, content in _found(text, pattern):
        folder = name.partition("/")[0]
        share = int(hashlib.sha256(folder.encode()).hexdigest(), 16) % 10
        part = "train" if share >= 3 else "test" if share < 2 else "valid"
        parts[part].append(content)
    sizes = write(out, parts, vocabulary) if all(parts.values()) else {}
    left = {part: leave_out(out, part, leaks(out, part, longest)) for part in PARTS[1:] if sizes}
    if empty := [part for part in PARTS if not left.get(part, parts[part])]:
        raise ValueError(f"--text {text}: no {pattern} for {', '.join(empty)}")
    for part, found in sizes.items():
        gone = len(found) - left.get(part, len(found))
        print(f"{part}: {len(found)} files, {sum(found):,} tokens; left out, as they leak: {gone}")


def write(out: Path, parts: Mapping[str, Sequence[str]], vocabulary: int) -> dict[str, list[int]]:
    """Train a byte-level BPE on the part ``train``, write it and the tokens of each part.

    Args:
        out: the folder to make.
        parts: name → texts.
        vocabulary: number of tokens.

    Returns:
        Part → the number of tokens of each text, with the one that it begins with.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=letters, show_progress=False
    )
    tokenizer.train_from_iterator(parts["train"], trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=END
    ).save_pretrained(out / "tokenizer")
    tokenizer.encode_special_tokens = True  # in a text its name is letters
    end, sizes = tokenizer.token_to_id(END), {}
    for part, texts in parts.items():
        found = [np.array([end, *tokenizer.encode(text).ids], np.uint16) for text in texts]
        np.save(out / f"{part}.npy", np.concatenate(found))
        sizes[part] = [len(one) for one in found]
    return sizes


def texts_of(tokens: np.ndarray) -> list[np.ndarray]:
    """The texts of an array, each with the token that it begins with."""
    return np.split(tokens, np.flatnonzero(tokens == 0))[1:]


def leaks(out: Path, part: str, longest: int) -> list[int]:
    """The texts of a part, by their number, that a model has seen in training: of the runs of 16
    tokens in their first ``longest`` a fifth or more is in ``train`` too. Shorter texts, of which
    no test is made, are not looked at.
    """
    texts = texts_of(np.load(out / f"{part}.npy"))
    runs = {i: _runs(one[:longest]) for i, one in enumerate(texts) if len(one) >= longest}
    asked = np.unique(np.concatenate([np.empty(0, np.uint64), *runs.values()]))
    train = np.load(out / "train.npy")
    chunks = (train[at : at + CHUNK + RUN - 1] for at in range(0, len(train), CHUNK))
    seen = np.concatenate([np.intersect1d(asked, _runs(one)) for one in chunks])
    return [i for i, own in runs.items() if len(own) and np.isin(own, seen).mean() >= LEAK]


def leave_out(out: Path, part: str, texts: Collection[int]) -> int:
    """Write a part without some of its texts, which are given by their number.

    Returns:
        How many texts are left.
    """
    path = out / f"{part}.npy"
    kept = [one for i, one in enumerate(texts_of(np.load(path))) if i not in texts]
    np.save(path, np.concatenate([np.empty(0, np.uint16), *kept]))
    return len(kept)


def _runs(tokens: np.ndarray) -> np.ndarray:
    """A number for each run of ``RUN`` tokens, the same for the same run: polynomials mod 2^64."""
    many = max(0, len(tokens) - RUN + 1)
    found = np.zeros(many, np.uint64)
    for at in range(RUN if many else 0):
        found = found * np.uint64(0x9E3779B97F4A7C15) + tokens[at : at + many]
    return found


def _found(text: str, pattern: str) -> Iterator[tuple[str, str]]:
    """Name within the folder, and text."""
    stdlib = text == "stdlib"
    folder = Path(sysconfig.get_paths()["stdlib"] if stdlib else text)
    if not folder.is_dir():
        raise ValueError(f"--text {text}: no such folder")
    skipped = {"site-packages", "test", "tests", "idlelib", "lib2to3", "encodings"}
    for path in files(folder):
        name = path.relative_to(folder)
        if path.match(pattern) and not (stdlib and skipped & {*name.parts}):
            try:
                yield name.as_posix(), read_text(path)
            except ValueError:
                if not stdlib:  # some of its modules are in other encodings
                    raise


if __name__ == "__main__":
    script(make)
