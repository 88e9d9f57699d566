"""What ``cape-espnet-eval`` is made of, without a model: data, cuts, batches, counts, options."""

from argparse import ArgumentParser
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("espnet2")
pytest.importorskip("jiwer")
soundfile = pytest.importorskip("soundfile")
yaml = pytest.importorskip("yaml")

from cape_plugins.evaluation import figure  # noqa: E402
from cape_plugins.evaluation.espnet import (  # noqa: E402
    checkpoints,
    evaluate,
    figures,
    hops_figure,
    results,
    scoring,
    segments,
    testset,
)
from cape_plugins.evaluation.espnet.decoding import batches  # noqa: E402
from cape_plugins.evaluation.espnet.options import EspnetOptions  # noqa: E402
from cape_plugins.evaluation.espnet.segments import Piece  # noqa: E402
from cape_plugins.evaluation.espnet.transcripts import Transcripts  # noqa: E402
from cape_plugins.plot.__main__ import main as plot  # noqa: E402

RATE = 8000


# --- counting


def test_errors_are_those_counted_by_hand():
    found = scoring.word_errors(
        ["one two three", "four", "five six"], ["one too three", "", "a b c"]
    )
    # two → too, four left out, five six → a b, c put in
    assert found == scoring.Errors(6, substitutions=3, deletions=1, insertions=1)
    assert found.rate == pytest.approx(100 * 5 / 6)


def test_characters_count_the_space_between_words():
    found = scoring.character_errors(["ab cd"], ["abcd"])
    assert found == scoring.Errors(5, substitutions=0, deletions=1, insertions=0)


def test_a_transcript_without_words_counts_insertions_and_has_no_rate():
    assert scoring.word_errors(["", "one"], ["two", "one"]) == scoring.Errors(1, 0, 0, 1)
    assert scoring.word_errors([""], ["two"]).rate is None


def test_an_edge_belongs_to_the_bin_above():
    edges = [10.0, 15.0, 20.0]
    assert scoring.labels(edges) == ["<10", "10-15", "15-20", ">=20"]
    durations = [0.1, 9.999, 10.0, 14.999, 15.0, 19.999, 20.0, 500.0]
    assert [scoring.bin_of(d, edges) for d in durations] == [0, 0, 1, 1, 2, 2, 3, 3]


# --- cutting and joining


def write_audio(folder, samples, name="u") -> testset.Utterance:
    path = folder / f"{name}.wav"
    soundfile.write(path, samples, RATE, subtype="FLOAT")
    return testset.Utterance(name, str(path), "", len(samples), RATE)


def test_pieces_follow_each_other_and_cover_the_audio(tmp_path):
    utterance = write_audio(tmp_path, np.random.default_rng(0).uniform(-1, 1, int(11.5 * RATE)))
    pieces = segments.cut([utterance], 3.0, slack=0)
    assert [p.start for p in pieces] == [0, 3 * RATE, 6 * RATE, 9 * RATE]
    assert [p.end for p in pieces[:-1]] == [p.start for p in pieces[1:]]
    assert pieces[-1].end == utterance.samples


@pytest.mark.parametrize(
    ("seconds", "expected"), [(3.9, [3.9]), (4.0, [3, 1]), (6.9, [3, 3.9]), (7.0, [3, 3, 1])]
)
def test_less_than_a_second_at_the_end_stays_with_the_piece_before(tmp_path, seconds, expected):
    utterance = write_audio(tmp_path, np.ones(round(seconds * RATE)) / 2)
    pieces = segments.cut([utterance], 3.0, slack=0)
    assert [p.samples / RATE for p in pieces] == expected


def test_a_piece_ends_in_the_pause_before_its_limit(tmp_path):
    samples = np.random.default_rng(0).uniform(-1, 1, 6 * RATE)
    pause = slice(int(2.70 * RATE), int(2.76 * RATE))
    samples[pause] = 0
    first, second = segments.cut([write_audio(tmp_path, samples)], 3.0)
    assert pause.start < first.end < pause.stop
    assert (second.start, second.end) == (first.end, len(samples))


def test_texts_are_joined_in_the_order_of_time():
    pieces = [Piece(1, 0, 5), Piece(0, 8, 9), Piece(0, 0, 4), Piece(0, 4, 8)]
    assert evaluate.joined(3, pieces, ["x", "c", "a", ""]) == ["a c", "x", ""]


# --- batches


