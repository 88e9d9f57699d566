"""Associative recall: pairs of a key and a value, then the keys again, among filler.

    python studies/data/make_recall.py --out recall --length 64 --pairs 12

After Zoology's MQAR (Arora et al. 2023). A sequence begins with the tokenizer's end-of-text token
and the pairs. Then keys stand again, and the value behind each is what a model has to recall. In a
test each key is asked for once, anywhere among filler; longer tests have as many pairs, and more
filler. In training, as in Zoology's, sequences have fewer pairs too: 1, 2, 4 and so on, equally
often. Keys are asked for by chance there, and as many as there is room for: else small models learn
which values have been said, and nothing of keys.

Writes what ``cape_studies.train_clm`` reads, tokenizer/ and train.npy, and valid.npy and test.npy,
of all lengths. Beside each are its labels: what is to be recalled; nothing else is learned.
"""

from pathlib import Path

import numpy as np
from pydantic import PositiveInt
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from cape_studies.command import script
from cape_studies.train_clm import NO_LABEL

KINDS = {"end": 1, "key": 16, "value": 16, "filler": 16}  # how many tokens of each, in this order
#: the first token of each kind
END, KEY, VALUE, FILLER = np.cumsum([0, *KINDS.values()])[:-1].tolist()


def make(
    out: Path,
    length: PositiveInt = 64,
    pairs: PositiveInt = 12,
    train: PositiveInt = 51_200,
    test: PositiveInt = 300,
    times: tuple[PositiveInt, ...] = (1, 2, 4),
    seed: int = 1,
) -> None:
    """Write the folder.

    Args:
        out: folder to make.
        length: tokens of a training sequence.
        pairs: of a test's sequence, and at most of a training one.
        train: sequences.
        test: sequences of each length, in valid and in test.
        times: lengths of these, as multiples of training's.
        seed: of all sequences.

    Raises:
        ValueError: there are more pairs than keys, or than a sequence has room for.
    """
    if pairs > min(KINDS["key"], (length - 1) // 4):
        raise ValueError(
            f"--pairs {pairs}: there are {KINDS['key']} keys, and each takes 4 of --length {length}"
        )
    draw = np.random.default_rng(seed)
    out.mkdir(parents=True, exist_ok=True)
    names = [f"{kind}{i}" for kind, many in KINDS.items() for i in range(many)]
    vocabulary = models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=names[END])
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(vocabulary), **dict.fromkeys(("bos_token", "eos_token"), "end0")
    ).save_pretrained(out / "tokenizer")
    for part, many, lengths in (
        ("train", train, (1,)),
        ("valid", test, times),
        ("test", test, times),
    ):
        once = part != "train"
        made = [sequences(draw, many, one * length, pairs, once) for one in lengths]
        tokens, labels = (
            np.concatenate([one.ravel() for one in of]) for of in zip(*made, strict=True)
        )
        np.save(out / f"{part}.npy", tokens.astype(np.uint16))
        np.save(out / f"{part}-labels.npy", labels.astype(np.int16))


def sequences(
    draw: np.random.Generator, many: int, length: int, pairs: int, once: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, (many, length), and of those to recall the same as labels.

    Args:
        once: a test, in which each of all keys is asked for once.
    """
    tokens = FILLER + draw.integers(KINDS["filler"], size=(many, length))
    labels = np.full(tokens.shape, NO_LABEL)
    numbers = [2**i for i in range(pairs) if 2**i < pairs] + [pairs]
    for row, own in zip(tokens, labels, strict=True):
        of = pairs if once else draw.choice(numbers)
        keys = KEY + draw.permutation(KINDS["key"])[:of]
        values = VALUE + draw.integers(KINDS["value"], size=of)
        end = 1 + 2 * of  # of the pairs
        row[:end] = [END, *np.c_[keys, values].ravel()]
        asked = draw.permutation(of) if once else draw.integers(of, size=(length - end) // 2)
        before = np.sort(draw.integers(length - end - 2 * len(asked) + 1, size=len(asked)))
        at = end + before + 2 * np.arange(len(asked))  # before: filler up to each
        row[at] = keys[asked]
        row[at + 1] = own[at + 1] = values[asked]
    return tokens, labels


if __name__ == "__main__":
    script(make)
