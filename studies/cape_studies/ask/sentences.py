"""A user's pairs of sentences: checked, the longest held out, cut into subwords, binarised.

    python -m cape_studies.ask.sentences --text DIR --out prepared --source en

``DIR`` holds train.SRC and train.TGT, a sentence a line, and perhaps test.SRC and test.TGT (or
valid). Text whose words are split with @@ is taken as it is. Other text is tokenised by sacremoses
and split by subword-nmt, whose merges are learned on both languages of training.

Writes bin/ for fairseq. It has train, a test of training's lengths, and the longest fifth as tests
in bins of equal counts. A test's name is the range of its lengths. The length of a pair is the
number of words of its longer side.
"""

import io
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import NamedTuple

from cape_plugins.text import read_lines, two_forms

from cape_studies.ask.held_out import apart, command, complain, drawn, short_and_long
from cape_studies.experiments.hosts import Machine
from cape_studies.experiments.study import Study

MERGES = 8000
MOST_BROUGHT = 2000  # pairs of the user's test
SEEN = 1_500_000  # words in a short training; more, if needed to see all of them three times

Pair = tuple[str, str]


class Sentences(NamedTuple):
    """Pairs of source and target.

    Attributes:
        languages: of source and target.
        train: pairs to train on.
        tests: name → pairs; the test of training's lengths is the first.
        how: where that test comes from, in words.
    """

    languages: tuple[str, str]
    train: list[Pair]
    tests: dict[str, list[Pair]]
    how: str


def look(folder: Path, source: str | None = None) -> Sentences:
    """The pairs of a folder, with the longest fifth apart.

    Args:
        folder: of the text files.
        source: the source's language; default: the one whose name comes first.

    Raises:
        ValueError: there are not two languages; files are no pairs or not UTF-8; a line is empty;
            a pair of the test is in training; or lengths are all alike.
    """
    languages = sorted(path.suffix[1:] for path in folder.glob("train.*"))
    if len(languages) != 2 or source not in (None, *languages):
        there = ", ".join(f"train.{one}" for one in languages) or "no train.*"
        wanted = f"train.{source or 'SRC'} and train.TGT"
        raise ValueError(f"{folder} must hold {wanted}, one file a language, but has {there}")
    if source == languages[1]:
        languages.reverse()
    train = _pairs(folder, "train", languages)
    own = [name for name in ("test", "valid") if (folder / f"{name}.{languages[0]}").exists()]
    given = _pairs(folder, own[0], languages) if own else []
    known = set(train)
    files = f"{folder / own[0]}.{languages[0]}" if own else ""
    twice = (i for i, pair in enumerate(given, 1) if pair in known)
    complain(folder, (f"{files} line {i} stands in training with its translation" for i in twice))
    every = list(dict.fromkeys([*train, *given]))  # each pair once, so it is in one part only
    short, beyond, limit = short_and_long(every, _words, "\t".join, "{:g}-{:g}".format)
    brought = set(given)
    inside = [pair for pair in short if pair in brought]
    kept = [pair for pair in short if pair not in brought]
    if inside:
        inside, _ = drawn(inside, MOST_BROUGHT, "\t".join)
        how = f"from {own[0]}.{languages[0]} and .{languages[1]}"
    else:
        inside, kept = apart(kept, "\t".join)
        how = "chosen by their text from the shorter ones"
    tests = {f"1-{limit:g}": inside, **beyond}
    return Sentences((languages[0], languages[1]), kept, tests, how)


def _words(pair: Pair) -> int:
    """The number of words of the longer side."""
    return max(len(side.split()) for side in pair)


def _pairs(folder: Path, name: str, languages: list[str]) -> list[Pair]:
    sides = []
    for language in languages:
        path = folder / f"{name}.{language}"
        if not path.is_file():
            raise ValueError(f"{path} is missing: {name}.{languages[0]} has no pair")
        sides.append([" ".join(line.split()) for line in read_lines(path)])
    if len(sides[0]) != len(sides[1]):
        counts = [len(of) for of in sides]
        raise ValueError(f"{folder / name}.* must be pairs of lines, but have {counts} lines")
    empty = (
        f"{folder / name}.{language} line {number} is empty"
        for language, lines in zip(languages, sides, strict=True)
        for number, line in enumerate(lines, 1)
        if not line
    )
    complain(folder, empty)
    return list(zip(*sides, strict=True))


