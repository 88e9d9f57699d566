"""Multi30k for fairseq: tokenised, split by one BPE for both languages, binarised.

    python integrations/fairseq/prepare_multi30k.py multi30k prepared
    python integrations/fairseq/prepare_multi30k.py multi30k prepared_joined --join 4
    python integrations/fairseq/prepare_multi30k.py multi30k prepared_short --held-out 12 15
    python integrations/fairseq/prepare_multi30k.py multi30k prepared_both --held-out 12 15 --join 4
    python integrations/fairseq/prepare_multi30k.py multi30k prepared_fr --target-lang fr

The first folder holds {train,val,test_2016_flickr}.{en,de}.gz, the raw captions of task 1
(github.com/multi30k/dataset, data/task1/raw), or of other languages. The script writes to the
second folder, for train, valid and test:

    raw/        the captions, without empty pairs: sacreBLEU's references
    tokenised/  after sacremoses' normaliser and tokeniser: for stacks and tokenised BLEU
    bpe/        after subword-nmt
    codes       the merges, learned on both languages of train together
    data-bin/   for fairseq-train, with one dictionary for both languages

With --join N, each line of train and valid has 1 to N consecutive captions. They are joined as in
stacked test sets (cape-fairseq-eval stack). test and raw/ stay as they are.

With --held-out N M, train and valid keep the pairs of at most N tokens on both sides, after BPE.
There are three more test sets: test1 has the test pairs of at most N tokens on both sides, test2
those of more than M tokens on both sides, and test3 such long pairs of valid, by which options of
the search may be chosen. The merges are learned on all of train, so that words are cut alike in
short and long lines. With both flags the captions that are joined are the short ones.

Letters keep their case. Moses' scripts would split dashes and escape characters for XML; this
script does neither. Needs cape-studies.
"""

import argparse
import random
from itertools import compress
from pathlib import Path

from cape_studies.data.subwords import Lines, binarise, cut, cutter, tokenised
from cape_studies.data.text import join, read_pairs, write_lines

SPLITS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
SEED = 1  # of how many captions a line has


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
    add("--join", type=int, default=1, metavar="N", help="at most so many captions in a line")
    add("--held-out", type=int, nargs=2, metavar=("N", "M"), help="tokens, see above")
    given = parser.parse_args()
    out, languages = given.out, (given.source_lang, given.target_lang)
    if out.exists():
        parser.error(f"{out} exists: name a new folder")
    texts: dict[str, Lines] = {"raw": {}, "tokenised": {}}
    try:
        for split, name in SPLITS.items():
            pairs = read_pairs(given.raw, [f"{name}.{language}.gz" for language in languages])
            sides = zip(*filter(all, pairs), strict=True)
            for language, side in zip(languages, sides, strict=True):
                texts["raw"][split, language] = list(side)
                texts["tokenised"][split, language] = tokenised(side, language)
        if not given.held_out:
            join_training(texts["tokenised"], given.join)
        texts["bpe"], codes = cut(texts["tokenised"], given.merges)
        if given.held_out:
            hold_out(texts, languages, *given.held_out)
            join_training(texts["tokenised"], given.join)
            bpe = cutter(codes)
            texts["bpe"] = {of: [*map(bpe, lines)] for of, lines in texts["tokenised"].items()}
    except ValueError as error:
        parser.error(str(error))
    for kind, parts in texts.items():
        (out / kind).mkdir(parents=True)
        for (split, language), lines in parts.items():
            write_lines(out / kind / f"{split}.{language}", lines)
    (out / "codes").write_text(codes, encoding="utf-8")
    # fairseq calls further test sets test1, test2, …
    tests = sorted({str(path.with_suffix("")) for path in out.glob("bpe/test*")})
    told = [f"--{split}pref={out / 'bpe' / split}" for split in ("train", "valid")]
    told += [f"--testpref={','.join(tests)}", "--joined-dictionary"]
    binarise(out / "data-bin", languages, *told)


def hold_out(texts: dict[str, Lines], languages: tuple[str, str], most: int, more: int) -> None:
    """Take long pairs out of train and valid; add test1 with short pairs, test2 with long ones, and
    test3 with long ones of valid.

    Raises:
        ValueError: one of these sets would be empty.
    """
    long = {"test2": "test", "test3": "valid"}
    for name, split in {"test1": "test", **long, "train": "train", "valid": "valid"}.items():
        sides = (texts["bpe"][split, language] for language in languages)
        lengths = [[len(line.split()) for line in pair] for pair in zip(*sides, strict=True)]
        kept = [min(pair) > more if name in long else max(pair) <= most for pair in lengths]
        if not any(kept):
            raise ValueError(f"--held-out {most} {more}: no pair for {name}")
        for lines in texts.values():
            for language in languages:
                lines[name, language] = list(compress(lines[split, language], kept))


def join_training(lines: Lines, most: int) -> None:
    """Join 1 to ``most`` consecutive lines of train and of valid."""
    for split, language in lines:
        if split in ("train", "valid"):
            lines[split, language] = join_some(lines[split, language], most)


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


if __name__ == "__main__":
    main()
