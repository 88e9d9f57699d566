"""A user's pairs of sentences: checked, the longest held out, cut into subwords, binarised.

    python -m cape_studies.prepare.sentences --text DIR --out prepared --source en

``DIR`` holds train.SRC and train.TGT, a sentence a line, and perhaps a test of both languages:
test.*, test_2016.* or another name that begins with test, or validation.*, val.*, valid.*, dev.*.
Text whose words are split with @@ is taken as it is. Other text is tokenised by sacremoses and
split by subword-nmt, whose merges are learned on both languages of training.

Writes bin/ for fairseq, and facts.yaml. bin/ has train, a test of training's lengths, and the
longest fifth as tests in bins of equal counts. A test's name is the range of its lengths. The
length of a pair is the number of words of its longer side.
"""

from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from fairseq.data import data_utils

from cape_studies.command import script
from cape_studies.data import facts, subwords
from cape_studies.data.files import complain, files
from cape_studies.data.split import (
    LEAST,
    TESTS,
    drawn,
    held_out,
    in_both,
    short_and_long,
    test_and_rest,
)
from cape_studies.data.text import read_lines, read_pairs, write_lines

MERGES = 8000
MOST_BROUGHT = 2000  # pairs of the user's test
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
        groups: pair → its group, if there are groups.
    """

    languages: tuple[str, str]
    train: list[str]
    tests: dict[str, list[str]]
    how: str
    given: int
    groups: dict[str, str]


def look(folder: Path, source: str | None = None, group: str | None = None) -> Sentences:
    """The pairs of a folder, with the longest fifth apart.

    Args:
        folder: of the text files.
        source: the source's language; default: the one whose name comes first.
        group: train.<group> has the group of each pair, a line each; None: there are no groups.

    Raises:
        ValueError: there are not two languages, or a test has one; files are no pairs or not
            UTF-8; a line is empty; a pair or a group of the test is in training; or lengths are
            all alike.
    """
    names = [path.name.removeprefix("train.") for path in sorted(folder.glob("train.*"))]
    languages = [name for name in names if "." not in name and name != group]
    if len(languages) != 2 or source not in (None, *languages):
        there = ", ".join(f"train.{one}" for one in names) or "no train.*"
        wanted = f"train.{source or 'SRC'} and train.TGT"
        raise ValueError(f"{folder} must hold {wanted}, one file a language, but has {there}")
    if source == languages[1]:
        languages.reverse()
    train = _pairs(folder, "train", languages)
    own, unused = _own_tests(folder, languages, group)
    given = _pairs(folder, own, languages) if own else []
    known = set(train)
    twice = (i for i, pair in enumerate(given, 1) if pair in known)
    complain(f"{folder}/{own}.* line {i} stands in train.* too" for i in twice)
    every = dict.fromkeys([*train, *given])  # each pair is in one part only
    lengths = {pair: _words(pair) for pair in every if len({*pair.split("\t")}) == 2}
    if len(lengths) < LEAST:
        alike = len(every) - len(lengths)
        more = f" ({alike} more have the same text on both sides)" if alike else ""
        raise ValueError(f"{folder} has {len(lengths)} different pairs{more}: {LEAST} are needed")
    brought, groups, where = {*given}, dict[str, str](), ""
    if group:
        trained = dict(zip(train, _group(folder, "train", group, len(train)), strict=True))
        tested = dict(zip(given, _group(folder, own, group, len(given)), strict=True))
        complain(in_both(trained.values(), tested.values()))
        groups = trained | tested
        if not own:
            held, where = held_out(groups[pair] for pair in lengths)
            brought = {pair for pair in lengths if groups[pair] in held}
    measured = {pair: n for pair, n in lengths.items() if pair in brought or not group}
    short, beyond, limit = short_and_long(measured, "{:g}-{:g}")
    inside = [pair for pair in short if pair in brought]
    kept = [pair for pair in lengths if pair not in brought and lengths[pair] <= limit]
    if inside:
        inside, _ = drawn(inside, MOST_BROUGHT)
        how = where or f"from {own}.*"
    else:
        inside, kept = test_and_rest(kept)
        how = "chosen by their text from the shorter ones"
    how += f" (not used: {unused})" if unused else ""
    tests = {f"1-{limit:g}": inside, **beyond}
    every_given = len(train) + len(given)
    return Sentences((languages[0], languages[1]), kept, tests, how, every_given, groups)


def _group(folder: Path, name: str | None, group: str, many: int) -> list[str]:
    """The groups of so many pairs.

    Raises:
        ValueError: there is no such file, or it has not a line for each pair.
    """
    found = read_lines(folder / f"{name}.{group}") if name else []
    if len(found) != many:
        raise ValueError(f"{folder}/{name}.{group} has {len(found)} lines for {many} pairs")
    return found


def _own_tests(folder: Path, languages: list[str], group: str | None) -> tuple[str | None, str]:
    """The name of the user's test, without language, and the files that are not used.

    Raises:
        ValueError: a test has one language alone.
    """
    used = {f"train.{language}" for language in [*languages, group]}
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
    used |= {f"{own}.{language}" for language in [*languages, group]}
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


def prepare(text: Path, out: Path, source: str | None = None, group: str | None = None) -> None:
    """Write text and binarised data to ``out``, from the folder that :func:`look` takes.

    Args:
        text: the user's folder.
        out: the folder to write.
        source: the source's language; default: the one whose name comes first.
        group: train.<group> has the group of each pair; a fifth of them is for testing alone.

    Raises:
        ValueError: see :func:`look`; or a pair is longer than the model takes.
    """
    found = look(text, source, group)
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
        wrong = np.flatnonzero((one.max(0) > POSITIONS) | (one.min(0) < 2))
        complain(
            f"a pair of {text} has {one[:, i].max():,} subwords on a side, allowed are 1 to "
            f"{POSITIONS - 1:,}: {pairs[i][:80]!r}"
            for i in wrong
        )
    longest = {int(of.max()): parts[name][int(np.argmax(of.max(0)))] for name, of in sizes.items()}
    within, *beyond = found.tests
    held = ", ".join(f"{len(found.tests[name]):,} of {name}" for name in beyond)
    spare = found.given - sum(map(len, parts.values()))
    why = "twice there, the same text on both sides, or a test has enough"
    more = f". {spare:,} pairs are left out: {why}" if spare else ""
    words = "as sacremoses splits it, in subwords of subword-nmt" if plain else "as it is"
    middle = median(_words(pair) for pair in found.train)
    longer = [pair for name in beyond for pair in found.tests[name]]
    sets = {"within": found.tests[within], "beyond": longer}
    counts: dict[str, Any] = {"items": {name: len(pairs) for name, pairs in sets.items()}}
    if found.groups:
        own = {name: {found.groups[pair] for pair in pairs} for name, pairs in sets.items()}
        counts["groups"] = {name: len(of) for name, of in own.items()}
        facts.write_groups(
            out,
            (
                {"condition": name, "item": str(i), "group": found.groups[pair]}
                for name, pairs in found.tests.items()
                for i, pair in enumerate(pairs)
            ),
        )
    facts.write(
        out,
        found=(
            f"{len(found.train):,} pairs from {' to '.join(found.languages)} to train on, of "
            f"{within} words, {middle:g} in the median. Held out of training: the longest fifth, "
            f"{held} words. Tested within its lengths on {len(found.tests[within]):,} pairs, "
            f"{found.how}. "
            f"Text is taken {words}; BLEU is of these tokens, and no sacreBLEU of plain text."
        ),
        left_out=more,
        source=found.languages[0],
        target=found.languages[1],
        subsets=",".join(found.tests),
        within=within,
        longest=max(ENDED_AT, *(int(sizes[name][1].max()) for name in found.tests)),
        longest_side=max(longest),
        longest_pair=longest[max(longest)][:80],
        lengths=dict(sorted(Counter(sizes["train"].max(0).tolist()).items())),
        range=max(int(one.max()) for one in sizes.values()),  # of random_rope
        **counts,
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