def test_batches_are_sorted_and_no_larger_than_asked():
    samples = [3, 10, 9, 0, 4, 30, 3]
    groups = batches(samples, 20, None, padded=True)
    assert groups == [[5], [1, 2], [4, 0, 6]]  # 30 is too long for any; 0 has no frame
    assert batches(samples, 20, 1, padded=True) == [[5], [1], [2], [4], [0], [6]]


def test_without_padding_only_equal_lengths_share_a_batch():
    assert batches([3, 10, 3, 4, 10, 3], 100, None, padded=False) == [[1, 4], [3], [0, 2, 5]]


# --- transcripts


def made(**changes) -> Transcripts:
    tokens = ["<blank>", "<unk>", "<noise>", "<space>", "a", "b", "<sos/eos>"]
    settings = dict(token_list=tokens, token_type="char", non_linguistic_symbols=["<noise>"])
    return Transcripts(SimpleNamespace(**{**settings, **changes}))


def test_characters_become_words_and_noises_are_left_out_on_both_sides():
    transcripts = made()
    assert transcripts.hypothesis([4, 2, 3, 3, 5, 5]) == "a bb"
    assert transcripts.reference("a <noise> bb ") == "a bb"


def test_unknown_tokens_are_found():
    assert made().unknown("ab B") == (4, ["B"])


def test_pieces_of_sentencepiece_become_words_again(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "text").write_text("seven eight nine\neight seven\nnine nine seven\n")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "bpe"), model_type="bpe",
        vocab_size=20, minloglevel=2,
    )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(str(tmp_path / "bpe.model"))
    pieces = [model.id_to_piece(i) for i in range(3, model.vocab_size())]
    tokens = ["<blank>", "<unk>", *pieces, "<sos/eos>"]
    transcripts = made(
        token_type="bpe", token_list=tokens, bpemodel=str(tmp_path / "bpe.model"),
        non_linguistic_symbols=None,
    )  # fmt: skip
    spoken = [tokens.index(piece) for piece in model.encode("eight nine", out_type=str)]
    assert len(spoken) > 2  # pieces, not words
    assert transcripts.hypothesis(spoken) == "eight nine"
    assert transcripts.reference(" eight  nine") == "eight nine"
    assert transcripts.unknown("seven x")[1] == ["x"]


def test_a_tokenizer_that_cannot_be_built_is_an_error():
    with pytest.raises(ValueError, match="tokenizer \\(bpe\\) cannot be built"):
        made(token_type="bpe", bpemodel=None)


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
    first, second = testset.open_sets([f"dev={folder}", str(folder)])
    assert (first.name, second.name) == ("dev", "data")
    assert [(u.name, u.text, u.seconds) for u in first.utterances] == [
        ("a", "one two", 0.1),
        ("b", "", 0.1),
    ]


def test_transcripts_without_audio_are_noted(folder, caplog):
    with (folder / "text").open("a") as text:
        text.write("c three\n")
    testset.open_sets([str(folder)])
    assert "1 utterances that wav.scp does not have, such as c" in caplog.text


def spoil(folder, how):
    wav = folder / "b.wav"
    if how == "nan":
        soundfile.write(wav, np.array([0.0, np.nan]), RATE, subtype="FLOAT")
    elif how == "empty":
        soundfile.write(wav, np.zeros(0), RATE)
    elif how == "stereo":
        soundfile.write(wav, np.zeros((800, 2)), RATE)
    elif how == "rate":
        soundfile.write(wav, np.zeros(800), 2 * RATE)
    elif how == "no audio":
        wav.write_text("not a WAV file")
    elif how == "no file":
        wav.unlink()
    elif how == "no transcript":
        (folder / "text").write_text("a one\n")
    elif how == "no text":
        (folder / "text").unlink()
    elif how == "segments":
        (folder / "segments").write_text("a1 a 0 1\n")
    elif how == "pipe":
        (folder / "wav.scp").write_text("b sox b.flac -t wav - |\n")
    elif how == "twice":
        (folder / "wav.scp").write_text("b x.wav\nb y.wav\n")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("nan", "b in .*wav.scp .*NaN or infinite"),
        ("empty", "b in .*wav.scp .*is empty"),
        ("stereo", "b in .*wav.scp .*2 channels"),
        ("rate", "several sampling rates: 8000 Hz \\(a\\), 16000 Hz \\(b\\)"),
        ("no audio", "b in .*cannot be read"),
        ("no file", "b in .*no such file"),
        ("no transcript", "1 utterances of .*not in text, such as b"),
        ("no text", "has no text"),
        ("segments", "segments file.*format_wav_scp"),
        ("pipe", "b in .*is a pipe"),
        ("twice", "b is duplicated"),
    ],
)
def test_bad_data_is_an_error_that_names_the_utterance(folder, how, message):
    spoil(folder, how)
    with pytest.raises(ValueError, match=message):
        testset.open_sets([str(folder)])


