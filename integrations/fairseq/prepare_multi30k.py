"""Multi30k for fairseq: tokenised, split by one BPE for both languages, binarised.

    python integrations/fairseq/prepare_multi30k.py multi30k prepared
    python integrations/fairseq/prepare_multi30k.py multi30k prepared_joined --join 4
    python integrations/fairseq/prepare_multi30k.py multi30k prepared_short --held-out 12 15
    python integrations/fairseq/prepare_multi30k.py multi30k prepared_fr --target-lang fr

The first folder holds {train,val,test_2016_flickr}.{en,de}.gz, the raw captions of task 1
(github.com/multi30k/dataset, data/task1/raw), or of other languages. The script writes to the
second folder, for train, valid and test:

    raw/        the captions as delivered, without empty pairs: sacreBLEU's references
    tokenised/  after sacremoses' normaliser and tokeniser: for stacks and tokenised BLEU
    bpe/        after subword-nmt
    codes       the merges, learned on both languages of train together
    data-bin/   for fairseq-train, with one dictionary for both languages

With --join N, each line of train and valid has 1 to N consecutive captions. They are joined as in
stacked test sets (cape-fairseq-eval stack). test and raw/ stay as they
are.

With --held-out N M, train and valid keep the pairs of at most N tokens on both sides, after BPE.
There are two more test sets: test1 has the test pairs of at most N tokens on both sides, test2
those of more than M tokens on both sides. The merges are learned on all of train, so that words are
cut alike in short and long lines.

Letters keep their case. Moses' scripts would split dashes and escape characters for XML; this
script does neither. Needs cape-studies.
"""

import argparse
import gzip
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from cape_studies.data import subwords
from cape_studies.data.text import write_lines
from cape_studies.evaluate.fairseq.stacking import join

SPLITS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
SEED = 1  # of how many captions a line has

Lines = dict[tuple[str, str], list[str]]  # (split, language) → lines


def main() -> None:
    """Run all steps; at bad input end with status 2 and a line that names it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("raw", type=Path, help="folder with train.en.gz and so on")
    add("out", type=Path, help="a new folder")
    add("--merges", type=int, default=8000, help="of BPE (default: %(default)s)")
    add("-s", "--source-lang", default="en", help="default: %(default)s")
    add("-t", "--target-lang", default="de", help="default: %(default)s")
    one = parser.add_mutually_exclusive_group().add_argument
    one("--join", type=int, default=1, metavar="N", help="at most so many captions in a line")
    one("--held-out", type=int, nargs=2, metavar=("N", "M"), help="tokens, see above")
    arguments = parser.parse_args()
    languages = arguments.source_lang, arguments.target_lang
    if arguments.out.exists():
        parser.error(f"{arguments.out} exists: name a new folder")
    try:
        corpus = {s: read_pairs(arguments.raw, name, languages) for s, name in SPLITS.items()}
        texts, codes = cut(corpus, languages, arguments.merges, arguments.join)
        if arguments.held_out:
            hold_out(texts, languages, *arguments.held_out)
    except ValueError as error:
        parser.error(str(error))
    for kind, parts in texts.items():
        (arguments.out / kind).mkdir(parents=True)
        for (split, language), lines in parts.items():
            write_lines(arguments.out / kind / f"{split}.{language}", lines)
    (arguments.out / "codes").write_text(codes, encoding="utf-8")
    binarise(arguments.out, languages)


def read_pairs(folder: Path, name: str, languages: tuple[str, str]) -> list[tuple[str, str]]:
    """The sentence pairs of a split, without those with an empty side.

    Raises:
        ValueError: a file is missing or not UTF-8, or the two have different numbers of lines.
    """
    sides = []
    for language in languages:
        path = folder / f"{name}.{language}.gz"
        try:
            with gzip.open(path, "rt", encoding="utf-8-sig", newline="\n") as lines:
                sides.append([line.strip() for line in lines])
        except (OSError, EOFError, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
    if len(sides[0]) != len(sides[1]):
        counts = [len(side) for side in sides]
        raise ValueError(f"{folder / name}.*.gz must be pairs of lines, but have {counts} lines")
    return [pair for pair in zip(*sides, strict=True) if all(pair)]


def cut(
    corpus: dict[str, list[tuple[str, str]]], languages: tuple[str, str], merges: int, most: int
) -> tuple[dict[str, Lines], str]:
    """The lines of raw/, tokenised/ and bpe/, and the codes, of split → pairs; with at most
    ``most`` captions in a line of train and valid."""
    raw: Lines = {}
    tokenised: Lines = {}
    for side, language in enumerate(languages):
        for split, pairs in corpus.items():
            part = split, language
            raw[part] = [pair[side] for pair in pairs]
            tokenised[part] = subwords.tokenised(raw[part], language)
            if split != "test" and most > 1:
                tokenised[part] = join_some(tokenised[part], most)
    codes = subwords.learned((tokenised["train", language] for language in languages), merges)
    bpe = subwords.cutter(codes)
    pieces = {part: [bpe(line) for line in lines] for part, lines in tokenised.items()}
    return {"raw": raw, "tokenised": tokenised, "bpe": pieces}, codes


def hold_out(texts: dict[str, Lines], languages: tuple[str, str], most: int, more: int) -> None:
    """Take long pairs out of train and valid; add test1 with short pairs and test2 with long ones.

    Raises:
        ValueError: one of these sets would be empty.
    """

    def pick(split: str, fits: Callable[[list[int]], bool], name: str, what: str) -> None:
        sides = [texts["bpe"][split, language] for language in languages]
        chosen = [fits([len(line.split()) for line in pair]) for pair in zip(*sides, strict=True)]
        if not any(chosen):
            raise ValueError(f"--held-out {most} {more}: no pair of {split} has {what} tokens")
        for lines in texts.values():
            for language in languages:
                both = zip(lines[split, language], chosen, strict=True)
                lines[name, language] = [line for line, kept in both if kept]

    for split, name in (("train", "train"), ("valid", "valid"), ("test", "test1")):
        pick(split, lambda tokens: max(tokens) <= most, name, f"at most {most}")
    pick("test", lambda tokens: min(tokens) > more, "test2", f"more than {more}")


def join_some(lines: list[str], most: int) -> list[str]:
    """Join 1 to ``most`` consecutive lines, at random; both languages get the same draws."""
    draw = random.Random(SEED)
    joined = []
    begin = 0
    while begin < len(lines):
        end = begin + draw.randint(1, most)
        joined.append(join(lines[begin:end]))
        begin = end
    return joined


def binarise(out: Path, languages: tuple[str, str]) -> None:
    """Run fairseq-preprocess, which writes data-bin/."""
    # fairseq calls the second and third of several test sets test1 and test2
    tests = ",".join(map(str, sorted({path.with_suffix("") for path in out.glob("bpe/test*")})))
    command = [Path(sys.executable).parent / "fairseq-preprocess", "--joined-dictionary"]
    command += [f"--{split}pref={out / 'bpe' / split}" for split in ("train", "valid")]
    command += [f"--testpref={tests}", f"--destdir={out / 'data-bin'}"]
    command += [f"--source-lang={languages[0]}", f"--target-lang={languages[1]}"]
    subprocess.run(list(map(str, command)), check=True)


if __name__ == "__main__":
    main()
