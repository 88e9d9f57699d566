"""Multi30k for fairseq: tokenised, split by one BPE for both languages, binarised.

    python integrations/fairseq/prepare_multi30k.py multi30k prepared
    python integrations/fairseq/prepare_multi30k.py multi30k prepared_joined --join 4
    python integrations/fairseq/prepare_multi30k.py multi30k prepared_short --held-out 12 15
    python integrations/fairseq/prepare_multi30k.py multi30k prepared_fr --target-lang fr

The first folder holds {train,val,test_2016_flickr}.{en,de}.gz, the raw captions of task 1
(github.com/multi30k/dataset, data/task1/raw), or of other languages. The second gets, for
train, valid and test:

    raw/        as delivered, without the empty pairs: the references of sacreBLEU
    tokenised/  after sacremoses' normaliser and tokeniser: what is stacked, and tokenised BLEU
    bpe/        after subword-nmt
    codes       the merges, learned on both languages of train together
    data-bin/   for fairseq-train, with one dictionary for both languages

With --join N, lines of train and valid are 1 to N consecutive captions, joined as stacked test
sets are (cape-fairseq-eval stack; needs cape-studies), so that a model has seen several sentences
in a line; test and raw/ stay as they are.

With --held-out N M, train and valid keep the pairs of at most N tokens on both sides, after BPE; of
test, which stays, test1 has such pairs and test2 those of more than M tokens on both sides. The
merges are learned on all of train, so that words are cut alike in short and long lines.

Letters keep their case. Dashes are not split and nothing is escaped for XML, which Moses' scripts
would do: captions have little of either, and sacremoses joins the tokens again without them.
"""

import argparse
import io
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from sacremoses import MosesPunctNormalizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from cape_plugins.text import read_lines, two_forms

SPLITS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
MERGES = 8000
SEED = 1  # of how many captions a line has


