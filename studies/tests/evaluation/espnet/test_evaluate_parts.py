"""What ``cape-espnet-eval`` is made of, without a model: data, cuts, batches, counts, options."""

import re

import numpy as np
import pytest

pytest.importorskip("espnet2")
jiwer = pytest.importorskip("jiwer")
soundfile = pytest.importorskip("soundfile")

from espnet2.train.preprocessor import CommonPreprocessor  # noqa: E402

from cape_studies.evaluate import espnet  # noqa: E402
from cape_studies.evaluate.espnet import evaluate, models, testset  # noqa: E402
from cape_studies.evaluate.espnet.testset import Piece, cut  # noqa: E402

RATE = 8000


# --- counting


def test_errors_are_those_counted_by_hand():
    words, characters = jiwer.process_words, jiwer.process_characters
    # two → too; four left out; five six → a b, c put in
    assert evaluate.errors(words, "one two three", "one too three") == (1, 3)
    assert evaluate.errors(words, "four", "") == (1, 1)
    assert evaluate.errors(words, "five six", "a b c") == (3, 2)
    assert evaluate.errors(characters, "ab cd", "abcd") == (1, 5)  # the space between words
    assert evaluate.errors(words, "", "two") == (1, 0)


def test_an_edge_belongs_to_the_bin_above():
    found = evaluate.bins([15.0, 10.0, 20.0])
    assert [label for label, _, _ in found] == ["all", "<10", "10-15", "15-20", ">=20"]
    durations = [0.1, 9.999, 10.0, 14.999, 15.0, 19.999, 20.0, 500.0]
    inside = [[i for i, (_, a, b) in enumerate(found) if a <= d < b] for d in durations]
    assert inside == [[0, bin] for bin in (1, 1, 2, 2, 3, 3, 4, 4)]


# --- cutting and joining


def write_audio(folder, samples, name="u") -> testset.Utterance:
    path = folder / f"{name}.wav"
    soundfile.write(path, samples, RATE, subtype="FLOAT")
    return testset.Utterance(name, str(path), "", len(samples), RATE)


def test_pieces_follow_each_other_and_cover_the_audio(tmp_path):
    utterance = write_audio(tmp_path, np.random.default_rng(0).uniform(-1, 1, int(11.5 * RATE)))
    pieces = cut([utterance], 3.0)
    assert all(2.5 * RATE <= p.end - p.start <= 3 * RATE for p in pieces[:-1])
    assert [p.end for p in pieces[:-1]] == [p.start for p in pieces[1:]]
    assert (pieces[0].start, pieces[-1].end) == (0, utterance.samples)


@pytest.mark.parametrize(
    ("seconds", "expected"), [(3.9, [3.9]), (4.0, [3, 1]), (6.9, [3, 3.9]), (7.0, [3, 3, 1])]
)
def test_less_than_a_second_at_the_end_stays_with_the_piece_before(
    tmp_path, seconds, expected, monkeypatch
):
    monkeypatch.setattr(testset, "quietest", lambda utterance, first, last: last)
    utterance = write_audio(tmp_path, np.ones(round(seconds * RATE)) / 2)
    pieces = cut([utterance], 3.0)
    assert [(p.end - p.start) / RATE for p in pieces] == expected


def test_a_piece_ends_in_the_pause_before_its_limit(tmp_path):
    samples = np.random.default_rng(0).uniform(-1, 1, 6 * RATE)
    pause = slice(int(2.70 * RATE), int(2.76 * RATE))
    samples[pause] = 0
    first, second = cut([write_audio(tmp_path, samples)], 3.0)
    assert pause.start < first.end < pause.stop
    assert (second.start, second.end) == (first.end, len(samples))


