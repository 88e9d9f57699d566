"""integrations/espnet: WAV files → wav.scp, text and tokens; spoken digits joined."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("espnet2")

SCRIPTS = Path(__file__).resolve().parents[2] / "integrations" / "espnet"
RATE = 8000
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@pytest.fixture(scope="module")
def scripts():
    sys.path.insert(0, str(SCRIPTS))
    try:
        import make_digits
        import prepare_wavs
    finally:
        sys.path.remove(str(SCRIPTS))

    class Scripts:
        digits, prepare = make_digits, prepare_wavs

    return Scripts


def write(folder: Path, name: str, text: str | None, rate: int = RATE, samples=None, **kwargs):
    folder.mkdir(parents=True, exist_ok=True)
    samples = np.full(400, 0.1) if samples is None else samples
    soundfile.write(folder / f"{name}.wav", samples, rate, **kwargs)
    if text is not None:
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


# --- any WAV files


def test_a_folder_with_transcripts_beside_becomes_espnets_files(scripts, tmp_path):
    write(tmp_path / "wavs" / "ann", "b", "Größe  zwei\n")
    write(tmp_path / "wavs", "a", "eins")
    split = scripts.prepare.Split("train", tmp_path / "wavs")
    rate = scripts.prepare.prepare([split], tmp_path / "data", token_type="char")
    assert rate == RATE
    written = {
        path.relative_to(tmp_path / "data").as_posix(): path.read_text(encoding="utf-8")
        for path in (tmp_path / "data").rglob("*")
        if path.is_file()
    }
    assert written["train/wav.scp"] == (f"a {tmp_path}/wavs/a.wav\nb {tmp_path}/wavs/ann/b.wav\n")
    assert written["train/text"] == "a eins\nb Größe zwei\n"
    tokens = written["tokens.txt"].splitlines()
    assert tokens[:2] == ["<blank>", "<unk>"]
    assert tokens[-1] == "<sos/eos>"
    assert set(tokens[2:-1]) == set("einsGrößezwei") | {"<space>"}
    assert tokens[2] == "e"  # the most frequent
    assert written.keys() == {"train/wav.scp", "train/text", "tokens.txt"}


@pytest.mark.parametrize("separator", ["\t", " "])
def test_one_file_of_transcripts_serves_several_splits(scripts, tmp_path, separator):
    lines = []
    for split in ("train", "test"):
        for index in range(2):
            write(tmp_path / split, f"{split}{index}", None)
            ending = ".wav" if index else ""
            lines.append(f"{split}{index}{ending}{separator}up  and down")
    table = tmp_path / "all.tsv"
    table.write_text("\n".join(lines))
    splits = [scripts.prepare.Split(name, tmp_path / name, table) for name in ("train", "test")]
    scripts.prepare.prepare(splits, tmp_path / "data", token_type="word")
    text = (tmp_path / "data" / "test" / "text").read_text()
    assert text == "test0 up and down\ntest1 up and down\n"
    tokens = (tmp_path / "data" / "tokens.txt").read_text().split()
    assert tokens == ["<blank>", "<unk>", "up", "and", "down", "<sos/eos>"]


def test_bpe_tokens_are_those_of_the_model_written_beside(scripts, tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    for index, word in enumerate(WORDS):
        write(tmp_path / "wavs", str(index), f"{word} {WORDS[-index]}")
    split = scripts.prepare.Split("train", tmp_path / "wavs")
    scripts.prepare.prepare([split], tmp_path / "data", token_type="bpe", bpe_tokens=25)
    tokens = (tmp_path / "data" / "tokens.txt").read_text(encoding="utf-8").split()
    assert len(tokens) == 25  # <s> and </s> go, <blank> and <sos/eos> come
    model = sentencepiece.SentencePieceProcessor(str(tmp_path / "data" / "bpe.model"))
    assert set(model.encode("seven eight", out_type=str)) <= set(tokens)
    with pytest.raises(ValueError, match="cannot make 5000 tokens"):
        scripts.prepare.prepare([split], tmp_path / "other", token_type="bpe", bpe_tokens=5000)


def test_letters_that_training_lacks_are_warned_of(scripts, tmp_path, caplog):
    for name, text in (("train", "abc"), ("test", "abß")):
        write(tmp_path / name, name, text)
    splits = [scripts.prepare.Split(name, tmp_path / name) for name in ("train", "test")]
    scripts.prepare.prepare(splits, tmp_path / "data", token_type="char")
    assert "test: 1 of its chars are not in train, such as 'ß'" in caplog.text


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("rate", dict(rate=16000), "8000 Hz and .*bad.wav at 16000 Hz"),
        ("empty", dict(samples=np.zeros(0)), "bad.wav is empty"),
        ("nan", dict(samples=np.full(9, np.nan), subtype="FLOAT"), "bad.wav has samples .* NaN"),
        ("stereo", dict(samples=np.zeros((9, 2))), "bad.wav has 2 channels, allowed is 1"),
        ("silent", dict(text=None), "bad.wav has no transcript: looked for bad in .*bad.txt"),
        ("wordless", dict(text=" \n"), "bad.wav has an empty transcript"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_bad_files_are_named_and_nothing_is_written(scripts, tmp_path, name, change, says):
    write(tmp_path / "wavs", "a_good", "one")
    write(tmp_path / "wavs", "bad", **{"text": "two", **change})
    with pytest.raises(ValueError, match=says):
        scripts.prepare.prepare(
            [scripts.prepare.Split("train", tmp_path / "wavs")], tmp_path / "data"
        )
    assert not (tmp_path / "data").exists()


def test_two_files_of_one_name_and_no_audio_at_all_are_refused(scripts, tmp_path):
    write(tmp_path / "wavs" / "ann", "a", "one")
    write(tmp_path / "wavs" / "bob", "a", "one")
    split = scripts.prepare.Split("train", tmp_path / "wavs")
    with pytest.raises(ValueError, match=r"ann/a.wav and .*bob/a.wav have the same name"):
        scripts.prepare.prepare([split], tmp_path / "data")
    (tmp_path / "wavs" / "ann" / "a.wav").write_text("this is no audio")
    (tmp_path / "wavs" / "bob" / "a.wav").unlink()
    with pytest.raises(ValueError, match=r"a.wav cannot be read"):
        scripts.prepare.prepare([split], tmp_path / "data")
    with pytest.raises(ValueError, match="no WAV file in"):
        scripts.prepare.prepare(
            [scripts.prepare.Split("train", tmp_path / "wavs" / "bob")], tmp_path / "data"
        )


def test_the_command_keeps_what_is_there_unless_told(tmp_path):
    write(tmp_path / "wavs", "a", "one")
    command = [sys.executable, str(SCRIPTS / "prepare_wavs.py"), "--out", str(tmp_path / "data")]
    command += ["--split", "train", str(tmp_path / "wavs")]

    def run(*more: str) -> subprocess.CompletedProcess:
        return subprocess.run([*command, *more], capture_output=True, text=True, timeout=120)

    first = run()
    assert first.returncode == 0, first.stderr
    assert "fs: 8000, 25 ms are win_length: 200, 10 ms are hop_length: 80" in first.stdout
    again = run()
    assert again.returncode == 1
    assert "wav.scp exists: choose another folder or give --overwrite" in again.stderr
    assert run("--overwrite").returncode == 0


# --- spoken digits


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> Path:
    """All of two speakers' recordings; the amplitude tells the index: 0.01, 0.02, …"""
    folder = tmp_path_factory.mktemp("recordings")
    for speaker in ("ann", "bob"):
        for digit in range(10):
            for index in range(50):
                samples = np.full(40, (index + 1) / 100)
                soundfile.write(folder / f"{digit}_{speaker}_{index}.wav", samples, RATE)
    return folder


