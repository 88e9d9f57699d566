"""What ``cape-espnet-eval`` is made of, without a model: data, cuts, counts, options."""

import re
from pathlib import Path

import numpy as np
import pytest

from lab_support import script

pytest.importorskip("espnet2")
jiwer = pytest.importorskip("jiwer")
soundfile = pytest.importorskip("soundfile")

from espnet2.train.preprocessor import CommonPreprocessor  # noqa: E402

from cape_studies.evaluate import espnet  # noqa: E402
from cape_studies.evaluate.espnet import evaluate, models, testset  # noqa: E402

RATE = 8000
scoring = script("score_recordings.py")
cut = scoring.cut


# --- counting


def test_errors_are_those_counted_by_hand():
    words, characters = jiwer.process_words, jiwer.process_characters
    # two → too; four left out; five six → a b, c put in
    assert evaluate.errors(words, "one two three", "one too three") == (1, 3)
    assert evaluate.errors(words, "four", "") == (1, 1)
    assert evaluate.errors(words, "five six", "a b c") == (3, 2)
    assert evaluate.errors(characters, "ab cd", "abcd") == (1, 5)  # the space between words
    assert evaluate.errors(words, "", "two") == (1, 0)


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


# --- transcripts


def made(**changes) -> models.Model:
    tokens = ["<blank>", "<unk>", "<noise>", "<space>", "a", "b", "<sos/eos>"]
    settings = dict(token_list=tokens, token_type="char", non_linguistic_symbols=["<noise>"])
    model = object.__new__(models.Model)
    model.prepare = CommonPreprocessor(False, **{**settings, **changes})
    return model


def test_characters_become_words_and_noises_are_left_out_on_both_sides():
    model = made()
    assert model.hypothesis([4, 2, 3, 3, 5, 5]) == "a bb"
    assert model.reference("a <noise> bb ") == "a bb"
    assert made(non_linguistic_symbols=None).reference(" a   bb ") == "a bb"


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


def test_a_test_set_has_utterances_of_one_rate(folder):
    utterances, rate = testset.read(folder)
    assert rate == RATE
    assert [(name, u.text, u.seconds) for name, u in utterances.items()] == [
        ("a", "one two", 0.1),
        ("b", "", 0.1),
    ]


def test_utterances_come_as_wav_scp_has_them_with_their_texts_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seconds in (("z", 2), ("a", 1)):
        soundfile.write(tmp_path / f"{name}.wav", np.zeros(11025 * seconds), 11025)
    (tmp_path / "wav.scp").write_text(f"z {tmp_path}/z.wav\na a.wav\n")
    (tmp_path / "text").write_text("a Ein Wort\nz ZWEI\n")
    utterances, rate = testset.read(tmp_path)
    assert rate == 11025
    assert [(name, u.path, u.text, u.seconds, u.rate) for name, u in utterances.items()] == [
        ("z", tmp_path / "z.wav", "ZWEI", 2, 11025),
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
    (lambda data: (data / "b.wav").unlink(), "data .*b.wav"),
    (lambda data: stereo(data), "data needs mono .* it has 8000 Hz × 2"),
    (lambda data: (data / "text").write_text("a one\n"), "^1 utterances .*data, .*such as b"),
    (lambda data: (data / "text").write_text("a\nb\nc d\n"), "data, .*such as c"),
    (lambda data: (data / "text").unlink(), "data .*text"),
    (lambda data: (data / "wav.scp").write_text(""), "data"),
    (lambda data: (data / "wav.scp").write_text("b x.wav\nb y.wav\n"), "data .*b is duplicated"),
    (lambda data: (data / "text").write_text("a é\nb\n", "latin-1"), "data .*utf-8"),
]


@pytest.mark.parametrize(("spoil", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_data_is_an_error_that_names_the_folder(folder, spoil, message):
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        testset.read(folder)


def test_a_name_stands_before_the_equals_sign_or_is_the_last_part_of_the_path(tmp_path):
    assert models.split_name(f"dev={tmp_path}", "--data") == ("dev", tmp_path)
    assert models.split_name(f"{tmp_path}/a/", "--data") == ("a", tmp_path / "a")


# --- finding checkpoints


@pytest.fixture
def trained(tmp_path):
    for name in ("config.yaml", "valid.loss.best.pth", "3epoch.pth"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_the_best_checkpoint_of_a_folder_is_taken(trained):
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--bins 0 10", "--bins: input should be greater than 0"),
    ],
)
def test_options_out_of_range(options, message, capsys):
    with pytest.raises(SystemExit):
        espnet.main(["--model", "m", "--data", "d", *options.split()])
    assert re.search(message, capsys.readouterr().err)
