"""A user's text files: checked, split by file, cut into tokens, and what a study of them needs.

    python -m cape_studies.prepare.texts --text DIR --out prepared

``DIR`` holds text files in UTF-8, of any name at any depth. If it has ``train/`` and ``test/`` (or
``validation``, ``val``), tests are of the latter alone. Else some files of the longer half are for
testing. No text is in both parts, and none of which training has a fifth of the runs of 16 tokens
is tested: of the user's own tests it is refused, of ours it is left out.

Writes tokenizer/, train.npy and test.npy, as ``cape_studies.data.tokens`` does, and facts.yaml. A
test is the beginning of a file, of 4 times the tokens of a training sequence, or 2 times.
"""

from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, PositiveInt

from cape_studies.command import script
from cape_studies.data import facts, tokens
from cape_studies.data.files import complain, files, kinds
from cape_studies.data.split import (
    ENOUGH,
    LEAST,
    MOST,
    brought,
    drawn,
    groups_of,
    held_out,
    in_both,
    test_and_rest,
)
from cape_studies.data.text import read_text
from cape_studies.stats import ITEMS

LENGTHS = 256, 128, 64, 32  # tokens of a training sequence: the most of which tests can be made
TIMES = 4, 2  # so many times longer in testing
SCORED = 64  # last tokens of a test, which are scored after contexts of all lengths


class Texts(NamedTuple):
    """Texts of a folder.

    Attributes:
        train, test: texts of each part; those of a part are different.
        names: of the tests.
        own: whether the tests are the user's.
        how: what is there and where the tests come from, in words.
        groups: of :func:`cape_studies.data.split.groups_of`.
    """

    train: list[str]
    test: list[str]
    names: list[str]
    own: bool
    how: str
    groups: dict[str, str]


def look(folder: Path, pattern: str = "*", group: str | None = None) -> Texts:
    """The texts of a folder.

    Args:
        folder: of the files.
        pattern: names of those to take.
        group: see :func:`cape_studies.data.split.groups_of`.

    Raises:
        ValueError: there is none, or fewer than 50 that differ; one is not UTF-8; or a file or a
            group of the user's test is in training.
    """
    paths = {
        path.relative_to(folder).as_posix(): path for path in files(folder) if path.match(pattern)
    }
    if not paths:
        raise ValueError(f"{folder} has no files whose names match {pattern}")
    texts, faults = {}, []
    for name, path in paths.items():
        try:
            texts[name] = read_text(path)
        except ValueError as error:
            faults.append(str(error))
    complain(faults)
    to_train, to_test, own = brought(paths)
    groups = groups_of(paths, group)
    if groups:
        complain(in_both(*({groups[name] for name in part} for part in (to_train, to_test))))
    trained = {texts[name]: name for name in to_train if texts[name].strip()}
    complain(
        f"{paths[name]} of a test has the text of {paths[same]} of training"
        for name in sorted(to_test)
        if (same := trained.get(texts[name]))
    )
    first: dict[str, str] = {}  # text → its first name
    for name in sorted(to_train | to_test) or texts:
        if texts[name].strip():
            first.setdefault(texts[name], name)
    kept = [*first.values()]
    if len(kept) < LEAST:
        raise ValueError(
            f"{folder} has {len(kept)} different texts: {LEAST} are needed. A text is a file: a "
            "long one can be cut, for instance into its chapters"
        )
    if own:
        test, _ = drawn([name for name in kept if name in to_test], MOST)
        train = [name for name in kept if name in to_train]
        where = f"those in {own}/"
    else:
        middle = median(len(texts[name]) for name in kept)
        longer = [name for name in kept if len(texts[name]) >= middle]  # tests can be made of them
        where = "chosen by their names from the longer half"
        if groups:
            held, where = held_out(groups[name] for name in kept)
            where = f"of the longer half, {where}"
            test, _ = drawn([name for name in longer if groups[name] in held], MOST)
            train = [name for name in kept if groups[name] not in held]
        else:
            test, _ = drawn(longer, len(test_and_rest(kept)[0]))
            train = [name for name in kept if name not in {*test}]
    spare = len(paths) - len(train) - len(test)
    why = "in no part" if own or not groups else "too short for a test of their group"
    left = f"; left out: {spare:,} that are empty, there twice or {why}" if spare else ""
    how = f"{kinds(paths.values())}{left}. {len(test):,} files are for testing, {where}"
    trains, tests = ([texts[name] for name in part] for part in (train, test))
    return Texts(trains, tests, test, bool(own), how, groups)