# --- finding checkpoints


@pytest.fixture
def trained(tmp_path):
    for name in ("config.yaml", "valid.loss.best.pth", "3epoch.pth"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_the_best_checkpoint_of_a_folder_is_taken(trained):
    (source,) = checkpoints.sources([f"cape={trained}"], None)
    assert (source.name, source.file.name) == ("cape", "valid.loss.best.pth")
    (source,) = checkpoints.sources([str(trained / "3epoch.pth")], None)
    assert (source.name, source.file.name) == ("3epoch.pth", "3epoch.pth")
    (source,) = checkpoints.sources([str(trained)], "3epoch.pth")
    assert (source.name, source.file.name) == (trained.name, "3epoch.pth")


def test_several_best_checkpoints_must_be_chosen_from(trained):
    (trained / "valid.cer_ctc.best.pth").write_text("")
    with pytest.raises(ValueError, match=r"--checkpoint-name .valid.cer_ctc.best.pth, valid.loss"):
        checkpoints.sources([str(trained)], None)


def test_best_checkpoints_that_are_one_file_need_no_choice(trained):
    (trained / "valid.loss.best.pth").unlink()
    for name in ("loss", "cer_ctc"):
        (trained / f"valid.{name}.best.pth").symlink_to("3epoch.pth")
    (source,) = checkpoints.sources([str(trained)], None)
    assert source.file.resolve().name == "3epoch.pth"


@pytest.mark.parametrize(
    ("given", "missing", "message"),
    [
        (["{}"], "valid.loss.best.pth", "has no valid.*.best.pth, it has 3epoch.pth"),
        (["{}"], "config.yaml", "no config.yaml beside"),
        (["{}/gone"], None, "no such file or folder"),
        (["a={}", "a={}"], None, "has 'a' twice"),
    ],
)
def test_models_that_are_not_there_are_errors(trained, given, missing, message):
    if missing:
        (trained / missing).unlink()
    with pytest.raises(ValueError, match=message):
        checkpoints.sources([one.format(trained) for one in given], None)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint\n", "truncated", "a list"])
def test_a_file_that_is_no_checkpoint_is_an_error_of_one_sentence(trained, content):
    file = trained / "valid.loss.best.pth"
    torch.save([1] if content == "a list" else {"weight": torch.zeros(10_000)}, file)
    if content == "truncated":
        content = file.read_bytes()[:20_000]
    if isinstance(content, bytes):
        file.write_bytes(content)
    (source,) = checkpoints.sources([str(trained)], None)
    with pytest.raises(ValueError, match=r"best.pth is damaged, or no checkpoint .*copy it again"):
        checkpoints.load(source)


# --- options and results


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--bins 10 10", "--bins must be seconds > 0 that increase"),
        ("--bins 0 10", "--bins must be"),
        ("--segment 10 ten", "--segment takes seconds > 1, or 'whole', got 'ten'"),
        ("--segment 10 20 10", "--segment has 10 twice"),
        ("--segment 2 --segment-slack 1.5", "--segment-slack must lie within"),
        ("--hops 10 -5", "--hops must be milliseconds > 0"),
        ("--batch-size 0", "--batch-size must be > 0"),
        ("--workers -1", "--workers must be ≥ 0"),
    ],
)
def test_options_out_of_range(options, message):
    parser = EspnetOptions.add_to(ArgumentParser())
    given = parser.parse_args(["--model", "m", "--data", "d", *options.split()])
    with pytest.raises(ValueError, match=message):
        EspnetOptions.read(given)


def test_the_table_has_models_in_rows_and_test_sets_in_columns():
    rows = [
        results.Row(model, "x.pth", name, wer=wer, utterances=1, words=10)
        for model, scores in (("cape", (1.0, 2.5)), ("sinpos", (3.0, None)))
        for name, wer in zip(("short", "long"), scores, strict=True)
    ]
    lines = results.markdown(rows).splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:6]]
    assert [table[0], *table[2:]] == [
        ["model", "short", "long"],
        ["cape", "1.00", "2.50"],
        ["sinpos", "3.00", "–"],
    ]


