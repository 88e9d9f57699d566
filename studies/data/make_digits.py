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

import argparse
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import soundfile

from cape_studies.data.recordings import Split, prepare
from cape_studies.data.text import write_lines

RATE = 8000  # Hz, of all recordings
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PARTS = {"test": range(5), "valid": range(5, 10), "train": range(10, 50), "unheard": range(50)}


@dataclass(frozen=True)
class Sizes:
    """How much is made.

    Attributes:
        train: utterances of 3 to 6 digits for training.
        valid: utterances of 3 to 6 digits for validation.
        tests: (fewest, most digits of an utterance, utterances) of each test set.
        short: utterances of 1 or 2 digits for testing.
        pause_seconds: before, between and after the digits, uniform.
        noise: amplitude of the noise, where full scale is 1; at 0 pauses are exact zeros.
        seed: of everything that is drawn.
        unheard: a speaker who is in no training set and has test sets of their own.
    """

    train: int = 8000
    valid: int = 150
    tests: Sequence[Sequence[int]] = field(
        # about 900 digits each
        default=((3, 6, 200), (8, 12, 90), (16, 24, 45), (30, 40, 26))
    )
    short: int = 300
    pause_seconds: Sequence[float] = (0.0, 0.2)
    noise: float = 1e-3
    seed: int = 0
    unheard: str | None = None


TRAINED_ON = (3, 6)  # digits


def main() -> None:
    """Make everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recordings", type=Path, required=True, help="folder of the recordings")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--train", type=int, default=Sizes.train, help="training utterances")
    parser.add_argument("--seed", type=int, default=Sizes.seed)
    parser.add_argument("--unheard", metavar="SPEAKER", help="a speaker for sets of their own")
    arguments = parser.parse_args()
    sizes = Sizes(train=arguments.train, seed=arguments.seed, unheard=arguments.unheard)
    try:
        make(arguments.recordings, arguments.out, sizes)
    except ValueError as error:
        parser.exit(1, f"error: {error}\n")


def test_name(fewest: int, most: int) -> str:
    """The name of a test set."""
    return f"test_{fewest}-{most}"


def make(recordings: Path, out: Path, sizes: Sizes) -> None:
    """Write the sets, unless they are there already.

    Args:
        recordings: folder of ``{digit}_{speaker}_{index}.wav``.
        out: folder to write.
        sizes: how much.

    Raises:
        ValueError: recordings are missing or at another rate than 8 kHz, no speaker has the name
            of ``sizes.unheard``, or ``out`` holds sets of other sizes.
    """
    record = out / "digits.json"
    settings = json.loads(json.dumps(asdict(sizes)))
    if record.exists():
        if json.loads(record.read_text()) != settings:
            raise ValueError(f"{out} holds sets made with other settings: choose another folder")
        return
    spoken = load(recordings)
    sets = {"train": (*TRAINED_ON, sizes.train), "valid": (*TRAINED_ON, sizes.valid)}
    sets |= {test_name(fewest, most): (fewest, most, count) for fewest, most, count in sizes.tests}
    alone = {}
    if sizes.unheard is not None:
        if sizes.unheard not in spoken:
            raise ValueError(f"no speaker {sizes.unheard!r}: there is {', '.join(sorted(spoken))}")
        alone = {sizes.unheard: spoken.pop(sizes.unheard)}
        sets |= {f"unheard_{f}-{m}": (f, m, count) for f, m, count in sizes.tests}
    # last, because a set's number is part of its seed
    sets |= {f"valid_{f}-{m}": (f, m, n) for f, m, n in sizes.tests if f > TRAINED_ON[1]}
    tested = ["test", "unheard"] if alone else ["test"]
    sets |= {f"{part}_1-2": (1, 2, sizes.short) for part in tested}
    for number, (name, (fewest, most, count)) in enumerate(sets.items()):
        part = PARTS[name.partition("_")[0]]
        speakers = alone if part is PARTS["unheard"] else spoken
        random = np.random.default_rng((sizes.seed, number))
        folder = out / "wav" / name
        folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for index in range(count):
            samples, words = join(random, speakers, part, random.integers(fewest, most + 1), sizes)
            key = f"{name}_{index:05d}"
            soundfile.write(folder / f"{key}.wav", samples, RATE, subtype="PCM_16")
            lines.append(f"{key} {' '.join(words)}")
        write_lines(folder / "text.txt", lines)
    splits = [Split(name, out / "wav" / name, out / "wav" / name / "text.txt") for name in sets]
    shutil.rmtree(out / "data", ignore_errors=True)  # of a call that was interrupted
    prepare(splits, out / "data", token_type="word")
    record.write_text(json.dumps(settings, indent=2) + "\n")


def load(folder: Path) -> dict[str, dict[int, dict[int, np.ndarray]]]:
    """Speaker → digit → index → samples.

    Raises:
        ValueError: a recording is missing or has another rate.
    """
    spoken: dict[str, dict[int, dict[int, np.ndarray]]] = defaultdict(lambda: defaultdict(dict))
    for path in sorted(folder.glob("[!.]*.wav")):
        match = re.fullmatch(r"(\d)_([a-z]+)_(\d+)", path.stem)
        if match is None:
            raise ValueError(f"{path} is not named digit_speaker_index.wav")
        samples, rate = soundfile.read(path, dtype="float64")
        if rate != RATE:
            raise ValueError(f"{path} is at {rate} Hz, not {RATE}")
        spoken[match[2]][int(match[1])][int(match[3])] = samples
    if not spoken:
        raise ValueError(f"{folder} holds no recordings named digit_speaker_index.wav")
    for speaker, digits in spoken.items():
        for digit in range(10):
            missing = set(range(50)) - digits[digit].keys()
            if missing:
                raise ValueError(f"{folder} lacks {digit}_{speaker}_{min(missing)}.wav")
    return spoken


def join(
    random: np.random.Generator,
    spoken: dict[str, dict[int, dict[int, np.ndarray]]],
    part: range,
    digits: int,
    sizes: Sizes,
) -> tuple[np.ndarray, list[str]]:
    """One utterance: samples in [-1, 1], and its words."""
    speaker = random.choice(sorted(spoken))
    pieces = [pause(random, sizes)]
    words = []
    for digit in random.integers(10, size=digits).tolist():
        pieces += [spoken[speaker][digit][int(random.choice(part))], pause(random, sizes)]
        words.append(WORDS[digit])
    samples = np.concatenate(pieces)
    samples = samples + sizes.noise * random.standard_normal(len(samples))
    return samples.clip(-1, 1), words


def pause(random: np.random.Generator, sizes: Sizes) -> np.ndarray:
    """Silence."""
    return np.zeros(int(random.uniform(*sizes.pause_seconds) * RATE))


if __name__ == "__main__":
    main()