def test_digits_are_joined_from_the_recordings_of_each_part(scripts, recordings, tmp_path):
    tests = ((3, 6, 20), (30, 40, 3))
    sizes = scripts.digits.Sizes(train=40, valid=20, tests=tests, noise=0.0)
    scripts.digits.make(recordings, tmp_path / "one", sizes)
    data = tmp_path / "one" / "data"
    heard = {}
    for name, (least, most) in {
        "train": (3, 6), "valid": (3, 6), "test_3-6": (3, 6), "test_30-40": (30, 40)
    }.items():  # fmt: skip
        scp = dict(line.split() for line in (data / name / "wav.scp").read_text().splitlines())
        text = [line.split() for line in (data / name / "text").read_text().splitlines()]
        assert [key for key, *_ in text] == list(scp)
        for key, *words in text:
            samples, rate = soundfile.read(scp[key])
            assert rate == RATE
            assert least <= len(words) <= most
            indices = np.rint(samples[samples > 0] * 100).astype(int) - 1
            assert len(indices) == 40 * len(words)
            heard.setdefault(name, set()).update(indices.tolist())
    assert heard["train"] <= set(range(10, 50))
    assert heard["valid"] == set(range(5, 10))
    assert heard["test_3-6"] == heard["test_30-40"] == set(range(5))
    tokens = (data / "tokens.txt").read_text().split()
    assert sorted(tokens[2:-1]) == sorted(WORDS)

    scripts.digits.make(recordings, tmp_path / "two", sizes)
    again = (tmp_path / "two" / "wav").rglob("*.wav")
    assert all(
        path.read_bytes() == (tmp_path / "one" / path.relative_to(tmp_path / "two")).read_bytes()
        for path in again
    )
    with pytest.raises(ValueError, match="made with other settings"):
        scripts.digits.make(recordings, tmp_path / "two", scripts.digits.Sizes())


def test_an_unheard_speaker_is_in_test_sets_of_their_own_alone(scripts, recordings, tmp_path):
    loud = tmp_path / "recordings"  # ann's recordings twice as loud as bob's ever are
    loud.mkdir()
    for path in recordings.iterdir():
        samples, rate = soundfile.read(path)
        soundfile.write(loud / path.name, samples * (0.01 if "_bob_" in path.name else 1), rate)
    sizes = scripts.digits.Sizes(train=40, valid=5, tests=((3, 6, 20),), noise=0.0, unheard="bob")
    scripts.digits.make(loud, tmp_path / "out", sizes)
    loudest = {
        part.name: {
            round(soundfile.read(path)[0].max(), 3) > 0.0051
            for path in part.iterdir()
            if path.suffix == ".wav"
        }
        for part in (tmp_path / "out" / "wav").iterdir()
    }
    assert loudest == {"train": {True}, "valid": {True}, "test_3-6": {True}, "unheard_3-6": {False}}
    assert (tmp_path / "out" / "data" / "unheard_3-6" / "wav.scp").is_file()
    with pytest.raises(ValueError, match="no speaker 'eve': there is ann, bob"):
        scripts.digits.make(loud, tmp_path / "x", scripts.digits.Sizes(unheard="eve"))


def test_a_missing_recording_is_named(scripts, recordings, tmp_path):
    folder = tmp_path / "recordings"
    folder.mkdir()
    for path in recordings.iterdir():
        if path.name != "7_bob_23.wav":
            (folder / path.name).symlink_to(path)
    with pytest.raises(ValueError, match=r"lacks 7_bob_23.wav"):
        scripts.digits.make(folder, tmp_path / "out", scripts.digits.Sizes())
