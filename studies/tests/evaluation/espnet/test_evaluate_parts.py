"""What ``cape-espnet-eval`` is made of, without a model: data, cuts, counts, options."""

from pathlib import Path

import numpy as np
import pytest

from lab_support import script

pytest.importorskip("espnet2")
jiwer = pytest.importorskip("jiwer")
soundfile = pytest.importorskip("soundfile")

from cape_studies.evaluate.espnet import models, testset  # noqa: E402

RATE = 8000
scoring = script("score_recordings.py")
cut = scoring.cut


# --- counting


# --- cutting


def noise(seconds: float) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, round(seconds * RATE))


def test_pieces_follow_each_other_and_cover_the_audio():
    pieces = cut(noise(11.5), RATE, 3.0)
    assert all(2.5 * RATE <= len(piece) <= 3 * RATE for piece in pieces[:-1])
    assert np.concatenate(pieces).tolist() == noise(11.5).tolist()
    (whole,) = cut(noise(11.5), RATE, None)
    assert len(whole) == 11.5 * RATE


@pytest.mark.parametrize(
    ("seconds", "expected"), [(3.9, [3.9]), (4.0, [3, 1]), (6.9, [3, 3.9]), (7.0, [3, 3, 1])]
)
def test_less_than_a_second_at_the_end_stays_with_the_piece_before(seconds, expected, monkeypatch):
    monkeypatch.setattr(scoring, "quietest", lambda samples, rate: len(samples))
    pieces = cut(np.ones(round(seconds * RATE)), RATE, 3.0)
    assert [len(piece) / RATE for piece in pieces] == expected


def test_a_piece_ends_in_the_pause_before_its_limit():
    samples = noise(6)
    pause = slice(int(2.70 * RATE), int(2.76 * RATE))
    samples[pause] = 0
    first, _ = cut(samples, RATE, 3.0)
    assert pause.start < len(first) < pause.stop


# --- test sets


@pytest.fixture
def folder(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for name in "ab":
        soundfile.write(data / f"{name}.wav", np.full(800, 0.5), RATE)
    (data / "wav.scp").write_text(f"a {data / 'a.wav'}\nb {data / 'b.wav'}\n")
    (data / "text").write_text("a one two\nb\n")
    return data


def test_utterances_come_as_wav_scp_has_them_with_their_texts_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seconds in (("z", 2), ("a", 1)):
        soundfile.write(tmp_path / f"{name}.wav", np.zeros(11025 * seconds), 11025)
    (tmp_path / "wav.scp").write_text(f"z {tmp_path}/z.wav\na a.wav\n")
    (tmp_path / "text").write_text("a Ein Wort\nz\n")
    utterances, rate = testset.read(tmp_path)
    assert rate == 11025
    assert [(name, u.path, u.text, u.seconds, u.rate) for name, u in utterances.items()] == [
        ("z", tmp_path / "z.wav", "", 2, 11025),
        ("a", Path("a.wav"), "Ein Wort", 1, 11025),
    ]


def sound(folder, samples, rate=RATE):
    soundfile.write(folder / "b.wav", np.array(samples), rate, subtype="FLOAT")


def stereo(folder):
    for name in "ab":
        soundfile.write(folder / f"{name}.wav", np.zeros((800, 2)), RATE)


BAD = [
    (lambda data: sound(data, np.zeros((800, 2))), "data needs mono .* 8000 Hz × 2 .b"),
    (lambda data: sound(data, np.zeros(800), 2 * RATE), "data .*one sampling rate, .*16000 Hz"),
    (lambda data: (data / "b.wav").write_text("not a WAV file"), "data .*b.wav.*not recogni"),
    (lambda data: stereo(data), "data needs mono .* it has 8000 Hz × 2"),
    (lambda data: (data / "text").write_text("a one\n"), "^1 utterances .*data, .*such as b"),
    (lambda data: (data / "text").write_text("a\nb\nc d\n"), "data, .*such as c"),
    (lambda data: (data / "text").unlink(), "data .*text"),
    (lambda data: [(data / one).write_text("") for one in ("wav.scp", "text")], "data .* has no$"),
]


@pytest.mark.parametrize(("spoil", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_data_is_an_error_that_names_the_folder(folder, spoil, message):
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        testset.read(folder)


# --- finding checkpoints


@pytest.fixture
def trained(tmp_path):
    for name in ("config.yaml", "valid.loss.best.pth", "3epoch.pth"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_the_best_checkpoint_of_a_folder_is_taken(trained, monkeypatch):
    (trained / "link").symlink_to(trained)
    assert models.split_name(f"{trained}/link", "--model") == ("link", trained / "link")
    monkeypatch.chdir(trained)
    assert models.split_name(".", "--model")[0] == trained.name
    best, third = trained / "valid.loss.best.pth", trained / "3epoch.pth"
    assert models.sources([f"cape={trained}", str(third)]) == [("cape", best), (third.name, third)]
    (trained / "valid.acc.best.pth").symlink_to(best.name)  # one file needs no choice
    ((_, found),) = models.sources([str(trained)])
    assert found.resolve() == best.resolve()
    (trained / "valid.cer_ctc.best.pth").write_text("")
    with pytest.raises(ValueError, match=f"{trained} needs one .*valid.cer_ctc.best.pth"):
        models.sources([str(trained)])
    for file in trained.glob("valid.*"):
        file.unlink()
    with pytest.raises(ValueError, match=f"{trained} needs one .*3epoch.pth"):
        models.sources([str(trained)])


def test_a_path_without_a_model_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"x cannot be loaded: .*config.yaml"):
        models.Model("m", tmp_path / "x", {}, "cpu")
