"""A user's recordings: checked, the longest held out, and what a study of them needs.

    python -m cape_studies.ask.recordings --wavs DIR --out prepared

``DIR`` holds WAV or FLAC files at any depth, each with its transcript in a .txt of the same name
beside it.

Writes {train,valid,test,test1,…}/ with wav.scp, text and links to the audio, tokens.txt, and
facts.yaml. ``test`` has the durations of training; test1 to test3 have the longest fifth, in bins
of equal counts.
"""

import hashlib
from pathlib import Path
from statistics import median
from typing import Literal

from espnet2.fileio.read_text import read_2columns_text

from cape_studies.data import facts, recordings
from cape_studies.data.files import complain
from cape_studies.data.recordings import Utterance
from cape_studies.data.split import LEAST, apart, short_and_long

SECONDS = 50  # of a batch
UPDATES = 1500  # of a short training; more, if needed to see each recording ten times
EPOCH = 100  # updates, after which ESPnet validates
WORDS = 100  # the most different words for tokens that are words; with more they are letters
FRAME = 0.03  # seconds of a frame after the paper's convolution, in which CTC writes one token


def prepare(
    wavs: Path,
    out: Path,
    token_type: Literal["word", "char"] | None = None,
    epochs: float | None = None,
    max_epoch: int | None = None,
    num_iters_per_epoch: int | None = None,
    batch_bins: int | None = None,
    frame: float = FRAME,
) -> None:
    """Check the recordings, hold out the longest, and write lists, tokens and facts.

    Args:
        wavs: the user's folder.
        out: the folder to write.
        token_type: default: words if there are at most 100, else letters.
        epochs: passes over the recordings; default: those of 1,500 updates, at least ten.
        max_epoch: ESPnet's epochs, in place of the passes.
        num_iters_per_epoch: updates, after which ESPnet validates; default: 100.
        batch_bins: samples of a batch; default: 50 seconds.
        frame: seconds of an encoder's frame, in which CTC writes one token at the most.

    Raises:
        ValueError: see :func:`cape_studies.data.recordings.read`; or there are fewer than 50,
            several sampling rates, durations that are all alike, a transcript that is too long for
            its audio, or one recording in training and in a test.
    """
    found, account = recordings.read(wavs)
    every = [*found.values()]
    rate = recordings.the_one_rate(every)
    if len(every) < LEAST:
        raise ValueError(f"{wavs} has {account}: {LEAST} are needed, at the least")
    parts, names = _split(found)
    train = [*parts["train"].values()]
    words = {word for one in train for word in one.text.split()}
    kind = token_type or ("word" if len(words) <= WORDS else "char")
    lengths = [len(one.text.split() if kind == "word" else one.text) for one in every]
    complain(
        wavs,
        (
            f"{one.path} lasts {one.seconds:.2f} s, and its transcript has {length} {kind}s: CTC "
            f"writes one in {1000 * frame:g} ms at the most"
            for one, length in zip(every, lengths, strict=True)
            if length * frame > one.seconds
        ),
    )
    known = {_digest(one.path): one.path for one in train}
    tested = [one.path for name in names for one in parts[name].values()]
    same = ((path, known.get(_digest(path))) for path in tested)
    complain(
        wavs, (f"{a} of a test is the same recording as {b} of training" for a, b in same if b)
    )
    for name, part in parts.items():
        for key, one in part.items():
            link = out.absolute() / name / f"{key}{one.path.suffix}"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(one.path.resolve())
            part[key] = one._replace(path=link)
    recordings.write(out, parts, kind)
    read = read_2columns_text(out / "train" / "wav.scp")  # as ESPnet does
    seconds = sum(found[key].seconds for key in read)
    bins = batch_bins or SECONDS * rate
    each = seconds * rate / bins  # updates of a pass
    updates = round(epochs * each) if epochs else max(UPDATES, round(10 * each))
    iters = num_iters_per_epoch or max(1, min(EPOCH, updates))
    rounds = max_epoch or max(1, round(updates / iters))
    updates = rounds * iters
    held = ", ".join(f"{len(parts[name])} of {words}" for name, words in names.items())
    spare = len(every) - sum(map(len, parts.values()))
    more = f". {spare:,} recordings are left out: a test has enough" if spare else ""
    facts.write(
        out,
        found=(
            f"{account} at {rate} Hz, {sum(one.seconds for one in every) / 3600:.1f} hours; "
            f"{len(read):,} ({seconds / 3600:.1f} hours) to train on, of "
            f"{median(one.seconds for one in train):.1f} s in the median, and "
            f"{len(parts['valid'])} to choose checkpoints. To test: {held}. The longest fifth was "
            f"held out of training. Tokens are {kind}s; trained for {updates:,} updates, about "
            f"{updates / each:.3g} epochs{more}"
        ),
        train_recordings=len(read),
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
        epochs=round(updates / each, 2),
        # ± seconds: positions of twice the longest that is trained on
        max_global_shift=round(max(one.seconds for one in train) / 2, 1),
        tests=[f"{words}={out.absolute() / name}" for name, words in names.items()],
        within=names["test"],
    )


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def _split(found: dict[str, Utterance]) -> tuple[dict[str, dict[str, Utterance]], dict[str, str]]:
    """Parts by name, and the tests' names in reports."""
    seconds = {key: one.seconds for key, one in found.items()}
    shown = "{:.1f}–{:.1f} s".format
    short, beyond, limit = short_and_long([*found], seconds.__getitem__, str, shown)
    test, rest = apart(short, str)
    valid, train = apart(rest, str)
    keys = {"train": train, "valid": valid, "test": test}
    names = {"test": f"up to {limit:.1f} s"}
    for i, (words, part) in enumerate(beyond.items(), 1):
        keys[f"test{i}"], names[f"test{i}"] = part, words
    return {name: {key: found[key] for key in part} for name, part in keys.items()}, names


if __name__ == "__main__":
    facts.command(prepare)
