"""Spelled-out numbers from English to German: "forty five seven" → "fünfundvierzig sieben".

    python studies/data/make_numbers.py --out numbers --train 30000 --test 50

A line has several numbers below 100: up to 8 in training, and as many as ``--lengths`` says in
testing. German numbers are split at their parts, with BPE's mark: fünf@@ und@@ vierzig. Writes the
text, and codes, BPE merges that leave English words whole and let an exported model join the German
ones. fairseq-preprocess writes bin/.
"""

import random
from pathlib import Path

from num2words import num2words
from subword_nmt.learn_bpe import learn_bpe

from cape_studies.command import script
from cape_studies.data.subwords import binarise
from cape_studies.data.text import write_lines

LONGEST = 8  # numbers of a line in training


def main(
    out: Path,
    train: int = 30_000,
    test: int = 50,
    lengths: tuple[int, ...] = (4, 8, 10, 12, 16, 24),
    seed: int = 1,
) -> None:
    """Write the text and binarise it.

    Args:
        out: folder to write.
        train: lines.
        test: lines of each length.
        lengths: numbers of a line in testing.
        seed: of all lines.
    """
    draw = random.Random(seed)
    words = {
        "en": [num2words(n).replace("-", " ") for n in range(100)],
        "de": [num2words(n, lang="de").replace("und", "@@ und@@ ") for n in range(100)],
    }
    every = {
        "train": [draw.randint(1, LONGEST) for _ in range(train)],
        "test": [length for length in lengths for _ in range(test)],
    }
    out.mkdir(parents=True, exist_ok=True)
    for split, of in every.items():
        lines = [[draw.randrange(100) for _ in range(length)] for length in of]
        for language, spelled in words.items():
            said = (" ".join(spelled[n] for n in line) for line in lines)
            write_lines(out / f"{split}.{language}", said)
    with (out / "train.en").open() as text, (out / "codes").open("w") as codes:  # ASCII
        learn_bpe(text, codes, num_symbols=1000)  # more than there are
    binarise(out / "bin", ("en", "de"), *(f"--{split}pref={out / split}" for split in every))


if __name__ == "__main__":
    script(main)
