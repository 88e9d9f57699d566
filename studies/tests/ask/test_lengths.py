"""A user's sentences and recordings: the longest held out, and each fault by name."""

import numpy as np
import pytest
import soundfile

from cape_studies.ask import recordings, sentences
from cape_studies.ask.held_out import short_and_long


def test_the_longest_fifth_is_in_bins_of_equal_counts_and_stays_out_of_training():
    lengths = list(range(1, 101))
    short, bins, limit = short_and_long(lengths, float, str, "{:g}-{:g}".format)
    assert limit == 80
    assert short == list(range(1, 81))
    assert list(bins) == ["81-87", "88-93", "94-100"]
    assert sorted(one for inside in bins.values() for one in inside) == list(range(81, 101))


def test_lengths_that_are_alike_are_refused():
    with pytest.raises(ValueError, match="0 of 30 are longer than 7"):
        short_and_long([7] * 30, float, str, "{:g}-{:g}".format)


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


def in_lines(folder, place, line):
    """Another line, or none, in the place of one of train.en."""
    lines = (folder / "train.en").read_text("utf-8").splitlines(keepends=True)
    lines[place] = line
    (folder / "train.en").write_text("".join(lines), "utf-8")


def bring(folder, languages, line):
    """A test of two lines, of which the second is one of training."""
    for language in languages:
        known = (folder / f"train.{language}").read_text("utf-8").splitlines()[line]
        (folder / f"test.{language}").write_text(f"neu\n{known}\n", "utf-8")


def encoded(path, encoding):
    path.write_bytes(path.read_text("utf-8").encode(encoding))


def test_sentences_from_windows_are_those_without_marks_and_carriage_returns(text):
    found = sentences.look(text)
    for path in text.glob("train.*"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert sentences.look(text) == found


def test_recordings_transcripts_from_windows_are_those_without_marks(wavs):
    found = [[one.text for one in part] for part in recordings.look(wavs).parts.values()]
    for path in [*wavs.glob("*.txt")]:
        path.with_suffix(".TXT").write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b"\r\n")
        path.unlink()
    assert [[one.text for one in part] for part in recordings.look(wavs).parts.values()] == found


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda of: in_lines(of, 199, ""), r"train\.\* must be .* but have \[200, 199\] lines"),
        (lambda of: in_lines(of, 4, " \n"), "train.en line 5 is empty"),
        (lambda of: bring(of, ["de", "en"], 7), r"test\.de line 2 stands in training"),
        (lambda of: bring(of, ["de"], 7), "test.en is missing"),
        (lambda of: (of / "train.fr").write_text("un\n"), r"train\.de, train\.en, train\.fr"),
        (lambda of: encoded(of / "train.de", "utf-16"), r"train\.de is UTF-16"),
        (lambda of: encoded(of / "train.de", "latin-1"), r"train\.de is not UTF-8: line \d+, byte"),
    ],
)
def test_a_fault_of_text_is_named_with_its_file(text, spoil, named):
    spoil(text)
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


def one_name_twice(folder):
    (folder / "more").mkdir()
    for name in ("u08.wav", "u08.txt"):
        (folder / "more" / name).write_bytes((folder / name).read_bytes())


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda of: (of / "u03.txt").unlink(), r"u03\.txt is missing"),
        (lambda of: (of / "u04.txt").write_text(" \n"), r"u04\.txt is an empty transcript"),
        (
            lambda of: (of / "u04.txt").write_bytes(b"\xe9"),
            r"u04\.txt is not UTF-8: line 1, byte 1",
        ),
        (lambda of: encoded(of / "u04.txt", "utf-16"), r"u04\.txt is UTF-16"),
        (lambda of: soundfile.write(of / "u05.wav", np.zeros(99), 16000), r"u05\.wav at 16000 Hz"),
        (lambda of: (of / "u06.wav").write_bytes(b"RIFF"), r"u06\.wav cannot be read as audio"),
        (lambda of: soundfile.write(of / "u07.wav", np.zeros(0), 8000), r"u07\.wav is empty"),
        (one_name_twice, r"u08\.wav have one name"),
    ],
)
def test_a_fault_of_recordings_is_named_with_its_file(wavs, spoil, named):
    spoil(wavs)
    with pytest.raises(ValueError, match=named):
        recordings.look(wavs)


def test_fifty_recordings_are_enough_and_fewer_are_refused(wavs):
    for number in range(50, 60):
        next(wavs.glob(f"u{number}.[wf]*")).unlink()
    recordings.look(wavs)
    (wavs / "u49.wav").unlink()
    with pytest.raises(ValueError, match="has 49 WAV or FLAC files: 50 are needed"):
        recordings.look(wavs)
