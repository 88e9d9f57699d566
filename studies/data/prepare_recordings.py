"""A user's recordings: checked, the longest held out, and what a study of them needs.

    python studies/data/prepare_recordings.py --wavs DIR --out prepared

``DIR`` holds WAV or FLAC files at any depth, each with its transcript in a .txt of the same name
beside it. If it has ``train/`` and ``test/`` (or ``validation``, ``val``), tests are of the latter
alone; with ``--speaker`` they are of some speakers, of whom nothing is trained on.

Writes {train,valid,test,test1,…}/ with wav.scp, text and links to the audio, tokens.txt, and
facts.yaml. ``test`` has the durations of training; test1 to test3 have the longest fifth, in bins
of equal counts.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Literal

from cape_studies.command import script
from cape_studies.data import facts, recordings
from cape_studies.data.files import complain, twice
from cape_studies.data.split import (
    FEW,
    LEAST,
    MOST,
    brought,
    drawn,
    short_and_long,
    test_and_rest,
)

SECONDS = 50  # of a batch
UPDATES = 1500  # of a short training; more, if needed to see each recording ten times
EPOCH = 100  # updates, after which ESPnet validates
WORDS = 100  # the most different words for tokens that are words; with more they are letters
FRAME = 0.03  # seconds of a frame after the paper's convolution, in which CTC writes one token
SHOWN = 20  # names of speakers in a sentence


def own_test(names: Iterable[str], speaker: str | None = None) -> tuple[set[str], set[str], str]:
    """What a user's own split or one by speaker leaves for training and for tests, and where the
    tests are from, in words; all three are empty where there is neither.

    Args:
        names: of the utterances, with their sub-folders.
        speaker: a regular expression that finds the speaker in a name, by its first group or whole.

    Raises:
        ValueError: the expression is none, finds nothing in a name, or finds one speaker.
    """
    names = [*names]
    if speaker is None:
        to_train, to_test, folder = brought(names)
        return to_train, to_test, f"tested on those in {folder}/" if folder else ""
    try:
        found = {name: re.search(speaker, name) for name in names}
    except re.error as error:
        raise ValueError(f"speaker={speaker} is no regular expression: {error}") from error
    complain(f"speaker={speaker} finds nothing in {n}" for n, one in found.items() if not one)
    of = {name: one[one.re.groups and 1] for name, one in found.items() if one}
    every = {*of.values()}
    if len(every) < 2:
        raise ValueError(f"speaker={speaker} finds one speaker, {', '.join(every)}: 2 are needed")
    held = sorted(drawn(every, max(1, len(every) // FEW))[0])
    to_test = {name for name, one in of.items() if one in held}
    shown = ", ".join(held[:SHOWN]) + (", …" if len(held) > SHOWN else "")
    how = f"tested on {len(held)} of {len(every)} speakers, of whom nothing is trained on: {shown}"
    return {*names} - to_test, to_test, how


def prepare(
    wavs: Path,
    out: Path,
    speaker: str | None = None,
    frame: float = FRAME,
    token_type: Literal["word", "char"] | None = None,
    epochs: float | None = None,
    max_epoch: int | None = None,
    num_iters_per_epoch: int | None = None,
    batch_bins: int | None = None,
) -> None:
    """Check the recordings, hold out the longest, and write lists, tokens and facts.

    Args:
        wavs: the user's folder.
        out: the folder to write.
        speaker: a regular expression that finds the speaker in the name of a recording with its
            sub-folder; a fifth of the speakers is then for testing alone.
        frame: seconds of a frame after the encoder's convolution, in which CTC writes one token.
        token_type: default: words if there are at most 100, else letters.
        epochs: passes over the recordings; default: those of 1,500 updates, at least ten.
        max_epoch: ESPnet's epochs, in place of the passes.
        num_iters_per_epoch: updates, after which ESPnet validates; default: 100.
        batch_bins: samples of a batch; default: 50 seconds.

    Raises:
        ValueError: see :func:`cape_studies.data.recordings.read`; or there are fewer than 50,
            several sampling rates, durations that are all alike, a transcript that is too long for
            its audio, one transcript for all, or one recording in training and in a test. Or see
            :func:`own_test`.
    """
    found, account = recordings.read(wavs)
    every = found.values()
    rate = recordings.the_one_rate(every)
    if len(every) < LEAST:
        raise ValueError(f"{wavs} has {account}: {LEAST} are needed, at the least")
    if len({one.text for one in every}) == 1:
        (text,) = {one.text for one in every}
        raise ValueError(f"all recordings of {wavs} have one transcript, {text[:80]!r}: {account}")
    seconds = {key: one.seconds for key, one in found.items()}
    to_train, to_test, how = own_test(found, speaker)
    measured = {key: seconds[key] for key in found if key in to_test or not to_test}
    short, beyond, limit = short_and_long(measured, "{:.1f}–{:.1f} s")
    if to_test:
        test, _ = drawn(short, MOST)
        rest = [key for key in found if key in to_train and seconds[key] <= limit]
        if len(rest) < LEAST // 2:
            raise ValueError(
                f"{wavs} has {len(rest)} recordings to train on that last up to {limit:.1f} s, as "
                f"the shorter four fifths of the tests do: {LEAST // 2} are needed ({how})"
            )
    else:
        test, rest = test_and_rest(short)
    valid, train = test_and_rest(rest)
    within = f"up to {limit:.1f} s"
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
    complain(twice((found[key].path for key in train), tested))
    parts: dict[str, dict[str, recordings.Utterance]] = {name: {} for name in keys}
    for name, part in keys.items():
        for key in part:
            link = out.absolute() / name / f"{key}{found[key].path.suffix}"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(found[key].path.absolute())
            parts[name][key] = found[key]._replace(path=link)
    recordings.write(out, parts, kind)
    trained = sum(seconds[key] for key in train)
    bins = batch_bins or SECONDS * rate
    each = trained * rate / bins  # updates of a pass
    updates = round(epochs * each) if epochs else max(UPDATES, round(10 * each))
    iters = num_iters_per_epoch or max(1, min(EPOCH, updates))
    rounds = max_epoch or max(1, round(updates / iters))
    updates = rounds * iters
    held = ", ".join(f"{len(part)} of {name}" for name, part in tests.items())
    spare = len(every) - sum(map(len, keys.values()))
    why = "longer than the test of training's durations, or " if to_test else ""
    more = f". {spare:,} recordings are left out: {why}a test has enough" if spare else ""
    split = (
        f"{how}; the longer of these are the longest fifth"
        if how
        else ("the longest fifth was held out of training")
    )
    facts.write(
        out,
        found=(
            f"{account} at {rate} Hz, {sum(seconds.values()) / 3600:.1f} hours; {len(train):,} "
            f"({trained / 3600:.1f} hours) to train on, of "
            f"{median(seconds[key] for key in train):.1f} s in the median, and {len(valid)} to "
            f"choose checkpoints. To test: {held}; {split}. "
            f"Tokens are {kind}s; trained for {updates:,} updates, {facts.passes(updates / each)}"
            f"{more}"
        ),
        rate=rate,
        token_type=kind,
        n_fft=1 << (rate // 40 - 1).bit_length(),
        win_length=rate // 40,
        hop_length=rate // 100,
        frame_shift=rate // 100 / rate,  # 10 ms, but for rates such as 22,050 Hz
        n_mels=40 if rate < 16000 else 80,
        batch_bins=bins,
        max_epoch=rounds,
        num_iters_per_epoch=iters,
        updates=updates,
        # ± seconds: positions of twice the longest that is trained on
        max_global_shift=round(max(seconds[key] for key in train) / 2, 1),
        tests=[f"{name}={(out / names[name]).absolute()}" for name in tests],
        within=within,
    )


if __name__ == "__main__":
    script(prepare)
