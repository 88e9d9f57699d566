"""A user's recordings: checked, the longest held out, and what a study of them needs.

    python -m cape_studies.prepare.recordings --wavs DIR --out prepared

``DIR`` holds WAV or FLAC files at any depth, each with its transcript in a .txt of the same name
beside it. If it has ``train/`` and ``test/`` (or ``validation``, ``val``), tests are of the latter
alone; with ``--group`` they are of some groups, such as speakers, of which nothing is trained on.

Writes {train,valid,test,test1,…}/ with wav.scp, text and links to the audio, tokens.txt, and
facts.yaml. ``test`` has the durations of training; test1 to test3 have the longest fifth, in bins
of equal counts.
"""

from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any, Literal

from cape_studies.command import script
from cape_studies.data import facts, recordings
from cape_studies.data.files import complain, twice
from cape_studies.data.split import (
    LEAST,
    MOST,
    brought,
    drawn,
    groups_of,
    held_out,
    in_both,
    short_and_long,
    test_and_rest,
)

WORDS = 100  # the most different words for tokens that are words; with more they are letters
FRAME = 0.03  # seconds of a frame after the paper's convolution, in which CTC writes one token
WARNED = 5  # a warning, if one in so many is left out


def own_test(names: Iterable[str], groups: dict[str, str]) -> tuple[set[str], set[str], str]:
    """What a user's own split or one by groups leaves for training and for tests, and where the
    tests are from, in words; all three are empty where there is neither.

    Args:
        names: of the utterances, with their sub-folders.
        groups: of :func:`cape_studies.data.split.groups_of`.

    Raises:
        ValueError: a group is in training and test.
    """
    names = [*names]
    to_train, to_test, folder = brought(names)
    if folder:
        complain(in_both(*({groups[n] for n in x if groups} for x in (to_train, to_test))))
        return to_train, to_test, f"tested on those in {folder}/"
    if not groups:
        return set(), set(), ""
    held, how = held_out(groups.values())
    to_test = {name for name, one in groups.items() if one in held}
    return {*names} - to_test, to_test, how


