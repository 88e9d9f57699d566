"""Small data of a user, in the folder ``mine``."""

import random

import numpy as np
import pytest
import soundfile
from PIL import Image


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


@pytest.fixture
def picture():
    """A number → an image of noise."""

    def draw(number: int) -> Image.Image:
        pixels = np.random.default_rng(number).integers(0, 256, (24, 24, 3), dtype=np.uint8)
        return Image.fromarray(pixels)

    return draw


@pytest.fixture
def classes(folder, picture):
    """Three classes of ten images."""
    for number in range(30):
        path = folder / "abc"[number % 3] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        picture(number).save(path)
    return folder


@pytest.fixture
def text(folder):
    """200 pairs of 2 to 21 words."""
    draw = random.Random(0)
    words = ["ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]
    lines = [f"{' '.join(draw.choices(words, k=1 + number % 20))} .\n" for number in range(200)]
    (folder / "train.de").write_text("".join(lines), encoding="utf-8")
    (folder / "train.en").write_text("".join(lines).upper(), encoding="utf-8")
    return folder


@pytest.fixture
def documents(folder):
    """60 texts of 20 to 1,200 words."""
    draw = random.Random(0)
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    for number in range(60):
        text = " ".join(draw.choices(words, k=20 * (number + 1)))
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def wavs(folder):
    """60 recordings of 0.5 to 3.5 s, every tenth in FLAC."""
    for number in range(60):
        sound = np.random.default_rng(number).normal(0, 0.1, 4000 + 400 * number)
        path = folder / f"u{number:02}{'.flac' if number % 10 == 0 else '.wav'}"
        soundfile.write(path, sound, 8000)
        path.with_suffix(".txt").write_text(f"word {number}")
    return folder
