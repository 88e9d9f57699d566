"""ESPnet's encoders with our positions, from WAV files to WER, by ESPnet's commands and ours."""

import csv
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("espnet2")
pytest.importorskip("jiwer")

import soundfile
import yaml
from espnet2.bin import asr_inference
from espnet2.tasks.asr import ASRTask

from cape_plugins.evaluation.espnet import evaluate

RATE = 8000
PITCH = {"low": 400, "high": 1600}
SIZES = dict(output_size=16, attention_heads=2, num_blocks=2)
CONFORMER = dict(linear_units=32, cnn_module_kernel=7, macaron_style=True, rel_pos_type="latest")
RECIPE = dict(pos_enc_layer_type="rel_pos", selfattention_layer_type="rel_selfattn")
BRANCHES = dict(cgmlp_linear_units=32, cgmlp_conv_kernel=7)
# ours: timestamps, and batches without padding; espnet's: padding, and seconds of frame_shift
OURS = {
    "frontend": "cape_fbank",
    "model": "cape_asr",
    "iterator_type": "task",
    "batch_type": "length",
    "batch_bins": 4 * RATE,
    "valid_batch_type": "unsorted",
    "valid_batch_size": 2,
}
ESPNETS = {
    "frontend_conf": dict(fs=RATE, n_fft=256, hop_length=80, n_mels=20),
    "batch_type": "unsorted",
    "batch_size": 4,
}
TRAININGS = {
    "conformer": ("cape_conformer", {**CONFORMER, **RECIPE, "pos": "cape"}, OURS),
    "e_branchformer": ("cape_e_branchformer", {**BRANCHES, "pos": "cape"}, OURS),
    "branchformer": ("cape_branchformer", {**BRANCHES, "pos": "relpos"}, OURS),
    "own": ("cape_conformer", {**CONFORMER, "pos": "rel_pos"}, OURS),
    "in_a_recipe": ("cape_e_branchformer", {**BRANCHES, "pos": "sinpos"}, ESPNETS),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Utterances of a few words, each a tone of 0.25 s."""
    folder = tmp_path_factory.mktemp("conformer")
    random = np.random.default_rng(0)
    for part, counts in (("train", random.integers(2, 6, 12)), ("test", [1, 2, 4])):
        (folder / part).mkdir()
        scp, text, shape = "", "", ""
        for index, count in enumerate(counts):
            words = random.choice(list(PITCH), size=count).tolist()
            time = np.arange(RATE // 4) / RATE
            tones = [np.sin(2 * np.pi * PITCH[w] * time) * np.hanning(len(time)) for w in words]
            samples = 0.5 * np.concatenate(tones)
            samples += 0.01 * random.standard_normal(len(samples))
            path = folder / part / f"u{index}.wav"
            soundfile.write(path, samples, RATE)
            scp += f"u{index} {path}\n"
            text += f"u{index} {' '.join(words)}\n"
            shape += f"u{index} {len(samples)}\n"
        for file, content in (("wav.scp", scp), ("text", text), ("shape", shape)):
            (folder / part / file).write_text(content)
    (folder / "tokens.txt").write_text("<blank>\n<unk>\nhigh\nlow\n<sos/eos>\n")
    return folder


def asr_train(data: Path, training: str, *more: object) -> Path:
    encoder, options, ways = TRAININGS[training]
    out = data / f"exp_{training}"
    config = {
        "encoder": encoder,
        "encoder_conf": {**SIZES, **options},
        "frontend_conf": dict(fs=RATE, n_mels=20),
        "model_conf": dict(ctc_weight=1.0),
        "normalize": "utterance_mvn",
        "normalize_conf": dict(norm_means=True, norm_vars=True),
        "optim": "adam",
        "max_epoch": 1,
        "best_model_criterion": [["valid", "loss", "min"]],
        **{"num_workers": 0, "use_tensorboard": False, "use_matplotlib": False, "ngpu": 0},
        **{"token_type": "word", "token_list": str(data / "tokens.txt")},
        **ways,
    }
    for part, folder in (("train", data / "train"), ("valid", data / "test")):
        config[f"{part}_shape_file"] = [str(folder / "shape")]
        config[f"{part}_data_path_and_name_and_type"] = [
            [str(folder / "wav.scp"), "speech", "sound"],
            [str(folder / "text"), "text", "text"],
        ]
    file = data / f"{training}.yaml"
    file.write_text(yaml.safe_dump(config))
    handlers = logging.root.handlers[:]
    try:
        ASRTask.main(cmd=[*map(str, ("--config", file, "--output_dir", out, *more))])
    finally:
        logging.root.handlers[:] = handlers
    return out


@pytest.mark.parametrize("training", TRAININGS)
def test_train_then_recognise_then_evaluate_durations_and_hops(data, training, tmp_path):
    out = asr_train(data, training)
    weights = torch.load(out / "1epoch.pth", weights_only=True)
    assert all(value.isfinite().all() for value in weights.values())

    asr_inference.main(
        cmd=[
            *("--ngpu", "0", "--beam_size", "1", "--ctc_weight", "1.0"),
            *("--data_path_and_name_and_type", f"{data / 'test' / 'wav.scp'},speech,sound"),
            *("--asr_train_config", str(out / "config.yaml")),
            *("--asr_model_file", str(out / "1epoch.pth"), "--output_dir", str(tmp_path)),
        ]
    )
    recognised = (tmp_path / "1best_recog" / "text").read_text().splitlines()
    assert [line.split()[0] for line in recognised] == ["u0", "u1", "u2"]

    evaluate.main(
        [
            *("--model", f"{training}={out / '1epoch.pth'}", "--data", str(data / "test")),
            *("--bins", "0.4", "--hops", "8", "10", "--device", "cpu", "--no-plots"),
            *("--out", str(tmp_path / "wer")),
        ]
    )
    with (tmp_path / "wer.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {(float(row["hop_ms"]), row["bin"], row["words"]) for row in rows}
    bins = [("all", "7"), ("<0.4", "1"), (">=0.4", "6")]
    assert found == {(hop, *counted) for hop in (8.0, 10.0) for counted in bins}


def test_a_wrong_pos_is_refused_before_any_data_is_read(data):
    missing = ["--train_data_path_and_name_and_type", "/no/such,speech,sound"]
    with pytest.raises(ValueError, match=r"^encoder_conf pos: unknown variant 'bogus': choose one"):
        asr_train(data, "conformer", "--encoder_conf", "pos=bogus", *missing)


def test_a_frame_shift_that_is_not_the_frontends_is_refused(data):
    with pytest.raises(ValueError, match=r"encoder_conf frame_shift is 0[.]02 s"):
        asr_train(data, "conformer", "--encoder_conf", "frame_shift=0.02")


def test_streaming_is_no_choice(data, capsys):
    with pytest.raises(SystemExit) as stop:
        asr_train(data, "conformer", "--encoder", "cape_contextual_block_conformer")
    assert stop.value.code == 2
    assert "cape_e_branchformer" in capsys.readouterr().err
