"""integrations/espnet: WAV files → wav.scp, text and tokens; spoken digits joined."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("espnet2")
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


@pytest.fixture
def refused(tmp_path, capsys):
    """A split → the line with which it is refused; nothing is written."""

    def call(*split) -> str:
        with pytest.raises(SystemExit) as stop:
            prepare(tmp_path, ("train", *split))
        assert stop.value.code == 1
        assert not (tmp_path / "data").exists()
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return call


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


@pytest.mark.parametrize("separator", ["\t", " "])
def test_one_file_of_transcripts_serves_several_splits(tmp_path, separator):
    lines = []
    for split in ("train", "test"):
        for index in range(2):
            write(tmp_path / split, f"{split}{index}", None)
            ending = ".wav" if index else ""
            lines.append(f"{split}{index}{ending}{separator}up  and down")
    table = tmp_path / "all.tsv"
    table.write_text("\n".join(lines))
    splits = [(name, tmp_path / name, table) for name in ("train", "test")]
    prepare(tmp_path, *splits, token_type="word")
    text = (tmp_path / "data" / "test" / "text").read_text()
    assert text == "test0 up and down\ntest1 up and down\n"
    tokens = (tmp_path / "data" / "tokens.txt").read_text().split()
    assert tokens == ["<blank>", "<unk>", "up", "and", "down", "<sos/eos>"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(rate=16000), "bad.wav at 16000 Hz"),
        (dict(samples=np.zeros(0)), "bad.wav is empty"),
        (dict(samples=np.full(9, np.nan), subtype="FLOAT"), "bad.wav has samples .* NaN"),
        (dict(samples=np.zeros((9, 2))), "bad.wav has 2 channels, allowed is 1"),
        (dict(text=None), "bad.wav has no transcript: looked in .*bad.txt"),
        (dict(text=" \n"), "bad.wav has no transcript: looked in .*bad.txt"),
        (dict(name="a good"), r"a good.wav and .*a_good.wav have the same name"),
        ("this is no audio", "bad.wav cannot be read as audio"),
    ],
)
def test_bad_files_are_named_and_nothing_is_written(tmp_path, refused, change, says):
    folder = tmp_path / "wavs"
    write(folder, "a_good", "one")
    if isinstance(change, str):
        (folder / "bad.wav").write_text(change)
        (folder / "bad.txt").write_text("two")
    else:
        write(folder, **{"name": "bad", "text": "two", **change})
    assert re.search(says, refused(folder))


def test_folders_without_audio_and_files_of_another_kind_are_named(tmp_path, refused):
    (tmp_path / "none").mkdir()
    assert "no WAV or FLAC file in" in refused(tmp_path / "none")
    assert "no_folder" in refused(tmp_path / "no_folder")
    folder = tmp_path / "wavs"
    write(folder, "a", None)
    (folder / "a.txt").write_text("Größe", encoding="latin-1")
    assert "a.txt is not UTF-8" in refused(folder)
    (tmp_path / "all.tsv").write_text("a eins\n", encoding="utf-16")
    assert "all.tsv is not UTF-8" in refused(folder, tmp_path / "all.tsv")
    (folder / "a.txt").write_text("one")
    noise = np.random.default_rng(0).normal(0, 0.1, 8 * RATE)
    soundfile.write(folder / "b.flac", noise, RATE)
    (folder / "b.flac").write_bytes((folder / "b.flac").read_bytes()[:20_000])
    (folder / "b.txt").write_text("two")
    assert "b.flac" in refused(folder)


def test_text_of_any_system_becomes_clean_text_and_a_letter_one_token(tmp_path, capsys):
    """From Windows with a mark and other ends of lines; é as one character or, from macOS, two."""
    for name, text in (("a", "\ufeffé zwei\r\n"), ("b c", "e\u0301 <unk>\r")):
        write(tmp_path / "wavs", name, None)
        (tmp_path / "wavs" / f"{name}.txt").write_bytes(text.encode())
    prepare(tmp_path, ("train", tmp_path / "wavs"), token_type="word")
    assert "1 transcripts brought to Unicode's NFC" in capsys.readouterr().out
    text = (tmp_path / "data" / "train" / "text").read_bytes().decode()
    assert text == "a é zwei\nb_c é <unk>\n"
    tokens = (tmp_path / "data" / "tokens.txt").read_text("utf-8").split()
    assert tokens == ["<blank>", "<unk>", "é", "zwei", "<sos/eos>"]


def test_a_table_with_a_mark_hides_no_recording_and_its_names_may_be_composed(tmp_path):
    write(tmp_path / "wavs", "u\u0308", None)  # as macOS writes it
    (tmp_path / "all.tsv").write_bytes("\ufeffü.wav\teins\r\n".encode())
    prepare(tmp_path, ("train", tmp_path / "wavs", tmp_path / "all.tsv"))
    assert (tmp_path / "data" / "train" / "text").read_text("utf-8") == "u\u0308 eins\n"


def test_the_command_says_what_frontend_conf_needs_and_keeps_what_is_there(tmp_path, capsys):
    write(tmp_path / "wavs", "a", "one")
    prepare(tmp_path, ("train", tmp_path / "wavs"))
    told = capsys.readouterr().out
    assert "set fs: 8000, win_length: 200 (25 ms), hop_length: 80 (10 ms)" in told
    for splits in ([("train", tmp_path / "wavs")], 2 * [("test", tmp_path / "wavs")], [("test",)]):
        with pytest.raises(SystemExit) as stop:
            prepare(tmp_path, *splits)
        assert stop.value.code == 1
        assert f"{splits[0][0]}" in capsys.readouterr().err


def listed(tmp_path, *splits, **options):
    """What the lists of the only split have: name → path, and name → words."""
    shutil.rmtree(tmp_path / "data", ignore_errors=True)
    prepare(tmp_path, ("train", *splits), **options)
    lines = [
        (tmp_path / "data" / "train" / name).read_text("utf-8") for name in ("wav.scp", "text")
    ]
    return [dict(line.split(" ", 1) for line in text.splitlines()) for text in lines]


def test_files_are_named_with_their_sub_folder_and_transcripts_with_it_or_without(tmp_path):
    for speaker in ("ann", "bob"):
        write(tmp_path / "wavs" / speaker, "001", f"I am {speaker}")
    write(tmp_path / "wavs" / "bob", "002", "and I")
    scp, text = listed(tmp_path, tmp_path / "wavs")
    assert text == {"ann/001": "I am ann", "bob/001": "I am bob", "bob/002": "and I"}
    assert scp["bob/001"] == f"{tmp_path}/wavs/bob/001.wav"
    table = tmp_path / "all.tsv"
    table.write_text("ann/001.wav\tone\nbob/001\ttwo\n002.wav\tthree\n")
    assert listed(tmp_path, tmp_path / "wavs", table)[1] == {
        "ann/001": "one", "bob/001": "two", "bob/002": "three"
    }  # fmt: skip


def test_a_transcript_of_one_name_is_not_taken_for_two_files(tmp_path, refused):
    for speaker in ("ann", "bob"):
        write(tmp_path / "wavs" / speaker, "001", None)
    (tmp_path / "all.tsv").write_text("001\tone\n")
    told = refused(tmp_path / "wavs", tmp_path / "all.tsv")
    assert re.search(r"001\.wav has no transcript: looked in .*all.tsv", told)


def test_hidden_files_are_left_out_and_folders_behind_links_and_flac_are_read(tmp_path):
    write(tmp_path / "elsewhere", "a", "one")
    write(tmp_path / "wavs", "b", "two")
    (tmp_path / "wavs" / "._b.wav").write_bytes(b"of a Mac")
    soundfile.write(tmp_path / "wavs" / "c.flac", 0.1 * np.sin(np.arange(400)), RATE)
    (tmp_path / "wavs" / "c.txt").write_text("three")
    (tmp_path / "wavs" / "link").symlink_to(tmp_path / "elsewhere")
    assert listed(tmp_path, tmp_path / "wavs")[1] == {
        "link/a": "one", "b": "two", "c": "three"
    }  # fmt: skip


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
