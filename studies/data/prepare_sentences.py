"""A user's pairs of sentences: checked, the longest held out, cut into subwords, binarised.

    python studies/data/prepare_sentences.py --text DIR --out prepared --source en

``DIR`` holds train.SRC and train.TGT, a sentence a line, and perhaps a test of both languages:
test.*, test_2016.* or another name that begins with test, or validation.*, val.*, valid.*, dev.*.
Text whose words are split with @@ is taken as it is. Other text is tokenised by sacremoses and
split by subword-nmt, whose merges are learned on both languages of training.

Writes bin/ for fairseq, and facts.yaml. bin/ has train, a test of training's lengths, and the
longest fifth as tests in bins of equal counts. A test's name is the range of its lengths. The
length of a pair is the number of words of its longer side.
"""

from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from fairseq.data import data_utils

from cape_studies.command import script
from cape_studies.data import facts, subwords
from cape_studies.data.files import complain, files
from cape_studies.data.split import LEAST, TESTS, drawn, short_and_long, test_and_rest
from cape_studies.data.text import read_pairs, write_lines

MERGES = 8000
MOST_BROUGHT = 2000  # pairs of the user's test
SEEN = 1_500_000  # words in a short training; more, if needed to see all of them three times
POSITIONS = 1024  # tokens that fairseq's Transformers take
ENDED_AT = 200  # tokens, at which cape-fairseq-eval ends translations by default


class Sentences(NamedTuple):
    """Pairs, each a source, a tab, and its target.

    Attributes:
        languages: of source and target.
        train: pairs to train on.
        tests: name → pairs; the test of training's lengths is the first.
        how: where that test comes from, in words.
        given: how many pairs the files have.
    """

    languages: tuple[str, str]
    train: list[str]
    tests: dict[str, list[str]]
    how: str
    given: int


def look(folder: Path, source: str | None = None) -> Sentences:
    """The pairs of a folder, with the longest fifth apart.

    Args:
        folder: of the text files.
        source: the source's language; default: the one whose name comes first.

    Raises:
        ValueError: there are not two languages, or a test has one; files are no pairs or not
            UTF-8; a line is empty; a pair of the test is in training; or lengths are all alike.
    """
    names = [path.name.removeprefix("train.") for path in sorted(folder.glob("train.*"))]
    languages = [name for name in names if "." not in name]
    if len(languages) != 2 or source not in (None, *languages):
        there = ", ".join(f"train.{one}" for one in names) or "no train.*"
        wanted = f"train.{source or 'SRC'} and train.TGT"
        raise ValueError(f"{folder} must hold {wanted}, one file a language, but has {there}")
    if source == languages[1]:
        languages.reverse()
    train = _pairs(folder, "train", languages)
    own, unused = _own_tests(folder, languages)
    given = _pairs(folder, own, languages) if own else []
    known = set(train)
    twice = (i for i, pair in enumerate(given, 1) if pair in known)
    complain(f"{folder}/{own}.* line {i} stands in train.* too" for i in twice)
    lengths = {pair: _words(pair) for pair in [*train, *given]}  # each pair is in one part only
    if len(lengths) < LEAST:
        raise ValueError(f"{folder} has {len(lengths)} different pairs: {LEAST} are needed")
    short, beyond, limit = short_and_long(lengths, "{:g}-{:g}")
    brought = set(given)
    inside = [pair for pair in short if pair in brought]
    kept = [pair for pair in short if pair not in brought]
    if inside:
        inside, _ = drawn(inside, MOST_BROUGHT)
        how = f"from {own}.*"
    else:
        inside, kept = test_and_rest(kept)
        how = "chosen by their text from the shorter ones"
    how += f" (not used: {unused})" if unused else ""
    tests = {f"1-{limit:g}": inside, **beyond}
    return Sentences((languages[0], languages[1]), kept, tests, how, len(train) + len(given))


def _own_tests(folder: Path, languages: list[str]) -> tuple[str | None, str]:
    """The name of the user's test, without language, and the files that are not used.

    Raises:
        ValueError: a test has one language alone.
    """
    used = {f"train.{language}" for language in languages}
    there = [path.name for path in files(folder) if path.parent == folder]
    stems = dict.fromkeys(
        stem
        for stem, dot, _ in sorted(name.partition(".") for name in there)
        if dot and (stem.lower() in TESTS or stem.lower().startswith("test"))
    )
    tests = [stem for stem in stems if {f"{stem}.{language}" for language in languages} & {*there}]
    for stem in tests:
        one, other = (f"{stem}.{language}" for language in languages)
        if lacks := {one, other} - {*there}:
            raise ValueError(f"{folder} has {stem}.* in one language alone: add {lacks.pop()}")
    order = {name: i for i, name in enumerate(TESTS)}
    own = min(tests, key=lambda stem: (order.get(stem.lower(), 0.5), stem), default=None)
    used |= {f"{own}.{language}" for language in languages}
    return own, ", ".join(name for name in there if name not in used)


def _words(pair: str) -> int:
    """The number of words of the longer side."""
    return max(len(side.split()) for side in pair.split("\t"))


