"""``cape-espnet-eval`` on checkpoints: one trained here in seconds, one of ESPnet's own encoder."""

import csv
import logging
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("espnet2")
pytest.importorskip("jiwer")
soundfile = pytest.importorskip("soundfile")
yaml = pytest.importorskip("yaml")

import espnet2.bin.asr_inference  # noqa: E402
from espnet2.tasks.asr import ASRTask  # noqa: E402

from cape_plugins.evaluation.espnet import (  # noqa: E402
    checkpoints,
    evaluate,
    frontends,
    segments,
    testset,
)
from cape_plugins.evaluation.espnet.decoding import Runtime, decode  # noqa: E402
from cape_plugins.evaluation.espnet.options import EspnetOptions  # noqa: E402

RATE = 8000
PITCH = {"low": 400, "high": 1600}
CPU = torch.device("cpu")


def write_set(folder: Path, counts: list[int], seed: int) -> Path:
    """Utterances of so many words, each a tone of 0.25 s."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    scp, text, shape = "", "", ""
    for index, count in enumerate(counts):
        words = random.choice(list(PITCH), size=count).tolist()
        time = np.arange(RATE // 4) / RATE
        tones = [np.sin(2 * np.pi * PITCH[word] * time) * np.hanning(len(time)) for word in words]
        samples = 0.5 * np.concatenate(tones)
        samples += 0.01 * random.standard_normal(len(samples))
        path = folder / f"u{index}.wav"
        soundfile.write(path, samples, RATE)
        scp += f"u{index} {path}\n"
        text += f"u{index} {' '.join(words)}\n"
        shape += f"u{index} {len(samples)}\n"
    (folder / "wav.scp").write_text(scp)
    (folder / "text").write_text(text)
    (folder / "shape").write_text(shape)
    return folder


def asr_train(work: Path, config: dict, token_type: str, tokens: list[str], *more: str) -> Path:
    """ESPnet's training, in this process; returns its output folder."""
    out = work / f"exp_{token_type}"
    (work / f"{token_type}.txt").write_text("".join(f"{token}\n" for token in tokens))
    (work / f"{token_type}.yaml").write_text(yaml.safe_dump(config))
    command = ["--config", work / f"{token_type}.yaml", "--ngpu", 0, "--output_dir", out]
    command += ["--token_type", token_type, "--token_list", work / f"{token_type}.txt"]
    for part, name in (("train", "train"), ("valid", "short")):
        folder = work / name
        command += [f"--{part}_shape_file", folder / "shape"]
        for file, kind in (("wav.scp", "speech,sound"), ("text", "text,text")):
            command += [f"--{part}_data_path_and_name_and_type", f"{folder / file},{kind}"]
    handlers = logging.root.handlers[:]
    ASRTask.main(cmd=[*map(str, command), *more])
    logging.root.handlers[:] = handlers
    return out


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """Data; a model with padding-free training in ``exp_word``."""
    work = tmp_path_factory.mktemp("evaluate")
    write_set(work / "train", np.random.default_rng(1).integers(2, 9, 48).tolist(), 0)
    write_set(work / "short", [2, 3, 3, 4, 5, 8], 1)
    write_set(work / "long", [30, 41], 2)
    config = {
        "frontend": "cape_fbank",
        "frontend_conf": dict(fs=RATE, n_mels=20),
        "model": "cape_asr",
        "model_conf": dict(ctc_weight=1.0),
        "encoder": "cape_transformer",
        "encoder_conf": dict(
            output_size=32, attention_heads=2, linear_units=64, num_blocks=2, max_global_shift=5,
            dropout_rate=0.0, attention_dropout_rate=0.0, conv_dropout_rate=0.0,
            layer_drop_rate=0.0,
        ),
        "normalize": "utterance_mvn",
        "normalize_conf": dict(norm_means=True, norm_vars=True),
        "optim": "adam",
        "optim_conf": dict(lr=0.005),
        "max_epoch": 15,
        "iterator_type": "task",
        "batch_type": "length",
        "batch_bins": 8 * RATE,
        "valid_batch_type": "unsorted",
        "valid_batch_size": 1,
        "best_model_criterion": [["valid", "loss", "min"]],
        "keep_nbest_models": 1,
        "num_workers": 0,
        "use_tensorboard": False,
        "use_matplotlib": False,
    }  # fmt: skip
    asr_train(work, config, "word", ["<blank>", "<unk>", "high", "low", "<sos/eos>"])
    return work


