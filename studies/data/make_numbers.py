"""Spelled-out numbers from English to German: "forty five seven" → "fünfundvierzig sieben".

    python studies/data/make_numbers.py --out numbers --train 30000 --test 50

A line has several numbers below 100: up to 8 in training, and as many as ``--lengths`` says in
testing. German numbers are split at their parts, with BPE's mark: fünf@@ und@@ vierzig. Writes the
text, and codes, BPE merges that leave English words whole and let an exported model join the German
ones. fairseq-preprocess writes bin/.
"""

import argparse
import random
from pathlib import Path

from num2words import num2words
from subword_nmt.learn_bpe import learn_bpe

from cape_studies.data.subwords import binarise
from cape_studies.data.text import write_lines

LONGEST = 8  # numbers of a line in training


def main() -> None:
    """Write the text and binarise it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--train", type=int, default=30_000, help="lines")
    parser.add_argument("--test", type=int, default=50, help="lines of each length")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4, 8, 10, 12, 16, 24])
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    out = arguments.out
    draw = random.Random(arguments.seed)
    words = {
        "en": [num2words(n).replace("-", " ") for n in range(100)],
        "de": [num2words(n, lang="de").replace("und", "@@ und@@ ") for n in range(100)],
    }
    lengths = {
        "train": [draw.randint(1, LONGEST) for _ in range(arguments.train)],
        "test": [length for length in arguments.lengths for _ in range(arguments.test)],
    }
    out.mkdir(parents=True, exist_ok=True)
    for split, of in lengths.items():
        lines = [[draw.randrange(100) for _ in range(length)] for length in of]
        for language, spelled in words.items():
            said = (" ".join(spelled[n] for n in line) for line in lines)
            write_lines(out / f"{split}.{language}", said)
    with (out / "train.en").open() as lines, (out / "codes").open("w") as codes:  # ASCII
        learn_bpe(lines, codes, num_symbols=1000)  # more than there are
    binarise(out / "bin", ("en", "de"), *(f"--{split}pref={out / split}" for split in lengths))


if __name__ == "__main__":
    main()
