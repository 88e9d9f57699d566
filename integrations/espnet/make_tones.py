"""Telephone keys (DTMF) dialled in noise, as ESPnet wants them.

    python integrations/espnet/make_tones.py --out tones --train 9000

Recordings at 8 kHz: of 1 to 3 s for training and validation, longer ones for testing. Two short
presses of a key take as long as one long press: only a gap, short as it may be and in noise, tells
them apart. Writes <out>/<set>/wav.scp and text, and <out>/tokens.txt.
"""

import argparse
from pathlib import Path

import numpy as np
import soundfile

RATE = 8000  # Hz
ROWS = (697, 770, 852, 941)  # Hz, the lower tone of a key
COLUMNS = (1209, 1336, 1477)  # Hz, the upper
KEYS = {**{str(digit): divmod(digit - 1, 3) for digit in range(1, 10)}, "0": (3, 1)}
TONE_SECONDS = (0.08, 0.30)
GAP_SECONDS = (0.06, 0.24)
REPEATED = 0.4  # the share of keys that repeat the one before
SNR_DECIBEL = -5.0  # of a key at level 0
LEVEL_DECIBEL = (-6.0, 6.0)
TESTS = {(1, 3): 120, (3, 6): 50, (6, 12): 25, (12, 24): 12, (24, 36): 6}  # seconds: recordings


def main() -> None:
    """Write all sets."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--train", type=int, default=9000, help="recordings")
    parser.add_argument("--valid", type=int, default=60, help="recordings")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sets = {"train": ((1, 3), arguments.train), "valid": ((1, 3), arguments.valid)}
    sets |= {f"test_{low}-{high}": ((low, high), count) for (low, high), count in TESTS.items()}
    for number, (name, (seconds, count)) in enumerate(sets.items()):
        folder = arguments.out.resolve() / name
        (folder / "wav").mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng((arguments.seed, number))
        scp, text = [], []
        for index in range(count):
            samples, keys = dial(random, random.uniform(*seconds))
            path = folder / "wav" / f"{name}_{index:05d}.wav"
            soundfile.write(path, samples, RATE, subtype="PCM_16")
            scp.append(f"{path.stem} {path}\n")
            text.append(f"{path.stem} {' '.join(keys)}\n")
        (folder / "wav.scp").write_text("".join(scp))
        (folder / "text").write_text("".join(text))
    tokens = ["<blank>", "<unk>", *sorted(KEYS), "<sos/eos>"]
    (arguments.out / "tokens.txt").write_text("".join(f"{token}\n" for token in tokens))


def dial(random: np.random.Generator, seconds: float) -> tuple[np.ndarray, list[str]]:
    """One recording of about ``seconds``: samples in [-1, 1], and the keys dialled."""
    pieces = [silence(random)]
    keys: list[str] = []
    while sum(map(len, pieces)) < seconds * RATE:
        repeats = bool(keys) and random.random() < REPEATED
        keys.append(keys[-1] if repeats else str(random.integers(10)))
        pieces += [gain(random.uniform(*LEVEL_DECIBEL)) * tone(random, keys[-1]), silence(random)]
    clean = np.concatenate(pieces)
    noise = gain(-SNR_DECIBEL) * random.standard_normal(len(clean), np.float32)
    samples = clean + noise  # a key at level 0 has power 1
    return samples * (0.9 / np.abs(samples).max()), keys


def tone(random: np.random.Generator, key: str) -> np.ndarray:
    """A key pressed for a while."""
    row, column = KEYS[key]
    time = np.arange(int(random.uniform(*TONE_SECONDS) * RATE)) / RATE
    phases = random.uniform(0, 2 * np.pi, 2)
    lower = np.sin(2 * np.pi * ROWS[row] * time + phases[0])
    return lower + np.sin(2 * np.pi * COLUMNS[column] * time + phases[1])


def silence(random: np.random.Generator) -> np.ndarray:
    """Between keys."""
    return np.zeros(int(random.uniform(*GAP_SECONDS) * RATE))


def gain(decibel: float) -> float:
    """Of an amplitude."""
    return 10 ** (decibel / 20)


if __name__ == "__main__":
    main()