@pytest.fixture(scope="module")
def stock(work) -> Path:
    """ESPnet's encoder, frontend and model with letters as tokens, untrained."""
    config = {
        "frontend_conf": dict(fs="8k", n_fft=256, hop_length=80, n_mels=20),
        "encoder": "transformer",
        "encoder_conf": dict(output_size=16, attention_heads=2, linear_units=32, num_blocks=1),
        "model_conf": dict(ctc_weight=1.0),
        "normalize": "utterance_mvn",
        "normalize_conf": dict(norm_vars=True),
    }
    tokens = ["<blank>", "<unk>", "<space>", *"ghilow", "<sos/eos>"]
    out = asr_train(work, config, "char", tokens, "--dry_run", "true")
    torch.manual_seed(0)
    model, _ = ASRTask.build_model_from_file(out / "config.yaml", None)
    torch.save(model.state_dict(), out / "valid.acc.best.pth")
    return out


def run(*arguments: object) -> None:
    evaluate.main([*map(str, arguments), "--device", "cpu"])


def failed(capsys, *arguments: object) -> str:
    """The one line that a wrong call ends with."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        run(*arguments)
    assert stop.value.code == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("cape-espnet-eval")]
    return line


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def loaded(folder: Path) -> checkpoints.Loaded:
    return checkpoints.load(checkpoints.sources([str(folder)], None)[0])


# --- what it finds


def test_words_are_recognised_and_counted_by_duration(work, tmp_path):
    run(
        *("--model", f"cape={work / 'exp_word'}", "--data", work / "short", work / "long"),
        *("--bins", 1, 2, "--out", tmp_path / "wer", "--no-plots", "--hypotheses", tmp_path / "h"),
    )
    rows = read_csv(tmp_path / "wer.csv")
    assert [(row["test_set"], row["bin"], row["utterances"], row["words"]) for row in rows] == [
        ("short", "all", "6", "25"),
        ("short", "<1", "3", "8"),
        ("short", "1-2", "2", "9"),
        ("short", ">=2", "1", "8"),
        ("long", "all", "2", "71"),
        ("long", ">=2", "2", "71"),
    ]
    assert all(float(row["wer"]) < 5 for row in rows)  # 0 where this was written
    assert (tmp_path / "h" / "cape.short.txt").read_text().split()[:3] == [
        *(work / "short" / "text").read_text().split()[:3]
    ]
    assert "| cape    |" in (tmp_path / "wer.md").read_text()


def test_espnets_asr_inference_recognises_the_same(work, tmp_path):
    # the model is sure of itself: then the beam of one, which adds up all alignments of a text,
    # must agree with the likeliest alignment
    model = work / "exp_word" / "valid.loss.best.pth"
    command = ["--ngpu", 0, "--beam_size", 1, "--ctc_weight", 1.0, "--output_dir", tmp_path]
    command += ["--data_path_and_name_and_type", f"{work / 'long' / 'wav.scp'},speech,sound"]
    command += ["--asr_train_config", model.parent / "config.yaml", "--asr_model_file", model]
    handlers = logging.root.handlers[:]
    espnet2.bin.asr_inference.main([*map(str, command), "--num_workers", "0"])
    logging.root.handlers[:] = handlers
    run("--model", model, "--data", work / "long", "--hypotheses", tmp_path / "ours")
    theirs = (tmp_path / "1best_recog" / "text").read_text()
    ours = (tmp_path / "ours" / f"{model.name}.long.txt").read_text()
    assert sorted(theirs.splitlines()) == sorted(ours.splitlines())
    assert len(theirs.split()) > 60


def test_a_decoder_is_searched_as_by_asr_inference(work, tmp_path, capsys):
    config = {
        **yaml.safe_load((work / "word.yaml").read_text()),
        "model_conf": dict(ctc_weight=0.0),
        "decoder": "cape_transformer",
        "decoder_conf": dict(attention_heads=2, linear_units=32, num_blocks=1),
    }
    tokens = ["<blank>", "<unk>", "high", "low", "<sos/eos>"]
    (tmp_path / "train").symlink_to(work / "train")
    (tmp_path / "short").symlink_to(work / "short")
    out = asr_train(tmp_path, config, "word", tokens, "--dry_run", "true")
    torch.manual_seed(0)
    model, _ = ASRTask.build_model_from_file(out / "config.yaml", None)
    file = out / "valid.acc.best.pth"
    torch.save(model.state_dict(), file)
    search = tmp_path / "decode.yaml"
    search.write_text("beam_size: 2\nctc_weight: 0.0\nmaxlenratio: -12\n")

    arguments = ["--model", file, "--data", work / "short", "--bins"]
    assert "no CTC (ctc_weight: 0), so it needs --search" in failed(capsys, *arguments)
    options = ["--search", "beam_size=2", "ctc_weight=0.0", "maxlenratio=-12"]
    run(*arguments, *options, "--hypotheses", tmp_path / "ours")
    command = ["--ngpu", 0, "--config", search, "--output_dir", tmp_path, "--num_workers", 0]
    command += ["--data_path_and_name_and_type", f"{work / 'short' / 'wav.scp'},speech,sound"]
    command += ["--asr_train_config", out / "config.yaml", "--asr_model_file", file]
    handlers = logging.root.handlers[:]
    espnet2.bin.asr_inference.main([*map(str, command)])
    logging.root.handlers[:] = handlers
    theirs = (tmp_path / "1best_recog" / "text").read_text()
    ours = (tmp_path / "ours" / f"{file.name}.short.txt").read_text()
    assert sorted(ours.splitlines()) == sorted(line.rstrip() for line in theirs.splitlines())
    assert len(ours.split()) > 12  # words, beside the six names

    for wrong, message in {
        "beam=2": "--search beam=2: .* unexpected keyword argument 'beam'",
        "beam_size=x": "--search beam_size=x: .*beam_size.* is not an instance of int",
        "beam_size": "--search takes NAME=VALUE, got 'beam_size'",
    }.items():
        assert re.search(message, failed(capsys, *arguments, "--search", wrong))


def test_padded_batches_give_what_single_utterances_give(work):
    model = loaded(work / "exp_word").model
    (test_set,) = testset.open_sets([str(work / "short")])
    pieces = segments.cut(test_set.utterances, None)
    frontends.set_hop(model, 40)  # where the model errs, batches could differ
    alone = decode(model, test_set.utterances, pieces, Runtime(CPU, batch_size=1))
    together = decode(model, test_set.utterances, pieces, Runtime(CPU, batch_seconds=100))
    assert frontends.padding_changes_nothing(model)
    assert together.ids == alone.ids
    assert sum(map(len, alone.ids)) >= 25


def test_espnets_own_encoder_is_decoded_without_padding(work, stock):
    model = loaded(stock).model
    assert not frontends.padding_changes_nothing(model)
    (test_set,) = testset.open_sets([str(work / "short")])
    pieces = segments.cut(test_set.utterances, None)
    found = decode(model, test_set.utterances, pieces, Runtime(CPU))
    for utterance, ids in zip(test_set.utterances, found.ids, strict=True):
        speech = torch.from_numpy(soundfile.read(utterance.path, dtype="float32")[0])[None]
        with torch.no_grad():
            out, _ = model.encode(speech, torch.tensor([speech.shape[1]]))
        expected = model.ctc.argmax(out)[0].unique_consecutive().tolist()
        assert ids == [i for i in expected if i not in (0, model.eos)]


def test_several_models_and_their_own_tokens_are_compared(work, stock, tmp_path):
    run(
        *("--model", f"ours={work / 'exp_word'}", f"stock={stock}", "--data", work / "short"),
        *("--bins", "--out", tmp_path / "both", "--no-plots"),
    )
    ours, theirs = read_csv(tmp_path / "both.csv")
    assert (ours["model"], theirs["model"]) == ("ours", "stock")
    assert ours["words"] == theirs["words"] == "25"
    assert float(theirs["wer"]) > 50 > float(ours["wer"])  # nothing was learned there


def test_attention_logn_stands_beside_the_model_as_trained(work, tmp_path, monkeypatch):
    decoded = []

    def spy(model, *given, **named):
        decoded.append([layer.attention.relative.logn for layer in model.encoder.layers])
        return decode(model, *given, **named)

    monkeypatch.setattr(evaluate, "decode", spy)
    run(
        *("--model", f"cape={work / 'exp_word'}", "--data", work / "long", "--bins"),
        *("--attention-logn", 0, 25, "--out", tmp_path / "n", "--no-plots"),
    )
    assert [row["model"] for row in read_csv(tmp_path / "n.csv")] == ["cape+logn0", "cape+logn25"]
    assert decoded == [[0, 0], [25, 25]]


def test_attention_logn_is_for_espnets_own_transformer_too(work, stock, tmp_path):
    run(
        *("--model", stock, "--data", work / "long", "--bins", "--attention-logn", 100),
        *("--out", tmp_path / "n", "--no-plots"),
    )
    assert [row["model"] for row in read_csv(tmp_path / "n.csv")] == ["exp_char+logn100"]


def test_the_texts_of_pieces_are_joined(work, tmp_path):
    run(
        *("--model", f"cape={work / 'exp_word'}", "--data", work / "long", "--bins"),
        *("--segment", 2, "whole", "--out", tmp_path / "cut", "--no-plots"),
        *("--hypotheses", tmp_path),
    )
    pieces, whole = read_csv(tmp_path / "cut.csv")
    assert (pieces["segment"], pieces["pieces"]) == ("2", "10")
    assert (whole["segment"], whole["pieces"]) == ("", "2")
    assert pieces["seconds"] == whole["seconds"] == "17.75"
    # cut in the pauses, it is the same text
    joined = (tmp_path / "cape.long.2s.txt").read_text()
    assert joined == (tmp_path / "cape.long.txt").read_text()


def test_errors_of_utterances_add_up_to_the_rates(work, stock, tmp_path):
    run(
        *("--model", stock, "--data", work / "short", work / "long", "--bins", 1, 2),
        *("--out", tmp_path / "wer", "--no-plots", "--items", tmp_path / "items.csv"),
    )
    items = read_csv(tmp_path / "items.csv")
    for row in read_csv(tmp_path / "wer.csv"):
        for metric, units in (("wer", "words"), ("cer", "characters")):
            key = {"test_set": row["test_set"], "bin": row["bin"], "metric": metric}
            mine = [item for item in items if key.items() <= item.items()]
            assert len({item["item"] for item in mine}) == len(mine) == int(row["utterances"])
            errors, length = (sum(int(i[name]) for i in mine) for name in ("value", "weight"))
            assert length == int(row[units])
            assert 100 * errors / length == pytest.approx(float(row[metric]), abs=1e-5)
            assert errors > 0


def test_a_sweep_of_hops_changes_the_frames_and_measures_throughput(work, tmp_path):
    run(
        *("--model", f"cape={work / 'exp_word'}", "--data", work / "long", "--bins"),
        *("--hops", 8, 16, "--out", tmp_path / "hops", "--no-plots"),
    )
    rows = read_csv(tmp_path / "hops.csv")
    assert [row["hop_ms"] for row in rows] == ["8", "16"]
    for row in rows:
        seconds = float(row["seconds"]) / float(row["decode_seconds"])
        assert float(row["throughput"]) == pytest.approx(seconds, rel=0.01)

    model = loaded(work / "exp_word").model
    speech, lengths = torch.randn(1, RATE), torch.tensor([RATE])
    frames = {}
    with torch.no_grad():
        for hop in (8, 10, 16):
            frontends.set_hop(model, frontends.hop_samples(model, hop))
            frames[hop] = model.encode(speech, lengths)[1].item()
    assert frames == {8: 42, 10: 34, 16: 21}  # a third of 126, 101 and 63


def test_the_models_own_hop_is_back_after_a_sweep(work):
    one = loaded(work / "exp_word")
    sets = testset.open_sets([str(work / "short")])
    cuts = {("short", None): segments.cut(sets[0].utterances, None)}
    options = EspnetOptions(model=["m"], data=["d"], hops=[20.0], bins=[])
    ((row, _),) = evaluate.evaluate(one, sets, cuts, Runtime(CPU), options)
    assert row.hop_ms == 20.0
    assert frontends.hop_of(one.model) == 80


def test_audio_too_short_for_a_frame_counts_as_deletions(work, tmp_path, caplog):
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.copy(work / "short" / "u0.wav", folder)
    soundfile.write(folder / "click.wav", np.full(50, 0.5), RATE)
    scp = "".join(f"{name} {folder / name}.wav\n" for name in ("click", "u0"))
    (folder / "wav.scp").write_text(scp)
    reference = (work / "short" / "text").read_text().splitlines()[0]
    (folder / "text").write_text(f"click high low\n{reference}\n")
    run(
        *("--model", work / "exp_word", "--data", folder, "--bins", "--out", tmp_path / "x"),
        "--no-plots",
    )
    (row,) = read_csv(tmp_path / "x.csv")
    assert (row["too_short"], row["deletions"], row["wer"]) == ("1", "2", "50")
    assert "1 of 2 in data are too short for a single frame, such as click" in caplog.text


NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NO_GPU)])
def test_mixed_precision_and_processes_that_read_recognise_the_same(work, tmp_path, device):
    arguments = ["--model", work / "exp_word", "--data", work / "long", "--bins", "--amp"]
    arguments += ["--workers", 1, "--device", device, "--out", tmp_path / "x", "--no-plots"]
    evaluate.main([*map(str, arguments)])
    (row,) = read_csv(tmp_path / "x.csv")
    assert float(row["wer"]) < 5


def test_audio_is_prepared_as_for_asr_inference(work, tmp_path):
    shutil.copy(work / "exp_word" / "valid.loss.best.pth", tmp_path)
    config = yaml.safe_load((work / "exp_word" / "config.yaml").read_text())
    config["speech_volume_normalize"] = 0.5
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    prepare = loaded(tmp_path).prepare
    (test_set,) = testset.open_sets([str(work / "short")])
    seen = []

    def watched(name, data):
        prepared = prepare(name, data)
        seen.append(np.abs(prepared["speech"]).max())
        return prepared

    model = loaded(tmp_path).model
    pieces = segments.cut(test_set.utterances, None)
    decode(model, test_set.utterances, pieces, Runtime(CPU), prepare=watched)
    assert seen == pytest.approx([0.5] * 6)


# --- mistakes, found before any work


def test_nothing_is_overwritten(work, tmp_path, capsys):
    arguments = ["--model", work / "exp_word", "--data", work / "short", "--bins", "--no-plots"]
    (tmp_path / "wer.csv").write_text("mine")
    line = failed(capsys, *arguments, "--out", tmp_path / "wer")
    assert line.endswith("wer.csv exists: choose another name or give --overwrite")
    assert (tmp_path / "wer.csv").read_text() == "mine"
    run(*arguments, "--out", tmp_path / "wer", "--overwrite")
    assert len(read_csv(tmp_path / "wer.csv")) == 1


@pytest.mark.parametrize("hop", [4, 25])
def test_a_hop_out_of_range_is_an_error(work, tmp_path, capsys, hop):
    line = failed(
        *(capsys, "--model", f"cape={work / 'exp_word'}", "--data", work / "short"),
        *("--hops", 10, hop, "--out", tmp_path / "x", "--no-plots"),
    )
    assert "cape: --hops must lie within 5 … 20 ms" in line
    assert line.endswith(f"got {hop}")
    assert not list(tmp_path.iterdir())


def test_audio_of_another_rate_is_an_error(work, tmp_path, capsys):
    soundfile.write(tmp_path / "a.wav", np.zeros(RATE), 2 * RATE)
    (tmp_path / "wav.scp").write_text(f"a {tmp_path / 'a.wav'}\n")
    (tmp_path / "text").write_text("a low\n")
    line = failed(capsys, "--model", f"cape={work / 'exp_word'}", "--data", f"other={tmp_path}")
    assert "other has audio at 16000 Hz, cape was trained at 8000 Hz" in line


def test_transcripts_without_a_known_token_are_an_error(work, tmp_path, capsys):
    folder = shutil.copytree(work / "short", tmp_path / "upper")
    (folder / "text").write_text(
        (folder / "text").read_text().replace("ow", "OW").replace("hi", "HI")
    )
    line = failed(capsys, "--model", f"cape={work / 'exp_word'}", "--data", folder)
    assert "25 of 25 tokens in the transcripts of upper are not in the token list of cape" in line
    assert "upper case" in line


def test_weights_that_are_not_the_models_are_an_error(work, tmp_path, capsys):
    # ESPnet itself would load them with strict=False and leave the rest at random
    state = torch.load(work / "exp_word" / "valid.loss.best.pth", weights_only=False)
    del state["encoder.after_norm.weight"]
    torch.save(state, tmp_path / "x.pth")
    shutil.copy(work / "exp_word" / "config.yaml", tmp_path)
    line = failed(capsys, "--model", tmp_path / "x.pth", "--data", work / "short")
    assert "it lacks 1 weights, such as encoder.after_norm.weight" in line


def test_a_token_list_of_another_size_is_an_error(work, tmp_path, capsys):
    shutil.copy(work / "exp_word" / "valid.loss.best.pth", tmp_path / "x.pth")
    config = yaml.safe_load((work / "exp_word" / "config.yaml").read_text())
    config["token_list"].insert(2, "middle")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    line = failed(capsys, "--model", tmp_path / "x.pth", "--data", work / "short")
    assert "cannot be loaded" in line
    assert "ctc.ctc_lo.weight" in line


def test_a_model_that_diverged_is_an_error(work):
    model = loaded(work / "exp_word").model
    torch.nn.init.constant_(model.ctc.ctc_lo.bias, float("nan"))
    (test_set,) = testset.open_sets([str(work / "short")])
    pieces = segments.cut(test_set.utterances, None)
    with pytest.raises(ValueError, match="output is not finite"):
        decode(model, test_set.utterances, pieces, Runtime(CPU))