def main() -> None:
    """Run all steps; ends with status 2 and a line that names what is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("raw", type=Path, help="folder with train.en.gz and so on")
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--merges", type=int, default=MERGES, help="of BPE (default: %(default)s)")
    parser.add_argument(
        "--join", type=int, default=1, metavar="N", help="captions in a training line, at most"
    )
    parser.add_argument(
        "--held-out",
        type=int,
        nargs=2,
        metavar=("N", "M"),
        help="train on at most N tokens, test2 has more than M",
    )
    parser.add_argument("-s", "--source-lang", default="en", help="default: %(default)s")
    parser.add_argument("-t", "--target-lang", default="de", help="default: %(default)s")
    arguments = parser.parse_args()
    languages = arguments.source_lang, arguments.target_lang
    if languages[0] == languages[1]:
        parser.error(f"--source-lang and --target-lang are both {languages[0]}: give two languages")
    for name in ("merges", "join"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be ≥ 1, got {getattr(arguments, name)}")
    if arguments.held_out and not 0 < arguments.held_out[0] <= arguments.held_out[1]:
        parser.error(
            "--held-out must be two numbers 0 < N ≤ M, got {} {}".format(*arguments.held_out)
        )
    if arguments.held_out and arguments.join > 1:
        parser.error("--held-out and --join: choose one")
    if arguments.out.exists():
        parser.error(f"{arguments.out} exists: name a new folder")
    try:
        corpus = {s: read_pairs(arguments.raw, name, languages) for s, name in SPLITS.items()}
        texts, codes = cut(corpus, languages, arguments.merges, arguments.join)
        if arguments.held_out:
            hold_out(texts, languages, *arguments.held_out)
    except ValueError as error:
        parser.error(str(error))
    if told := two_forms(side for pairs in corpus.values() for pair in pairs for side in pair):
        print(f"warning: {told}", file=sys.stderr)
    for kind, parts in texts.items():
        (arguments.out / kind).mkdir(parents=True)
        for (split, language), lines in parts.items():
            text = "".join(f"{line}\n" for line in lines)
            (arguments.out / kind / f"{split}.{language}").write_text(text, encoding="utf-8")
    (arguments.out / "codes").write_text(codes, encoding="utf-8")
    binarise(arguments.out, languages)


def read_pairs(folder: Path, name: str, languages: tuple[str, str]) -> list[tuple[str, str]]:
    """The sentence pairs of a split, without those with an empty side.

    Raises:
        ValueError: a file is missing or no text in UTF-8, or the two have not as many lines.
    """
    sides = []
    for language in languages:
        path = folder / f"{name}.{language}.gz"
        if not path.is_file():
            raise ValueError(f"{path} does not exist: Multi30k's task 1 in raw text is needed")
        sides.append([line.strip() for line in read_lines(path)])
    if len(sides[0]) != len(sides[1]):
        counts = [f"{len(s)} lines of {lang}" for s, lang in zip(sides, languages, strict=True)]
        raise ValueError(f"{folder / name}: {' and '.join(counts)}, which are not pairs")
    return [pair for pair in zip(*sides, strict=True) if all(pair)]


Lines = dict[tuple[str, str], list[str]]  # (split, language) → lines


def cut(
    corpus: dict[str, list[tuple[str, str]]], languages: tuple[str, str], merges: int, most: int
) -> tuple[dict[str, Lines], str]:
    """Tokenise, learn and apply the merges: the lines of raw/, tokenised/ and bpe/, and the codes.

    ``corpus`` is split → pairs; a line of train and valid has at most ``most`` captions.
    """
    raw: Lines = {}
    tokenised: Lines = {}
    for side, language in enumerate(languages):
        normalise = MosesPunctNormalizer(lang=language).normalize
        tokenise = MosesTokenizer(lang=language).tokenize
        for split, pairs in corpus.items():
            raw[split, language] = [pair[side] for pair in pairs]
            lines = [
                tokenise(normalise(line), return_str=True, escape=False)
                for line in raw[split, language]
            ]
            if split != "test" and most > 1:
                lines = join_some(lines, most)
            tokenised[split, language] = lines
    both = (line for language in languages for line in tokenised["train", language])
    codes = io.StringIO()
    learn_bpe(both, codes, merges)
    codes.seek(0)
    bpe = BPE(codes)
    pieces = {part: [bpe.process_line(line) for line in lines] for part, lines in tokenised.items()}
    return {"raw": raw, "tokenised": tokenised, "bpe": pieces}, codes.getvalue()


def hold_out(texts: dict[str, Lines], languages: tuple[str, str], most: int, more: int) -> None:
    """Take long pairs out of train and valid; add test1, as short, and test2, the long ones.

    Raises:
        ValueError: nothing is left of one of them.
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
    """1 to ``most`` consecutive lines in one, at random, the same for both languages."""
    from cape_studies.evaluation.fairseq.stacking import join

    draw = random.Random(SEED)
    joined = []
    begin = 0
    while begin < len(lines):
        end = begin + draw.randint(1, most)
        joined.append(join(lines[begin:end]))
        begin = end
    return joined


def binarise(out: Path, languages: tuple[str, str]) -> None:
    """fairseq-preprocess, into data-bin/."""
    # fairseq calls the second and third of several test sets test1 and test2
    found = sorted({path.stem for path in (out / "bpe").iterdir()})
    prefixes = [f"--{split}pref={out / 'bpe' / split}" for split in ("train", "valid")]
    tests = ",".join(str(out / "bpe" / name) for name in found if name.startswith("test"))
    prefixes.append(f"--testpref={tests}")
    for name in found:
        count = len(read_lines(out / "bpe" / f"{name}.{languages[0]}"))
        print(f"{name}: {count} pairs", flush=True)
    subprocess.run(
        [
            *(str(Path(sys.executable).parent / "fairseq-preprocess"), *prefixes),
            *("--source-lang", languages[0], "--target-lang", languages[1], "--joined-dictionary"),
            *("--destdir", str(out / "data-bin"), "--workers", "1"),
        ],
        check=True,
    )


if __name__ == "__main__":
    main()
