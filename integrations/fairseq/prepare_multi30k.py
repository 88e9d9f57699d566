"""Multi30k for fairseq: tokenised, split by one BPE for both languages, binarised.

    python integrations/fairseq/prepare_multi30k.py multi30k prepared
    python integrations/fairseq/prepare_multi30k.py multi30k prepared_joined --join 4
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
sets are (cape-fairseq-eval stack), so that a model has seen several sentences in a line; test and
raw/ stay as they are.

Letters keep their case. Dashes are not split and nothing is escaped for XML, which Moses' scripts
would do: captions have little of either, and sacremoses joins the tokens again without them.
"""

import argparse
import gzip
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from sacremoses import MosesPunctNormalizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from cape_plugins.evaluation.fairseq.stacking import join

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
    parser.add_argument("-s", "--source-lang", default="en", help="default: %(default)s")
    parser.add_argument("-t", "--target-lang", default="de", help="default: %(default)s")
    arguments = parser.parse_args()
    languages = arguments.source_lang, arguments.target_lang
    if languages[0] == languages[1]:
        parser.error(f"--source-lang and --target-lang are both {languages[0]}: give two languages")
    for name in ("merges", "join"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be ≥ 1, got {getattr(arguments, name)}")
    if arguments.out.exists():
        parser.error(f"{arguments.out} exists: name a new folder")
    try:
        corpus = {s: read_pairs(arguments.raw, name, languages) for s, name in SPLITS.items()}
    except (OSError, EOFError, ValueError) as error:  # gzip's and Unicode's among them
        parser.error(str(error))
    for folder in ("raw", "tokenised", "bpe"):
        (arguments.out / folder).mkdir(parents=True)
    prepare(corpus, arguments.out, languages, arguments.merges, arguments.join)
    binarise(arguments.out, languages)


def read_pairs(folder: Path, name: str, languages: tuple[str, str]) -> list[tuple[str, str]]:
    """The sentence pairs of a split, without those with an empty side.

    Raises:
        ValueError: a file is missing, or the two have not as many lines.
    """
    sides = []
    for language in languages:
        path = folder / f"{name}.{language}.gz"
        if not path.is_file():
            raise ValueError(f"{path} does not exist: Multi30k's task 1 in raw text is needed")
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
            sides.append([line.strip() for line in file])
    if len(sides[0]) != len(sides[1]):
        counts = [f"{len(s)} lines of {lang}" for s, lang in zip(sides, languages, strict=True)]
        raise ValueError(f"{folder / name}: {' and '.join(counts)}, which are not pairs")
    return [pair for pair in zip(*sides, strict=True) if all(pair)]


def prepare(
    corpus: dict[str, list[tuple[str, str]]],
    out: Path,
    languages: tuple[str, str],
    merges: int,
    most: int = 1,
) -> None:
    """Write raw/, tokenised/, codes and bpe/; ``most``: captions in a line of train and valid."""
    tokenised: dict[tuple[str, str], list[str]] = {}
    for side, language in enumerate(languages):
        normalise = MosesPunctNormalizer(lang=language).normalize
        tokenise = MosesTokenizer(lang=language).tokenize
        for split, pairs in corpus.items():
            raw = [pair[side] for pair in pairs]
            lines = [tokenise(normalise(line), return_str=True, escape=False) for line in raw]
            if split != "test" and most > 1:
                lines = join_some(lines, most)
            write(out / "raw" / f"{split}.{language}", raw)
            write(out / "tokenised" / f"{split}.{language}", lines)
            tokenised[split, language] = lines
    both = (line for language in languages for line in tokenised["train", language])
    with (out / "codes").open("w", encoding="utf-8") as file:
        learn_bpe(both, file, merges)
    with (out / "codes").open(encoding="utf-8") as file:
        bpe = BPE(file)
    for (split, language), lines in tokenised.items():
        write(out / "bpe" / f"{split}.{language}", map(bpe.process_line, lines))
    for split in corpus:
        print(f"{split}: {len(tokenised[split, languages[0]])} pairs", flush=True)


def join_some(lines: list[str], most: int) -> list[str]:
    """1 to ``most`` consecutive lines in one, at random, the same for both languages."""
    draw = random.Random(SEED)
    joined = []
    begin = 0
    while begin < len(lines):
        end = begin + draw.randint(1, most)
        joined.append(join(lines[begin:end]))
        begin = end
    return joined


def write(path: Path, lines: Iterable[str]) -> None:
    """One line of text each."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def binarise(out: Path, languages: tuple[str, str]) -> None:
    """fairseq-preprocess, into data-bin/."""
    prefixes = [f"--{split}pref={out / 'bpe' / split}" for split in SPLITS]
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