def prepare(
    wavs: Path,
    out: Path,
    group: str | None = None,
    frame: float = FRAME,
    token_type: Literal["word", "char"] | None = None,
    speaker: str | None = None,
) -> None:
    """Check the recordings, hold out the longest, and write lists, tokens and facts.

    Args:
        wavs: the user's folder.
        out: the folder to write.
        group: a regular expression that finds the group, such as the speaker, in the name of a
            recording with its sub-folder; a fifth of the groups is then for testing alone.
        frame: seconds of a frame after the encoder's convolution, in which CTC writes one token.
        token_type: default: words if there are at most 100, else letters.
        speaker: is ``group`` now.

    Raises:
        ValueError: see :func:`cape_studies.data.recordings.read`; or there are fewer than 50,
            several sampling rates, durations that are all alike, a transcript that is too long for
            its audio, one transcript for all, or one recording in training and in a test. Or see
            :func:`own_test`.
    """
    if speaker is not None:
        raise ValueError(f"speaker={speaker} is group now: type 'group=\"{speaker}\"'")
    found, account = recordings.read(wavs)
    every = found.values()
    rate = recordings.the_one_rate(every)
    if len(every) < LEAST:
        raise ValueError(f"{wavs} has {account}: {LEAST} are needed, at the least")
    if len({one.text for one in every}) == 1:
        (text,) = {one.text for one in every}
        raise ValueError(f"all recordings of {wavs} have one transcript, {text[:80]!r}: {account}")
    seconds = {key: one.seconds for key, one in found.items()}
    groups = groups_of(found, group)
    to_train, to_test, how = own_test(found, groups)
    measured = {key: seconds[key] for key in found if key in to_test or not to_test}
    digits = 2 if median(measured.values()) < 1 else 1
    short, beyond, limit = short_and_long(measured, f"{{:.{digits}f}}–{{:.{digits}f}} s")
    if to_test:
        test, _ = drawn(short, MOST)
        rest = [key for key in found if key in to_train and seconds[key] <= limit]
        if len(rest) < LEAST // 2:
            raise ValueError(
                f"{wavs} has {len(rest)} recordings to train on that last up to "
                f"{limit:.{digits}f} s, as the shorter four fifths of the tests do: "
                f"{LEAST // 2} are needed ({how})"
            )
    else:
        test, rest = test_and_rest(short)
    valid, train = test_and_rest(rest)
    within = f"up to {limit:.{digits}f} s"
    tests = {within: test, **beyond}  # name in reports → keys
    names = {name: f"test{i or ''}" for i, name in enumerate(tests)}
    keys = {"train": train, "valid": valid, **{names[name]: tests[name] for name in tests}}
    words = {word for key in train for word in found[key].text.split()}
    kind = token_type or ("word" if len(words) <= WORDS else "char")
    lengths = ((one, len(one.text.split() if kind == "word" else one.text)) for one in every)
    complain(
        f"{one.path} lasts {one.seconds:.2f} s, and its transcript has {length} {kind}s: CTC "
        f"writes one in {1000 * frame:g} ms at the most"
        for one, length in lengths
        if length * frame > one.seconds
    )
    tested = [found[key].path for part in tests.values() for key in part]
    sounds = {one.path: one.sound for one in every}
    complain(twice((found[key].path for key in train), tested, sounds.__getitem__))
    parts: dict[str, dict[str, recordings.Utterance]] = {name: {} for name in keys}
    for name, part in keys.items():
        for key in part:
            link = out.absolute() / name / f"{key}{found[key].path.suffix}"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(found[key].path.absolute())
            parts[name][key] = found[key]._replace(path=link)
    recordings.write(out, parts, kind)
    trained = sum(seconds[key] for key in train)
    held = ", ".join(f"{len(part)} of {name}" for name, part in tests.items())
    spare = len(every) - sum(map(len, keys.values()))
    why = "longer than the test of training's durations, or " if to_test else ""
    more = f". {spare:,} recordings are left out: {why}a test has enough" if spare else ""
    if to_test and WARNED * spare > len(every):
        more = (
            f". WARNING: {spare:,} of {len(every):,} recordings are left out, as they are longer "
            f"than {limit:.{digits}f} s, the shorter four fifths of the tests, or a test has "
            "enough: test recordings of like durations, or other groups"
        )
    split = (
        f"{how}; the longer of these are the longest fifth"
        if how
        else "the longest fifth was held out of training"
    )
    counts: dict[str, Any] = {
        "items": {"within": len(test), "beyond": sum(map(len, beyond.values()))}
    }
    if groups:
        sets = {"within": test, "beyond": [key for part in beyond.values() for key in part]}
        counts["groups"] = {k: len({groups[key] for key in part}) for k, part in sets.items()}
        tested_keys = [key for part in sets.values() for key in part]
        facts.write_groups(out, ({"item": key, "group": groups[key]} for key in tested_keys))
    facts.write(
        out,
        found=(
            f"{account} at {rate} Hz, {facts.time(sum(seconds.values()))}; {len(train):,} "
            f"({facts.time(trained)}) to train on, of "
            f"{facts.time(median(seconds[key] for key in train))} in the median, and {len(valid)} "
            f"to choose checkpoints. To test: {held}; {split}. Tokens are {kind}s"
        ),
        left_out=more,
        seconds=round(trained, 3),
        rate=rate,
        token_type=kind,
        n_fft=1 << (rate // 40 - 1).bit_length(),
        win_length=rate // 40,
        hop_length=rate // 100,
        frame_shift=rate // 100 / rate,  # 10 ms, but for rates such as 22,050 Hz
        n_mels=40 if rate < 16000 else 80,
        # ± seconds: positions of twice the longest that is trained on
        max_global_shift=round(max(seconds[key] for key in train) / 2, 1),
        tests=[f"{name}={(out / names[name]).absolute()}" for name in tests],
        within=within,
        **counts,
    )


if __name__ == "__main__":
    script(prepare)
