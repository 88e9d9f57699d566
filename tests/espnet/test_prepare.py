"""integrations/espnet: WAV files → wav.scp, text and tokens; spoken digits joined."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cape_studies")

import soundfile

ROOT = Path(__file__).resolve().parents[2]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "studies" / "data")
    patch.syspath_prepend(ROOT / "integrations" / "espnet")
    import make_digits as digits
    import prepare_wavs

RATE, WORDS = digits.RATE, digits.WORDS


def write(folder: Path, name: str, text: str | None, rate: int = RATE, samples=None, **kwargs):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    samples = 0.1 * np.sin(np.arange(400)) if samples is None else samples
    soundfile.write(folder / f"{name}.wav", samples, rate, **kwargs)
    if text is not None:
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


# --- any WAV files


def prepare(folder: Path, *splits: tuple, token_type: str = "char") -> None:
    """prepare_wavs.py into ``folder / "data"``; a split is a name, a folder, maybe transcripts."""
    words = ["prepare_wavs.py", "--out", folder / "data", "--token-type", token_type]
    for split in splits:
        words += ["--split", *split]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(word) for word in words])
        prepare_wavs.main()


def text_of(folder: Path, split: str) -> str:
    return (folder / "data" / split / "text").read_bytes().decode()


def test_a_folder_with_transcripts_beside_becomes_espnets_files(tmp_path):
    write(tmp_path / "wavs" / "ann", "b", "Größe  zwei\n")
    write(tmp_path / "wavs", "a", "eins")
    prepare(tmp_path, ("train", tmp_path / "wavs"))
    train = tmp_path / "data" / "train"
    scp = f"a {tmp_path}/wavs/a.wav\nann/b {tmp_path}/wavs/ann/b.wav\n"
    assert (train / "wav.scp").read_text() == scp
    assert (train / "text").read_text(encoding="utf-8") == "a eins\nann/b Größe zwei\n"
    tokens = (tmp_path / "data" / "tokens.txt").read_text(encoding="utf-8").splitlines()
    assert tokens[:2] == ["<blank>", "<unk>"]
    assert tokens[-1] == "<sos/eos>"
    assert set(tokens[2:-1]) == set("einsGrößezwei") | {"<space>"}
    assert tokens[2] == "e"  # the most frequent


def test_one_file_of_transcripts_serves_several_splits_and_names_with_their_folder_or_without(
    tmp_path,
):
    for name in ("train/ann/001", "train/bob/001", "train/bob/New 2", "test/u\u0308"):
        write(tmp_path, name, None)
    lines = "ann/001.wav\tup  and\nbob/001\tdown\nNew 2.wav\tup\nü.wav\tdown\r\n"
    table = tmp_path / "all.tsv"
    table.write_bytes(f"\ufeff{lines}".encode())  # from Windows; "ü" was written on macOS
    splits = [(name, tmp_path / name, table) for name in ("train", "test")]
    prepare(tmp_path, *splits, token_type="word")
    assert text_of(tmp_path, "train") == "ann/001 up and\nbob/001 down\nbob/New_2 up\n"
    assert text_of(tmp_path, "test") == "u\u0308 down\n"
    tokens = (tmp_path / "data" / "tokens.txt").read_text().split()
    assert tokens == ["<blank>", "<unk>", "up", "and", "down", "<sos/eos>"]


def test_transcripts_of_any_system_become_clean_text_and_a_letter_one_token(tmp_path, capsys):
    """From Windows with a mark and other ends of lines; é as one character or, from macOS, two."""
    for name, text in (("a", "\ufeffé zwei\r\n"), ("b", "e\u0301 <unk>\r")):
        write(tmp_path / "wavs", name, None)
        (tmp_path / "wavs" / f"{name}.txt").write_bytes(text.encode())
    prepare(tmp_path, ("train", tmp_path / "wavs"), token_type="word")
    told = capsys.readouterr().out
    assert "1 transcripts brought to Unicode's NFC" in told
    assert "set fs: 8000, win_length: 200 (25 ms), hop_length: 80 (10 ms)" in told
    assert text_of(tmp_path, "train") == "a é zwei\nb é <unk>\n"
    tokens = (tmp_path / "data" / "tokens.txt").read_text("utf-8").split()
    assert tokens == ["<blank>", "<unk>", "é", "zwei", "<sos/eos>"]


def twice(folder):
    """A transcript of one name, and two files of it."""
    (folder / "bob").mkdir()
    (folder / "a.wav").rename(folder / "bob" / "a.wav")
    write(folder / "ann", "a", None)
    (folder / "all.tsv").write_text("a\tone\n")


@pytest.mark.parametrize(
    ("spoil", "table", "named"),
    [
        (lambda of: write(of, "b", "two", rate=16000), False, "b.wav at 16000 Hz"),
        (
            lambda of: write(of, "b", "two", samples=np.full(9, np.nan), subtype="FLOAT"),
            False,
            "b.wav has samples .* NaN",
        ),
        (lambda of: (write(of, "b c", "1"), write(of, "b_c", "2")), False, "have the same name"),
        (lambda of: (of / "a.wav").unlink(), False, "no WAV or FLAC file in"),
        (lambda of: shutil.rmtree(of), False, "wavs"),
        (lambda of: (of / "all.tsv").write_text("a one", "utf-16"), True, "all.tsv is not UTF-8"),
        (twice, True, "a.wav has no transcript: looked in .*all.tsv"),
    ],
)
def test_a_fault_is_named_and_nothing_is_written(tmp_path, capsys, spoil, table, named):
    """Others of recordings: studies/tests/ask/test_recordings.py, which are read alike."""
    folder = tmp_path / "wavs"
    write(folder, "a", "one")
    spoil(folder)
    with pytest.raises(SystemExit) as stop:
        prepare(tmp_path, ("train", folder, *([folder / "all.tsv"] if table else [])))
    assert stop.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(named, line)
    assert not (tmp_path / "data").exists()


def test_what_is_there_is_kept(tmp_path, capsys):
    split = ("train", tmp_path / "wavs")
    write(tmp_path / "wavs", "a", "one")
    prepare(tmp_path, split)
    for splits in ([split], 2 * [("test", split[1])], [("test",)]):
        with pytest.raises(SystemExit):
            prepare(tmp_path, *splits)
        assert splits[0][0] in capsys.readouterr().err


# --- spoken digits


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> Path:
    """All of two speakers; the amplitude in % tells the index: 1, 2, …, and + 0.4 tells bob."""
    folder = tmp_path_factory.mktemp("recordings")
    for index in range(50):
        for speaker, more in (("ann", 0.0), ("bob", 0.4)):
            first = folder / f"0_{speaker}_{index}.wav"
            soundfile.write(first, np.full(40, (index + 1 + more) / 100), RATE)
            for digit in range(1, 10):
                (folder / f"{digit}_{speaker}_{index}.wav").symlink_to(first)
    return folder


def heard(out: Path) -> dict[str, list[tuple[list[int], set[bool]]]]:
    """set → for each utterance the indices of its samples, and whether they are bob's."""
    found: dict[str, list] = {}
    for part in (out / "wav").iterdir():
        for path in sorted(part.glob("*.wav")):
            samples, rate = soundfile.read(path)
            assert rate == RATE
            percent = 100 * samples[samples > 0] + 0.1
            indices = (percent // 1).astype(int) - 1
            found.setdefault(part.name, []).append((indices.tolist(), set(percent % 1 > 0.3)))
    return found


@pytest.fixture
def few(monkeypatch):
    """Fewer utterances for testing, and no noise."""
    for name, value in dict(TESTS={(3, 6): 20, (30, 40): 3}, SHORT={(1, 2): 20}).items():
        monkeypatch.setattr(digits, name, value)
    monkeypatch.setattr(digits, "VALID", 20)
    monkeypatch.setattr(digits, "NOISE", 0.0)


def test_digits_are_joined_from_the_recordings_of_each_part(recordings, few, tmp_path):
    digits.main(recordings, tmp_path / "one", train=40)
    indices = {
        name: {index for inside, _ in utterances for index in inside}
        for name, utterances in heard(tmp_path / "one").items()
    }
    assert indices.pop("train") <= set(range(10, 50))
    tested, validated = set(range(5)), set(range(5, 10))
    assert indices.pop("test_1-2") <= tested
    assert indices == {
        "test_3-6": tested, "test_30-40": tested, "valid": validated, "valid_30-40": validated
    }  # fmt: skip
    data = tmp_path / "one" / "data"
    for name, utterances in heard(tmp_path / "one").items():
        scp = [line.split()[0] for line in (data / name / "wav.scp").read_text().splitlines()]
        text = [line.split() for line in (data / name / "text").read_text().splitlines()]
        least, most = {"test_1-2": (1, 2)}.get(name, (30, 40) if "30-40" in name else (3, 6))
        assert [key for key, *_ in text] == scp
        for (_, *words), (inside, speakers) in zip(text, utterances, strict=True):
            assert least <= len(words) <= most
            assert (len(inside), len(speakers)) == (40 * len(words), 1)
    tokens = (data / "tokens.txt").read_text().split()
    assert sorted(tokens[2:-1]) == sorted(WORDS)

    digits.main(recordings, tmp_path / "two", train=40)
    for path in (tmp_path / "two" / "wav").rglob("*.wav"):
        first = tmp_path / "one" / path.relative_to(tmp_path / "two")
        assert path.read_bytes() == first.read_bytes()


def test_an_unheard_speaker_is_in_test_sets_of_their_own_alone(recordings, few, tmp_path):
    digits.main(recordings, tmp_path / "out", train=40, unheard="bob")
    for name, utterances in heard(tmp_path / "out").items():
        assert {bob for _, of in utterances for bob in of} == {name.startswith("unheard")}
    assert (tmp_path / "out" / "data" / "unheard_3-6" / "wav.scp").is_file()
    with pytest.raises(ValueError, match="eve"):
        digits.main(recordings, tmp_path / "x", unheard="eve")
    (tmp_path / "fewer").mkdir()
    for path in recordings.iterdir():
        if path.name != "7_bob_23.wav":
            (tmp_path / "fewer" / path.name).symlink_to(path)
    with pytest.raises(ValueError, match=r"7_bob_23\.wav"):
        digits.main(tmp_path / "fewer", tmp_path / "y")