def settle(study: Study, folder: Path, machine: Machine) -> None:
    """Fill the settings that the study leaves open (null), from the sentences.

    Raises:
        ValueError: see :func:`look`.
    """
    step, options = study.prepare["prepared"].options, study.options
    found = look(folder, step["source"])
    step["source"] = found.languages[0]
    lengths = [_words(pair) for pair in found.train]
    batches = 1.2 * sum(lengths) / options["max-tokens"]  # of subwords
    updates = round(min(max(SEEN * 1.2 / options["max-tokens"], 3 * batches), 100 * batches))
    options["max-update"] = updates = options["max-update"] or max(1, updates)
    options["total-num-update"] = options["total-num-update"] or updates
    options["warmup-updates"] = options["warmup-updates"] or updates // 5
    study.evaluations["length"].options["gen-subset"] = ",".join(found.tests)
    within, *beyond = found.tests
    study.report.trained_on = [within]
    assert study.answer is not None
    study.answer.chance = 1.0  # BLEU
    study.answer.steps = updates
    held = ", ".join(f"{len(found.tests[name]):,} of {name}" for name in beyond)
    study.answer.found = (
        f"{len(found.train):,} pairs from {' to '.join(found.languages)} to train on, "
        f"of {within} words, {median(lengths):g} in the median. Held out of training: the longest "
        f"fifth, {held} words. Tested within its lengths on {len(found.tests[within]):,} pairs, "
        f"{found.how}. Trained for {updates:,} updates"
    )
    pairs = [pair for part in (found.train, *found.tests.values()) for pair in part]
    if told := two_forms(side for pair in pairs for side in pair):
        study.answer.found += f". {told}"


def prepare(text: Path, out: Path, source: str) -> None:
    """Write text and binarised data to ``out``, from the folder that :func:`look` takes.

    Raises:
        ValueError: see :func:`look`.
    """
    found = look(text, source)
    sides = {
        (name, language): [pair[i] for pair in pairs]
        for name, pairs in {"train": found.train, **found.tests}.items()
        for i, language in enumerate(found.languages)
    }
    if not any("@@ " in line for line in sides["train", found.languages[0]]):
        sides = _subwords(sides, found.languages)
    (out / "text").mkdir(parents=True)
    for (name, language), lines in sides.items():
        path = out / "text" / f"{name}.{language}"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    tests = ",".join(str(out / "text" / name) for name in found.tests)
    preprocess = str(Path(sys.executable).parent / "fairseq-preprocess")
    told = [f"--trainpref={out / 'text' / 'train'}", f"--testpref={tests}", "--joined-dictionary"]
    told += [f"--source-lang={found.languages[0]}", f"--target-lang={found.languages[1]}"]
    subprocess.run([preprocess, *told, f"--destdir={out / 'bin'}"], check=True)
    for i, name in enumerate(found.tests):  # fairseq-preprocess names them test, test1, test2 …
        for path in [*(out / "bin").glob(f"test{i or ''}.*")]:
            path.rename(path.with_name(path.name.replace(f"test{i or ''}", name, 1)))


def _subwords(
    sides: dict[tuple[str, str], list[str]], languages: tuple[str, str]
) -> dict[tuple[str, str], list[str]]:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer
    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe

    split = {}
    for language in languages:
        normal = MosesPunctNormalizer(lang=language).normalize
        tokens = MosesTokenizer(lang=language).tokenize
        for (part, own), lines in sides.items():
            if own == language:
                texts = [tokens(normal(line), return_str=True, escape=False) for line in lines]
                split[part, own] = texts
    codes = io.StringIO()
    learn_bpe((line for one in languages for line in split["train", one]), codes, MERGES)
    codes.seek(0)
    bpe = BPE(codes)
    return {key: [bpe.process_line(line) for line in lines] for key, lines in split.items()}


if __name__ == "__main__":
    command(prepare)