def test_every_kind_of_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [
        results.Row(
            *(model, "x.pth", name), segment=segment, hop_ms=hop, bin=label, wer=5.0,
            throughput=100.0,
        )
        for model in ("cape", "sinpos")
        for name in ("a", "b", "c", "d", "e")
        for segment in (None, 10.0)
        for hop in (8.0, 10.0)
        for label in ("all", "<10")
    ]  # fmt: skip
    for kind in ("bins", "sets", "segments", "hops"):
        figures.draw(kind, rows, tmp_path / f"{kind}.png")
        assert (tmp_path / f"{kind}.png").stat().st_size > 5000


def test_the_line_over_hops_does_not_fold_back_and_no_note_hides_another(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    throughput = {16: 140.0, 5: 80.0, 6: 82.0, 8: 81.0, 10: 83.0, 12: 141.0}  # noisy, any order
    rows = [
        results.Row(model, "x.pth", "dev", hop_ms=hop, wer=wer, throughput=fast)
        for model, wer in (("cape", 5.0), ("sinpos", 5.02))
        for hop, fast in throughput.items()
    ]
    drawn = []
    monkeypatch.setattr(figure, "save", lambda picture, out: drawn.append(picture))
    figures.draw("hops", rows, tmp_path / "hops.png")
    drawn[0].draw_without_rendering()
    axis = drawn[0].axes[0]
    for line in axis.lines:
        assert list(line.get_xdata()) == sorted(throughput.values())
    # each hop stands at the place that was measured with it
    assert {(float(note.get_text()), note.xy[0]) for note in axis.texts} == set(throughput.items())
    boxes = [note.get_window_extent() for note in axis.texts]
    assert len(boxes) == 12
    colours = [line.get_color() for line in axis.lines for _ in throughput]
    assert [note.get_color() for note in axis.texts] == colours
    hidden = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]
    assert hidden == []


# --- the hops of training without padding


def write_training(folder, seconds, **changes):
    """config.yaml as asr_train writes it, as far as it counts, and the shape file that it names."""
    folder.mkdir()
    lines = [f"utt{i} {round(s * RATE)}" for i, s in enumerate(seconds)]
    (folder / "speech_shape").write_text("\n".join(lines) + "\n")
    config = dict(iterator_type="task", frontend="cape_fbank", frontend_conf=dict(fs=RATE))
    config |= dict(train_shape_file=[str(folder / "speech_shape")], batch_bins=60 * RATE, seed=0)
    config |= dict(min_batch_size=1, dist_world_size=None)
    (folder / "config.yaml").write_text(yaml.safe_dump(config | changes))
    return folder / "config.yaml"


def test_the_histogram_of_hops_shows_every_utterance_of_a_pass(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    same = write_training(tmp_path / "same", [4.0] * 30)
    mixed = write_training(tmp_path / "mixed", np.random.default_rng(0).uniform(2, 20, 500))
    drawn = []
    monkeypatch.setattr(figure, "save", lambda picture, out: drawn.append(picture))
    plot(["hops", str(same), str(mixed), "--out", str(tmp_path / "hops.png")])
    (axis,) = drawn[0].axes
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["same", "mixed"]
    areas = [patch.get_xy() for patch in axis.patches]  # outlines
    assert areas[0][:, 1].max() == pytest.approx(100)
    assert areas[0][areas[0][:, 1] > 0, 0].tolist() == [9.75, 10.25]
    hops = hops_figure.hops(mixed)
    assert len(hops) == 500
    assert np.mean(hops) == pytest.approx(10, abs=0.1)
    assert 1 < max(hops) - min(hops) < 6  # durations are perturbed by ± 15 %


def test_hops_follow_each_process_share_of_a_batch(tmp_path):
    seconds = np.random.default_rng(0).uniform(2, 20, 500)
    alone = hops_figure.hops(write_training(tmp_path / "1", seconds))
    together = hops_figure.hops(write_training(tmp_path / "8", seconds, dist_world_size=8))
    assert len(alone) == len(together) == 500
    assert sum(hop == 10 for hop in together) > 3 * sum(hop == 10 for hop in alone)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iterator_type": "sequence"}, "no iterator_type: task with frontend: cape_fbank"),
        ({"train_shape_file": ["gone"]}, "gone"),
        ({"frontend_conf": {"fs": "fast"}}, "fs must be a sampling rate"),
    ],
)
def test_a_training_that_has_no_hops_to_show_is_an_error_of_one_line(
    tmp_path, capsys, changes, message
):
    pytest.importorskip("matplotlib")
    config = write_training(tmp_path / "exp", [4.0] * 3, **changes)
    with pytest.raises(SystemExit) as ended:
        plot(["hops", str(config), "--out", str(tmp_path / "hops.png")])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "hops.png").exists()
