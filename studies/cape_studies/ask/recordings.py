"""A user's recordings: checked, and the longest held out.

    python -m cape_studies.ask.recordings --wavs DIR --out split

``DIR`` holds WAV or FLAC files at any depth, each with its transcript in a .txt of the same name
beside it. Writes {train,valid,test,test1,…}/ with recordings and transcripts for prepare_wavs.py:
a WAV becomes a link, a FLAC is converted to WAV. ``test`` has the durations of training; test1 to
test3 have the longest fifth, in bins of equal counts.
"""

from pathlib import Path
from statistics import median
from typing import NamedTuple

import soundfile
from cape_plugins.text import read_text, two_forms

from cape_studies.ask.held_out import apart, command, complain, short_and_long
from cape_studies.experiments.hosts import Machine
from cape_studies.experiments.study import Study

SUFFIXES = ".wav", ".flac"
SECONDS = 50  # of a batch
UPDATES = 1500  # of a short training; more, if needed to see each recording ten times
EPOCH = 100  # updates, after which ESPnet validates
WORDS = 100  # the most different words for tokens that are words; with more they are letters


class Recording(NamedTuple):
    """A file, its duration and what is said in it."""

    path: Path
    seconds: float
    text: str


class Recordings(NamedTuple):
    """Parts by name (train, valid, test, test1 …), the tests' names in reports, sampling rate."""

    parts: dict[str, list[Recording]]
    names: dict[str, str]
    rate: int


def look(folder: Path) -> Recordings:
    """The recordings of a folder, with the longest fifth apart.

    Raises:
        ValueError: there are fewer than 50; audio cannot be read or is empty; there are several
            sampling rates; two files have one name; a transcript is missing, empty or not UTF-8; or
            durations are all alike.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    found: list[Recording] = []
    faults: list[str] = []
    rates: dict[int, Path] = {}
    seen: dict[str, Path] = {}
    for path in paths:
        text, fault = _transcript(path)
        faults += [fault] if fault else []
        if path.stem in seen:
            faults.append(f"{path} and {seen[path.stem]} have one name: rename one")
        seen[path.stem] = path
        try:
            about = soundfile.info(path)
        except (OSError, soundfile.LibsndfileError) as error:
            faults.append(f"{path} cannot be read as audio: {error}")
            continue
        if not about.frames:
            faults.append(f"{path} is empty")
        rates.setdefault(about.samplerate, path)
        found.append(Recording(path, about.frames / about.samplerate, text))
    if len(rates) > 1:
        (rate, one), (other, two), *_ = rates.items()
        faults.append(f"{one} is at {rate} Hz, {two} at {other} Hz: bring all to one rate")
    if len(paths) < 50:
        faults.append(f"{folder} has {len(paths)} WAV or FLAC files: 50 are needed, at the least")
    complain(folder, faults)
    shown = "{:.1f}–{:.1f} s".format
    short, beyond, limit = short_and_long(found, lambda one: one.seconds, _name, shown)
    test, rest = apart(short, _name)
    valid, train = apart(rest, _name)
    parts = {"train": train, "valid": valid, "test": test}
    names = {"test": f"up to {limit:.1f} s"}
    for i, (words, part) in enumerate(beyond.items(), 1):
        parts[f"test{i}"] = part
        names[f"test{i}"] = words
    return Recordings(parts, names, next(iter(rates)))


def _transcript(audio: Path) -> tuple[str, str]:
    """A file's transcript with single spaces between words, or "", and its fault, or ""."""
    paths = [audio.with_suffix(suffix) for suffix in (".txt", ".TXT", ".Txt")]
    for path in paths:
        if path.is_file():
            try:
                text = " ".join(read_text(path).split())
            except ValueError as error:
                return "", str(error)
            return text, "" if text else f"{path} is an empty transcript"
    return "", f"{paths[0]} is missing"


def _name(recording: Recording) -> str:
    return recording.path.stem


def settle(study: Study, folder: Path, machine: Machine) -> None:
    """Fill the settings that the study leaves open (null), from the recordings.

    Raises:
        ValueError: see :func:`look`.
    """
    found, options = look(folder), study.options
    train, rate = found.parts["train"], found.rate
    every = [one for part in found.parts.values() for one in part]
    seconds = sum(one.seconds for one in train)
    options["frontend_conf"] = {
        "fs": rate,
        "n_fft": 1 << (rate // 40 - 1).bit_length(),
        "win_length": rate // 40,
        "hop_length": rate // 100,
        "n_mels": 40 if rate < 16000 else 80,
    } | {key: one for key, one in options["frontend_conf"].items() if one is not None}
    words = {word for one in train for word in one.text.split()}
    kind = options["token_type"] or ("word" if len(words) <= WORDS else "char")
    options["token_type"] = kind
    study.prepare["prepared"].options["token-type"] = kind
    study.prepare["stats"].options |= {
        "token_type": kind,
        "frontend_conf": options["frontend_conf"],
    }
    options["batch_bins"] = options["batch_bins"] or SECONDS * rate
    epochs = max(UPDATES, 10 * seconds / SECONDS) / EPOCH
    epochs = options["max_epoch"] or round(epochs)
    each = options["num_iters_per_epoch"] or EPOCH
    options["max_epoch"] = epochs
    options["num_iters_per_epoch"] = each
    options["scheduler_conf"]["total_steps"] = epochs * each
    half = max(one.seconds for one in every) / 2
    if "cape" in study.variants:  # ± seconds: training then sees the positions of the longest test
        conf = study.variants["cape"].options["encoder_conf"]
        conf["max_global_shift"] = conf["max_global_shift"] or round(half, 1)
    study.prepare["prepared"].arguments = [
        word for name in found.parts for word in ("--split", name, f"{{split}}/{name}")
    ]
    study.evaluations["duration"].options["data"] = [
        f"{words}={{prepared}}/{name}" for name, words in found.names.items()
    ]
    study.report.trained_on = [found.names["test"]]
    assert study.answer is not None
    study.answer.chance = 95.0  # WER: empty transcripts have 100
    study.answer.steps = epochs * each
    middle = median(one.seconds for one in train)
    held = ", ".join(f"{len(found.parts[name])} of {found.names[name]}" for name in found.names)
    study.answer.found = (
        f"{len(every):,} recordings at {rate} Hz, {sum(one.seconds for one in every) / 3600:.1f} "
        f"hours; {len(train):,} ({seconds / 3600:.1f} hours) to train on, of {middle:.1f} s in the "
        f"median, and {len(found.parts['valid'])} to choose checkpoints. To test: {held}. The "
        f"longest fifth was held out of training. Tokens are {kind}s; trained for "
        f"{epochs * each:,} updates"
    )
    if told := two_forms(one.text for one in every):
        study.answer.found += f". {told}"


def prepare(wavs: Path, out: Path) -> None:
    """Write the folders of the module's docstring.

    Raises:
        ValueError: see :func:`look`.
    """
    for name, part in look(wavs).parts.items():
        (out / name).mkdir(parents=True)
        for one in part:
            wav = out / name / f"{one.path.stem}.wav"
            if one.path.suffix.lower() == ".wav":
                wav.symlink_to(one.path.resolve())
            else:
                soundfile.write(wav, *soundfile.read(one.path, dtype="int16"))
            wav.with_suffix(".txt").write_text(one.text, encoding="utf-8")


if __name__ == "__main__":
    command(prepare)
