"""Utterances of several spoken digits, joined from the Free Spoken Digit Dataset.

    python studies/data/make_digits.py --recordings fsdd/recordings --out results/digits

Each utterance is one speaker's digits with short pauses between them, at 8 kHz. Recordings 0–4 of
each speaker and digit are for testing, 5–9 for validation, the others for training. So no recording
is in two of these. valid has utterances as long as those of training; valid_8-12 and so on have
utterances as long as those of the tests. All sets have the same speakers, unless --unheard names
one: that speaker's recordings, all of them, are then in the sets unheard_3-6 and so on alone.

Writes <out>/wav/<set>/*.wav with text.txt. Beside it is what ESPnet reads: <out>/data/<set>/wav.scp
and text, and <out>/data/tokens.txt. A seed gives the same samples each time.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
import soundfile

from cape_studies.command import script
from cape_studies.data import recordings as lists
from cape_studies.data.text import write_lines

RATE = 8000  # Hz, of all recordings
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PARTS = {"test": range(5), "valid": range(5, 10), "train": range(10, 50), "unheard": range(50)}
TRAINED_ON = 3, 6  # digits of an utterance
TESTS = {(3, 6): 200, (8, 12): 90, (16, 24): 45, (30, 40): 26}  # about 900 digits each
SHORT = {(1, 2): 300}
VALID = 150  # utterances
PAUSE_SECONDS = 0.0, 0.2  # before, between and after the digits, uniform
NOISE = 1e-3  # amplitude, where full scale is 1

Spoken = dict[str, dict[tuple[int, int], np.ndarray]]  # speaker → (digit, index) → samples


def main(
    recordings: Path, out: Path, train: int = 8000, seed: int = 0, unheard: str | None = None
) -> None:
    """Write the sets.

    Args:
        recordings: folder of {digit}_{speaker}_{index}.wav.
        out: folder to write.
        train: utterances of 3 to 6 digits for training.
        seed: of everything that is drawn.
        unheard: a speaker who is in no training set and has test sets of their own.

    Raises:
        ValueError: recordings are missing or at another rate than 8 kHz, or no speaker has the name
            of ``unheard``.
    """
    spoken = load(recordings)
    sets = {"train": (TRAINED_ON, train), "valid": (TRAINED_ON, VALID)}
    sets |= named("test", TESTS)
    alone: Spoken = {}
    if unheard:
        if unheard not in spoken:
            raise ValueError(f"no speaker {unheard!r}: there is {', '.join(sorted(spoken))}")
        alone = {unheard: spoken.pop(unheard)}
        sets |= named("unheard", TESTS)
    # last, because a set's number is part of its seed
    sets |= named("valid", {digits: n for digits, n in TESTS.items() if digits != TRAINED_ON})
    sets |= named("test", SHORT) | (named("unheard", SHORT) if alone else {})
    for number, (name, ((fewest, most), count)) in enumerate(sets.items()):
        part = name.partition("_")[0]
        random = np.random.default_rng((seed, number))
        folder = out / "wav" / name
        folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for index in range(count):
            speakers = alone if part == "unheard" else spoken
            samples, words = join(
                random, speakers, PARTS[part], int(random.integers(fewest, most + 1))
            )
            key = f"{name}_{index:05d}"
            soundfile.write(folder / f"{key}.wav", samples, RATE, subtype="PCM_16")
            lines.append(f"{key} {' '.join(words)}")
        write_lines(folder / "text.txt", lines)
    folders = {name: out / "wav" / name for name in sets}
    read = {name: lists.read(one, one / "text.txt")[0] for name, one in folders.items()}
    lists.write(out / "data", read, token_type="word")


def named(part: str, sizes: dict[tuple[int, int], int]) -> dict[str, tuple[tuple[int, int], int]]:
    """Sets by name; each has (fewest, most digits of an utterance) and a number of utterances."""
    return {f"{part}_{few}-{many}": ((few, many), count) for (few, many), count in sizes.items()}


def load(folder: Path) -> Spoken:
    """All recordings.

    Raises:
        ValueError: a recording is missing or has another rate.
    """
    spoken: Spoken = defaultdict(dict)
    for path in sorted(folder.glob("[0-9]_*_*.wav")):
        digit, speaker, index = path.stem.split("_")
        samples, rate = soundfile.read(path, dtype="float64")
        if rate != RATE:
            raise ValueError(f"{path} is at {rate} Hz, not {RATE}")
        spoken[speaker][int(digit), int(index)] = samples
    if not spoken:
        raise ValueError(f"{folder} holds no recordings named digit_speaker_index.wav")
    for speaker, own in spoken.items():
        for digit, index in np.ndindex(10, 50):
            if (digit, index) not in own:
                raise ValueError(f"{folder} lacks {digit}_{speaker}_{index}.wav")
    return spoken


def join(
    random: np.random.Generator, spoken: Spoken, part: range, digits: int
) -> tuple[np.ndarray, list[str]]:
    """One utterance: samples in [-1, 1], and its words."""
    speaker = str(random.choice(sorted(spoken)))
    pieces = [pause(random)]
    words = []
    for digit in random.integers(10, size=digits).tolist():
        pieces += [spoken[speaker][digit, int(random.choice(part))], pause(random)]
        words.append(WORDS[digit])
    samples = np.concatenate(pieces)
    samples = samples + NOISE * random.standard_normal(len(samples))
    return samples.clip(-1, 1), words


def pause(random: np.random.Generator) -> np.ndarray:
    """Silence."""
    return np.zeros(int(random.uniform(*PAUSE_SECONDS) * RATE))


if __name__ == "__main__":
    script(main)
