"""Two-tone pages in noise, laid out for ESPnet: the order of a page's two tones is its number.

    python studies/data/make_tones.py --out tones --train 9000

The pagers of fire brigades were called like this (two-tone sequential paging). Recordings are at
8 kHz. They last 1 to 3 s for training and validation, and up to 24 s for testing. The silence
between two tones is longer than what the encoder's convolution sees, so only positions tell which
tone came first. Writes <out>/<set>/wav.scp and text, and <out>/tokens.txt.
"""

from itertools import permutations
from pathlib import Path

import numpy as np
import soundfile

from cape_studies.command import script
from cape_studies.data.text import write_lines

RATE = 8000  # Hz
TONES = (600.0, 800.0, 1060.0, 1410.0)  # Hz
PAGES = ["".join(pair) for pair in permutations("1234", 2)]
TONE_SECONDS = (0.10, 0.16)
GAP_SECONDS = (0.12, 0.18)  # between the tones of a page
PAUSE_SECONDS = (0.24, 0.40)  # between pages
LEVEL_DECIBEL = (-3.0, 3.0)  # of tones; at 0 a tone is as loud as the noise
TESTS = {(1, 3): 200, (3, 6): 90, (6, 12): 45, (12, 24): 22}  # seconds: recordings


def main(out: Path, train: int = 9000, valid: int = 60, seed: int = 0) -> None:
    """Write all sets.

    Args:
        out: folder to write.
        train: recordings.
        valid: recordings.
        seed: of all recordings.
    """
    sets = {"train": ((1, 3), train), "valid": ((1, 3), valid)}
    sets |= {f"test_{low}-{high}": ((low, high), count) for (low, high), count in TESTS.items()}
    for number, (name, (seconds, count)) in enumerate(sets.items()):
        folder = out.resolve() / name
        (folder / "wav").mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng((seed, number))
        scp, text = [], []
        for index in range(count):
            samples, pages = call(random, random.uniform(*seconds))
            path = folder / "wav" / f"{name}_{index:05d}.wav"
            soundfile.write(path, samples, RATE, subtype="PCM_16")
            scp.append(f"{path.stem} {path}")
            text.append(f"{path.stem} {' '.join(pages)}")
        write_lines(folder / "wav.scp", scp)
        write_lines(folder / "text", text)
    write_lines(out / "tokens.txt", ["<blank>", "<unk>", *PAGES, "<sos/eos>"])


def call(random: np.random.Generator, seconds: float) -> tuple[np.ndarray, list[str]]:
    """One recording of about ``seconds``: samples in [-1, 1], and the pages in it."""
    pieces = [silence(random, PAUSE_SECONDS)]
    pages: list[str] = []
    while sum(map(len, pieces)) < seconds * RATE:
        pages.append(str(random.choice(PAGES)))
        first, second = (tone(random, TONES[int(digit) - 1]) for digit in pages[-1])
        pieces += [first, silence(random, GAP_SECONDS), second, silence(random, PAUSE_SECONDS)]
    clean = np.concatenate(pieces)
    samples = clean + random.standard_normal(len(clean), np.float32)
    return samples * (0.9 / np.abs(samples).max()), pages


def tone(random: np.random.Generator, hertz: float) -> np.ndarray:
    """A tone of random length and level."""
    time = np.arange(int(random.uniform(*TONE_SECONDS) * RATE)) / RATE
    phase = random.uniform(0, 2 * np.pi)
    level = 10 ** (random.uniform(*LEVEL_DECIBEL) / 20)
    return level * np.sqrt(2) * np.sin(2 * np.pi * hertz * time + phase)


def silence(random: np.random.Generator, seconds: tuple[float, float]) -> np.ndarray:
    """Silence of random length."""
    return np.zeros(int(random.uniform(*seconds) * RATE))


if __name__ == "__main__":
    script(main)