def _pairs(folder: Path, name: str, languages: list[str]) -> list[str]:
    names = [f"{name}.{language}" for language in languages]
    pairs = read_pairs(folder, names)
    for path, lines in zip(names, zip(*pairs, strict=True), strict=False):
        complain(f"{folder}/{path} line {n} is empty" for n, x in enumerate(lines, 1) if not x)
        if name == "train" and median(len(line.split()) for line in lines) < 2:
            raise ValueError(f"{folder}/{path} has no spaces: split it into words, which count")
    return ["\t".join(pair) for pair in pairs]


def prepare(
    text: Path,
    out: Path,
    source: str | None = None,
    epochs: float | None = None,
    updates: int | None = None,
    max_tokens: int = 1024,
) -> None:
    """Write text and binarised data to ``out``, from the folder that :func:`look` takes.

    Args:
        text: the user's folder.
        out: the folder to write.
        source: the source's language; default: the one whose name comes first.
        epochs: passes over the pairs; default: those of 1.5 million words, from 3 to 100.
        updates: of a training, in place of epochs.
        max_tokens: subwords of a batch, of the longer side.

    Raises:
        ValueError: see :func:`look`; or a pair is longer than a batch, or than the model takes.
    """
    found = look(text, source)
    parts = {"train": found.train, **found.tests}
    sides = {
        (name, language): [pair.split("\t")[i] for pair in pairs]
        for name, pairs in parts.items()
        for i, language in enumerate(found.languages)
    }
    plain = sum("@@ " in pair for pair in found.train) < len(found.train) / 10
    if plain:
        sides = {part: subwords.tokenised(lines, part[1]) for part, lines in sides.items()}
        sides, _ = subwords.cut(sides, MERGES)
    (out / "text").mkdir(parents=True)
    for (name, language), lines in sides.items():
        write_lines(out / "text" / f"{name}.{language}", lines)
    _binarise(found, out)
    sizes = {}
    for name, pairs in parts.items():
        sizes[name] = one = _sizes(out / "bin" / name, found.languages)
        wrong = np.flatnonzero((one.max(0) > min(max_tokens, POSITIONS)) | (one.min(0) < 2))
        complain(
            f"a pair of {text} has {one[:, i].max():,} subwords on a side, allowed are 1 to "
            f"{min(max_tokens, POSITIONS) - 1:,}: {pairs[i][:80]!r}"
            for i in wrong
        )
    order = np.lexsort(sizes["train"][::-1])  # fairseq's
    each = len(data_utils.batch_by_size(order, None, sizes["train"].max(0), max_tokens))
    if not updates:
        seen = min(max(1.2 * SEEN / max_tokens, 3 * each), 100 * each)
        updates = max(1, round(epochs * each if epochs else seen))
    within, *beyond = found.tests
    held = ", ".join(f"{len(found.tests[name]):,} of {name}" for name in beyond)
    spare = found.given - sum(map(len, parts.values()))
    more = f". {spare:,} pairs are left out: twice there, or a test has enough" if spare else ""
    words = "as sacremoses splits it, in subwords of subword-nmt" if plain else "as it is"
    middle = median(_words(pair) for pair in found.train)
    facts.write(
        out,
        found=(
            f"{len(order):,} pairs from {' to '.join(found.languages)} to train on, of {within} "
            f"words, {middle:g} in the median. Held out of training: the longest fifth, {held} "
            f"words. Tested within its lengths on {len(found.tests[within]):,} pairs, {found.how}. "
            f"Text is taken {words}; BLEU is of these tokens, and no sacreBLEU of plain text. "
            f"Trained for {updates:,} updates, {facts.passes(updates / each)}{more}"
        ),
        source=found.languages[0],
        target=found.languages[1],
        updates=updates,
        warmup=updates // 5,
        subsets=",".join(found.tests),
        within=within,
        longest=max(ENDED_AT, *(int(sizes[name][1].max()) for name in found.tests)),
        range=max(int(one.max()) for one in sizes.values()),  # of random_rope
    )


def _binarise(found: Sentences, out: Path) -> None:
    text = out / "text"
    tests = ",".join(str(text / name) for name in found.tests)
    told = [f"--trainpref={text / 'train'}", f"--testpref={tests}", "--joined-dictionary"]
    subwords.binarise(out / "bin", found.languages, *told)
    for i, name in enumerate(found.tests):  # fairseq-preprocess names them test, test1, test2 …
        for path in [*(out / "bin").glob(f"test{i or ''}.*")]:
            path.rename(path.with_name(path.name.replace(f"test{i or ''}", name, 1)))


def _sizes(prefix: Path, languages: tuple[str, str]) -> np.ndarray:
    """Tokens of each source and target, EOS included, as fairseq reads them: (2, pairs) int64."""
    paths = (f"{prefix}.{'-'.join(languages)}.{language}" for language in languages)
    read = [data_utils.load_indexed_dataset(path, None) for path in paths]
    return np.array([one.sizes for one in read], np.int64)  # a copy: files are closed with ``read``


if __name__ == "__main__":
    script(prepare)
