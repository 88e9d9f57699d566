"""Audio that is not what the config says stops the training; messages name the utterance."""

import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("espnet2")

import soundfile
import yaml
from espnet2.tasks.asr import ASRTask

RATE = 8000
SIZES = dict(output_size=16, attention_heads=2, linear_units=32, num_blocks=1)
FBANK = {"frontend": "cape_fbank", "frontend_conf": {"fs": "8k", "n_mels": 16}}
ESPNETS = {"frontend": "default", "frontend_conf": dict(fs="8k", n_fft=256, hop_length=80)}
TEXT = torch.tensor([[2, 3]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Four utterances at 8 kHz; ``bad`` lists the same, one of them with a NaN."""
    folder = tmp_path_factory.mktemp("audio")
    speech = np.random.default_rng(0).normal(0, 0.1, (4, RATE))
    lines = [f"utterance{index} {folder}/utterance{index}.wav\n" for index in range(4)]
    for line, samples in zip(lines, speech, strict=True):
        soundfile.write(line.split()[1], samples, RATE)
    speech[2, 500] = math.nan
    soundfile.write(folder / "broken.wav", speech[2], RATE, subtype="FLOAT")
    (folder / "good.scp").write_text("".join(lines))
    lines[2] = f"utterance2 {folder}/broken.wav\n"
    (folder / "bad.scp").write_text("".join(lines))
    (folder / "text").write_text("".join(f"utterance{index} low high\n" for index in range(4)))
    (folder / "tokens.txt").write_text("<blank>\n<unk>\nlow\nhigh\n<sos/eos>\n")
    return folder


def asr_train(folder: Path, out: Path, wavs: str, config: dict, *more: str) -> None:
    config = {
        **{"model": "cape_asr", "model_conf": {"ctc_weight": 1.0}, "normalize": "utterance_mvn"},
        **{"encoder": "cape_transformer", "encoder_conf": {**SIZES, "pos": "sinpos"}},
        **{"optim": "adam", "max_epoch": 1, "batch_type": "unsorted", "batch_size": 4, "ngpu": 0},
        **{"best_model_criterion": [["valid", "loss", "min"]], "num_workers": 0},
        **{"use_tensorboard": False, "use_matplotlib": False, "output_dir": str(out)},
        **{"token_type": "word", "token_list": str(folder / "tokens.txt")},
        **config,
    }
    for part, scp in (("train", wavs), ("valid", "good.scp")):
        config[f"{part}_data_path_and_name_and_type"] = [
            [str(folder / scp), "speech", "sound"],
            [str(folder / "text"), "text", "text"],
        ]
        config[f"{part}_shape_file"] = [str(folder / "text")]  # only its keys are read
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    handlers = logging.root.handlers[:]
    try:
        ASRTask.main(cmd=["--config", str(folder / "config.yaml"), *more])
    finally:
        logging.root.handlers[:] = handlers


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize("kind", ["cape_fbank", "default"])
def test_another_sampling_rate_stops_the_first_batch(folder, tmp_path, kind, workers):
    config = {"frontend": kind, "frontend_conf": {"n_mels": 16, "hop_length": 160}}  # fs: 16000
    says = r"utterance utterance\d in .*good.scp has 8000 Hz, the frontend expects 16000 Hz: set "
    with pytest.raises(ValueError, match=says + "frontend_conf fs: 8000"):
        asr_train(folder, tmp_path, "good.scp", config, "--num_workers", workers)


def test_espnets_own_model_is_left_alone(folder, tmp_path):
    config = {"model": "espnet", "frontend_conf": {"n_mels": 16, "hop_length": 160}}
    asr_train(folder, tmp_path, "bad.scp", config)


@pytest.mark.parametrize("frontend", [FBANK, ESPNETS], ids=["cape_fbank", "default"])
@pytest.mark.parametrize("more", [[], ["--collect_stats", "true"]], ids=["train", "stats"])
def test_nan_audio_stops_the_training_by_name(folder, tmp_path, frontend, more):
    with pytest.raises(ValueError, match="utterance utterance2 has samples that are NaN"):
        asr_train(folder, tmp_path, "bad.scp", frontend, *more)


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory) -> Path:
    """The folder of a training at 8 kHz."""
    out = tmp_path_factory.mktemp("trained")
    asr_train(folder, out, "good.scp", ESPNETS)
    return out


def recognise(trained: Path, wavs: Path, out: Path, workers: int = 0) -> None:
    from espnet2.bin.asr_inference import main

    command = ["--asr_train_config", trained / "config.yaml", "--asr_model_file"]
    command += [trained / "1epoch.pth", "--beam_size", 1, "--ctc_weight", 1.0, "--ngpu", 0]
    command += ["--data_path_and_name_and_type", f"{wavs},speech,sound", "--num_workers", workers]
    handlers = logging.root.handlers[:]
    try:
        main(cmd=[*map(str, command), "--output_dir", str(out)])
    finally:
        logging.root.handlers[:] = handlers


def test_nan_audio_stops_the_recognition_by_name(folder, trained, tmp_path):
    with pytest.raises(ValueError, match="utterance utterance2 has samples that are NaN"):
        recognise(trained, folder / "bad.scp", tmp_path)


@pytest.mark.parametrize("workers", [0, 1])
def test_another_sampling_rate_stops_the_recognition_at_the_first_utterance(
    trained, tmp_path, workers
):
    soundfile.write(tmp_path / "new.wav", np.random.default_rng(0).normal(0, 0.1, 16000), 16000)
    (tmp_path / "test.scp").write_text(f"new {tmp_path / 'new.wav'}\n")
    says = "utterance new in .*test.scp has 16000 Hz, the frontend expects 8000 Hz"
    with pytest.raises(ValueError, match=says):
        recognise(trained, tmp_path / "test.scp", tmp_path / "out", workers)


def test_audio_at_the_rate_of_the_training_is_recognised(folder, trained, tmp_path):
    recognise(trained, folder / "good.scp", tmp_path)
    lines = (tmp_path / "1best_recog" / "text").read_text().splitlines()
    assert [line.split()[0] for line in lines] == [f"utterance{index}" for index in range(4)]


def build(config: dict) -> torch.nn.Module:
    flags = ["--model", "cape_asr", "--encoder", "cape_transformer", "--output_dir", "unused"]
    flags += ["--model_conf", "ctc_weight=1.0", "--token_list", "unused"]
    flags += ["--normalize", "utterance_mvn", "--frontend", config["frontend"]]
    for part in ("frontend_conf", "encoder_conf"):
        for name, value in config.get(part, SIZES).items():
            flags += [f"--{part}", f"{name}={value}"]
    args = ASRTask.get_parser().parse_args(flags)
    args.token_list = ["<blank>", "<unk>", "low", "high", "<sos/eos>"]
    return ASRTask.build_model(args)


@pytest.mark.parametrize("frontend", [FBANK, ESPNETS], ids=["cape_fbank", "default"])
def test_the_model_itself_refuses_nan_audio(frontend):
    model, lengths = build(frontend), torch.tensor([RATE, RATE // 2])
    speech = torch.randn(2, RATE)
    speech[1, -1] = math.nan  # padding
    model.encode(speech, lengths)
    speech[1, 7] = math.nan
    with pytest.raises(ValueError, match="utterance 1 of the batch has samples that are NaN"):
        model.encode(speech, lengths)
    with pytest.raises(ValueError, match="utterance two has samples that are NaN"):
        model(speech, lengths, TEXT.repeat(2, 1), torch.tensor([2, 2]), utt_id=["one", "two"])
    with pytest.raises(ValueError, match="utterance 1 of the batch"):  # one call does not mark all
        model.encode(speech, lengths)


def test_the_frontends_messages_name_the_utterance():
    model, names = build(FBANK).train(), ["one", "two"]
    for samples, says in (
        (50, "utterance two is too short: 50 samples, and features need 101 .* at fs: 8000"),
        (RATE // 4, "utterance two lasts 0.25 s, the mean is 0.62 s"),
    ):
        lengths = torch.tensor([RATE, samples])
        with pytest.raises(ValueError, match=says):
            model(
                torch.randn(2, RATE), lengths, TEXT.repeat(2, 1), torch.tensor([2, 2]), utt_id=names
            )


def test_a_frame_shift_that_does_not_fit_blames_the_sampling_rate_first():
    says = (
        "if the audio has 16000 Hz, set frame_shift: 0.005, or another hop_length; if not, set fs"
    )
    with pytest.raises(ValueError, match=says):
        build({"frontend": "default", "frontend_conf": dict(n_fft=256, hop_length=80)})
