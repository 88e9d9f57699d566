"""A user's sentences and recordings: the longest held out, and each fault by name."""

import random

import numpy as np
import pytest
import soundfile

from cape_studies.ask import recordings, sentences
from cape_studies.ask.held_out import short_and_long

WORDS = ["ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]


@pytest.fixture
def text(tmp_path):
    """200 pairs of 1 to 20 words."""
    draw, pairs = random.Random(0), []
    for number in range(200):
        line = " ".join(draw.choices(WORDS, k=1 + number % 20))
        pairs.append((f"{line} .", f"{line.upper()} ."))
    for side, language in enumerate(("de", "en")):
        lines = "".join(f"{pair[side]}\n" for pair in pairs)
        (tmp_path / f"train.{language}").write_text(lines, encoding="utf-8")
    return tmp_path


@pytest.fixture
def wavs(tmp_path):
    """60 recordings of 0.5 to 3.5 s, every tenth in FLAC."""
    tmp_path = tmp_path / "mine"
    tmp_path.mkdir()
    for number in range(60):
        sound = np.random.default_rng(number).normal(0, 0.1, 4000 + 400 * number)
        path = tmp_path / f"u{number:02}{'.flac' if number % 10 == 0 else '.wav'}"
        soundfile.write(path, sound, 8000)
        path.with_suffix(".txt").write_text(f"word {number}")
    return tmp_path


def test_the_longest_fifth_is_in_bins_of_equal_counts_and_stays_out_of_training():
    lengths = list(range(1, 101))
    short, bins, limit = short_and_long(lengths, list(map(str, lengths)), "{:g}-{:g}".format)
    assert limit == 80
    assert short == list(range(80))
    assert [one.name for one in bins] == ["81-87", "88-93", "94-100"]
    assert sorted(i for one in bins for i in one.items) == list(range(80, 100))


def test_lengths_that_are_alike_are_refused():
    with pytest.raises(ValueError, match="0 of 30 are longer than 7"):
        short_and_long([7] * 30, list(map(str, range(30))), "{:g}-{:g}".format)


def test_sentences_are_in_one_part_each_and_the_long_ones_in_the_tests(text):
    found = sentences.look(text, "en")
    assert found.languages == ("en", "de")
    parts = [found.train, *found.tests.values()]
    assert len({pair for part in parts for pair in part}) == sum(map(len, parts))
    ranges = [{len(pair[0].split()) for pair in part} for part in parts]
    assert [max(one) for one in ranges] == [18, 18, 19, 20, 21]
    assert ranges[2:] == [{19}, {20}, {21}]
    assert found.tests == sentences.look(text, "en").tests


def test_binarised_sentences_are_named_after_their_lengths(text):
    pytest.importorskip("fairseq")
    out = text / "out"
    sentences.prepare(text, out, "de")
    names = {path.name.split(".")[0] for path in (out / "bin").glob("*.de-en.de.bin")}
    assert names == {"train", *sentences.look(text, "de").tests}
    assert "dict.de.txt" in {path.name for path in (out / "bin").iterdir()}


def lines(path, change):
    path.write_text("\n".join(change(path.read_text("utf-8").splitlines())) + "\n", "utf-8")


def drop_a_line(folder):
    lines(folder / "train.en", lambda of: of[:-1])
    return r"train\.\* must be pairs of lines and have \[200, 199\]"


def empty_a_line(folder):
    lines(folder / "train.en", lambda of: [*of[:4], " ", *of[5:]])
    return "train.en line 5 is empty"


def test_a_line(folder):
    for language in ("de", "en"):
        of = (folder / f"train.{language}").read_text("utf-8").splitlines()
        (folder / f"test.{language}").write_text(f"neu\n{of[7]}\n", "utf-8")
    return r"test\.de line 2 stands in training"


test_a_line.__test__ = False


def bring_one_side(folder):
    (folder / "test.de").write_text("neu\n")
    return "test.en is missing"


def three_languages(folder):
    (folder / "train.fr").write_text("un\n")
    return r"train\.de, train\.en, train\.fr"


@pytest.mark.parametrize(
    "spoil", [drop_a_line, empty_a_line, test_a_line, bring_one_side, three_languages]
)
def test_a_fault_of_text_is_named_with_its_file(text, spoil):
    named = spoil(text)
    with pytest.raises(ValueError, match=named):
        sentences.look(text)


def test_recordings_are_in_one_part_each_and_flac_is_taken(wavs):
    recordings.prepare(wavs, out := wavs.parent / "out")
    found = {
        name: {path.stem for path in (out / name).glob("*.wav")}
        for name in ("train", "valid", "test", "test1", "test2", "test3")
    }
    assert sum(map(len, found.values())) == len(set().union(*found.values())) == 60
    assert set().union(*(found[f"test{i}"] for i in (1, 2, 3))) == {f"u{i}" for i in range(48, 60)}
    of = recordings.look(wavs)
    assert of.rate == 8000
    assert list(of.names.values())[1:] == ["2.9–3.0 s", "3.1–3.2 s", "3.3–3.5 s"]


def no_transcript(folder):
    (folder / "u03.txt").unlink()
    return r"u03\.txt is missing"


def empty_transcript(folder):
    (folder / "u04.txt").write_text(" \n")
    return r"u04\.txt is an empty transcript"


def another_rate(folder):
    soundfile.write(folder / "u05.wav", np.zeros(16000), 16000)
    return r"u05\.wav at 16000 Hz"


def no_audio(folder):
    (folder / "u06.wav").write_bytes(b"RIFF")
    return r"u06\.wav cannot be read as audio"


def no_sound(folder):
    soundfile.write(folder / "u07.wav", np.zeros(0), 8000)
    return r"u07\.wav is empty"


def one_name_twice(folder):
    (folder / "more").mkdir()
    for suffix in ("wav", "txt"):
        (folder / "more" / f"u08.{suffix}").write_bytes((folder / f"u08.{suffix}").read_bytes())
    return r"u08\.wav have one name"


@pytest.mark.parametrize(
    "spoil",
    [no_transcript, empty_transcript, another_rate, no_audio, no_sound, one_name_twice],
)
def test_a_fault_of_recordings_is_named_with_its_file(wavs, spoil):
    named = spoil(wavs)
    with pytest.raises(ValueError, match=named):
        recordings.look(wavs)