def test_texts_are_joined_in_the_order_of_time():
    pieces = [Piece(0, 0, 4), Piece(0, 4, 8), Piece(0, 8, 9), Piece(1, 0, 5)]
    assert evaluate.joined(3, pieces, ["a", "", "c", "x"]) == ["a c", "x", ""]


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
    assert set(model.tokens("ab B")) - model.known == {"B"}


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


def test_a_test_set_has_a_name_and_its_utterances(folder):
    sets = testset.open_sets([f"dev={folder}", str(folder)])
    assert list(sets) == ["dev", "data"]
    assert [(u.name, u.text, u.samples, u.rate) for u in sets["dev"]] == [
        ("a", "one two", 800, RATE),
        ("b", "", 800, RATE),
    ]


def sound(folder, samples, rate=RATE):
    soundfile.write(folder / "b.wav", np.array(samples), rate, subtype="FLOAT")


BAD = [
    (lambda data: sound(data, np.zeros((800, 2))), "b in .*wav.scp .*2 channels"),
    (
        lambda data: sound(data, np.zeros(800), 2 * RATE),
        "one sampling rate, it has 8000 Hz .*, 16000 Hz",
    ),
    (lambda data: (data / "b.wav").write_text("not a WAV file"), "b in .*cannot be read"),
    (lambda data: (data / "b.wav").unlink(), "b in .*cannot be read"),
    (lambda data: (data / "text").write_text("a one\n"), "1 utterances .*not in both, such as b"),
    (lambda data: (data / "text").write_text("a\nb\nc d\n"), "not in both, such as c"),
    (lambda data: (data / "text").unlink(), "data needs wav.scp and text: .*text"),
    (lambda data: (data / "wav.scp").write_text(""), "data"),
    (lambda data: (data / "wav.scp").write_text("b x.wav\nb y.wav\n"), "data .*b is duplicated"),
    (lambda data: (data / "text").write_text("a é\nb\n", "latin-1"), "data .*utf-8"),
]


@pytest.mark.parametrize(("spoil", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_data_is_an_error_that_names_the_utterance(folder, spoil, message):
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        testset.open_sets([str(folder)])


# --- finding checkpoints


@pytest.fixture
def trained(tmp_path):
    for name in ("config.yaml", "valid.loss.best.pth", "3epoch.pth"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_the_best_checkpoint_of_a_folder_is_taken(trained):
    best, third = trained / "valid.loss.best.pth", trained / "3epoch.pth"
    assert models.sources([f"cape={trained}"]) == {"cape": best}
    assert models.sources([str(third)]) == {"3epoch.pth": third}
    (trained / "valid.acc.best.pth").symlink_to(best.name)  # one file needs no choice
    assert models.sources([f"cape={trained}"])["cape"].resolve() == best.resolve()
    (trained / "valid.cer_ctc.best.pth").write_text("")
    with pytest.raises(ValueError, match=r"needs one valid.*give one with its path"):
        models.sources([str(trained)])


@pytest.mark.parametrize(
    ("given", "missing", "message"),
    [
        (["{}"], "valid.loss.best.pth", "needs one valid.*.best.pth, it has 3epoch.pth"),
        (["{}"], "config.yaml", "no such file or folder: .*config.yaml"),
        (["{}/gone"], "3epoch.pth", "no such file or folder"),
        (["a={}", "a={}"], "3epoch.pth", "has 'a' twice"),
    ],
)
def test_models_that_are_not_there_are_errors(trained, given, missing, message):
    (trained / missing).unlink()
    with pytest.raises(ValueError, match=message):
        models.sources([one.format(trained) for one in given])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--bins 0 10", "--bins: input should be greater than 0"),
        ("--segment 10 ten", "parsing --segment: Could not find valid parse for .*ten"),
        ("--segment 10 0.5", "--segment: input should be greater than 1"),
    ],
)
def test_options_out_of_range(options, message, capsys):
    with pytest.raises(SystemExit):
        espnet.main(["--model", "m", "--data", "d", *options.split()])
    assert re.search(message, capsys.readouterr().err)
