"""Text files as tokens: splits them by file, trains a byte-level BPE, writes arrays.

    python -m cape_studies.data.tokens --text stdlib --out tokens

Writes tokenizer/ of transformers, and train.npy, valid.npy, test.npy: uint16, each file after the
tokenizer's end-of-text token. A file's part depends on its name alone.
"""

import hashlib
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from cape_studies.command import script
from cape_studies.data.files import files
from cape_studies.data.text import read_text

END = "<|endoftext|>"
PARTS = ("train", "valid", "test")


Vocabulary = Annotated[int, Field(gt=0, le=65536)]  # of uint16


def make(text: str, out: Path, pattern: str = "*.py", vocabulary: Vocabulary = 1024) -> None:
    """Write the folder. A tenth of the files is in test, a twentieth in valid.

    Args:
        text: folder; stdlib: the standard library of this Python, without its tests.
        out: folder to make.
        pattern: names of the files to take.
        vocabulary: number of tokens.

    Raises:
        ValueError: there are no such files, a part has none, or a file is not UTF-8.
    """
    parts: dict[str, list[str]] = {part: [] for part in PARTS}
    for name, content in _found(text, pattern):
        share = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 200
        part = "train" if share >= 30 else "test" if share < 20 else "valid"
        parts[part].append(content)
    if empty := [part for part, texts in parts.items() if not texts]:
        raise ValueError(f"--text {text}: no {pattern} for {', '.join(empty)}")
    for part, found in write(out, parts, vocabulary).items():
        characters = sum(map(len, parts[part]))
        print(f"{part}: {len(found)} files, {sum(found):,} tokens, {characters:,} letters")


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


def _found(text: str, pattern: str) -> Iterator[tuple[str, str]]:
    """Name within the folder, and text."""
    stdlib = text == "stdlib"
    folder = Path(sysconfig.get_paths()["stdlib"] if stdlib else text)
    if not folder.is_dir():
        raise ValueError(f"--text {text}: no such folder")
    skipped = {"site-packages", "test", "tests", "idlelib", "lib2to3"} if stdlib else set()
    for path in files(folder):
        name = path.relative_to(folder)
        if path.match(pattern) and not skipped & {*name.parts}:
            try:
                yield name.as_posix(), read_text(path)
            except ValueError:
                if not stdlib:  # some of its modules are in other encodings
                    raise


if __name__ == "__main__":
    script(make)