def prepare(
    text: Path,
    out: Path,
    pattern: str = "*",
    vocabulary: Annotated[int, Field(ge=257, le=65536)] = 1024,
    length: PositiveInt | None = None,
    group: str | None = None,
) -> None:
    """Check the texts, write their tokens, and the facts.

    Args:
        text: the user's folder.
        out: the folder to write.
        pattern: names of the files to take.
        vocabulary: tokens of the byte-level BPE, which is learned on training.
        length: tokens of a training sequence; default: 256, or fewer if tests are short.
        group: a regular expression that finds the group of a file in its path below the folder; a
            fifth of the groups is then for testing alone.

    Raises:
        ValueError: see :func:`look`; or tests are too short, or in training.
    """
    found = look(text, pattern, group)
    sizes = tokens.write(out, {"train": found.train, "test": found.test}, vocabulary)
    length, longest = _lengths(sizes["test"], length)
    leaking = tokens.leaks(out, "test", longest)
    if leaking and (found.own or len(leaking) == sum(one >= longest for one in sizes["test"])):
        complain(
            f"{text / found.names[i]} is in training: of a test's first {longest} tokens fewer "
            f"than {tokens.LEAK:.0%} of the runs of {tokens.RUN} may be there"
            for i in leaking
        )
    tokens.leave_out(out, "test", leaking)
    sizes["test"] = [one for i, one in enumerate(sizes["test"]) if i not in leaking]
    names = [name for i, name in enumerate(found.names) if i not in leaking]
    train, every = sum(sizes["train"]), sizes["train"] + sizes["test"]
    scored = min(SCORED, length // 2)
    left = f"; {len(leaking)} of them are left out, as they are in training" if leaking else ""
    tested = [name for name, one in zip(names, sizes["test"], strict=True) if one >= longest]
    windows = len(tested)
    few = f": of fewer than {ITEMS} nothing is claimed" if windows < ITEMS else ""
    counts: dict[str, Any] = {"items": {"within": windows, "beyond": windows}}
    if found.groups:
        own = [found.groups[name] for name in tested]
        counts["groups"] = dict.fromkeys(("within", "beyond"), len({*own}))
        facts.write_groups(out, ({"item": str(i), "group": of} for i, of in enumerate(own)))
    facts.write(
        out,
        found=(
            f"{found.how}{left}: {windows:,} of them have {longest:,} tokens{few}. "
            f"{sum(every):,} tokens of a byte-level BPE, {train:,} in {len(found.train):,} files "
            f"to train on, {median(every):,.0f} a file in the median"
        ),
        chance=_chance(out, longest, scored),
        length=length,
        lengths=[one for one in (length, 2 * length, 4 * length) if one <= longest],
        longest=longest,
        scored=scored,
        tokens=train,
        **counts,
    )


def _lengths(tests: list[int], length: int | None) -> tuple[int, int]:
    """Tokens of a training sequence, and the most in testing: half of the tests, or 100, have them.

    Raises:
        ValueError: they are too short.
    """
    enough = sorted(tests, reverse=True)[min(ENOUGH, (len(tests) + 1) // 2) - 1]
    for times in TIMES:
        for one in (length,) if length else LENGTHS:
            if one * times <= enough:
                return one, one * times
    given = f"options.length={length}" if length else f"{LENGTHS[-1]} tokens, the least length"
    raise ValueError(
        f"too many of the {len(tests)} files for testing are short: {given}, needs tests of twice "
        f"as many, and enough of them have {enough} tokens at most"
    )


def _chance(out: Path, longest: int, scored: int) -> float:
    """Nats of a scored token for who knows how frequent each is in training, and one more."""
    train, test = (np.load(out / f"{part}.npy") for part in ("train", "test"))
    counts = np.bincount(train, minlength=int(test.max()) + 1) + 1
    windows = [one[longest - scored : longest] for one in tokens.texts_of(test)]
    last = np.concatenate([one for one in windows if len(one) == scored])
    return round(float(-np.log(counts[last] / counts.sum()).mean()), 4)


if __name__ == "__main__":
    script(prepare)
