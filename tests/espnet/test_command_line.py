"""``encoder: cape_transformer`` in ESPnet's own commands: what a user of a recipe sees.

Nothing here imports the plugin: the commands find it by name. ESPnet takes some 10 s of CPU to
import, hence few processes.
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("espnet2")
soundfile = pytest.importorskip("soundfile")
yaml = pytest.importorskip("yaml")

from cape_plugins.variants import names  # noqa: E402

ROOT = Path(__file__).parents[2]
RATE = 8000
TINY = ["output_size=32", "attention_heads=4", "linear_units=64", "num_blocks=2"]


def espnet(module: str, *arguments: object, through: str = "") -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", *through.split(), f"espnet2.bin.{module}"]
    environment = {k: v for k, v in os.environ.items() if "AUTOLOAD" not in k}
    if through:  # the explicit way must need no autoload
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return subprocess.run(
        [*command, *map(str, arguments)],
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def succeeded(process: subprocess.CompletedProcess) -> subprocess.CompletedProcess:
    assert process.returncode == 0, process.stderr[-4000:]
    return process


# --- choosing it by name


@pytest.fixture(scope="module")
def task():
    return importlib.import_module("espnet2.tasks.asr")


def test_importing_espnets_task_is_enough(task):
    import cape_plugins.espnet.encoder as ours

    assert task.encoder_choices.classes["cape_transformer"] is ours.CapeTransformerEncoder


def test_registering_again_changes_nothing(task):
    import cape_plugins.espnet as ours

    before = dict(task.encoder_choices.classes)
    ours.register()
    assert task.encoder_choices.classes == before


def test_the_parser_offers_it_and_lists_the_choices_for_a_wrong_name(task, capsys):
    parser = task.ASRTask.get_parser()
    assert parser.parse_args(["--encoder", "cape_transformer"]).encoder == "cape_transformer"
    with pytest.raises(SystemExit):
        parser.parse_args(["--encoder", "nonsense"])
    complaint = capsys.readouterr().err
    assert "nonsense" in complaint
    assert "'cape_transformer'" in complaint


def test_it_serves_espnets_model_in_training_and_in_collect_stats(task):
    import torch

    tokens = ["<blank>", "<unk>", "a", "b", "<sos/eos>"]
    arguments = ["--encoder", "cape_transformer", "--output_dir", "unused", "--token_list", "?"]
    for option in TINY:
        arguments += ["--encoder_conf", option]
    arguments += ["--model_conf", "ctc_weight=1.0", "--normalize", "utterance_mvn"]
    arguments += ["--frontend_conf", "n_fft=256", "--frontend_conf", "hop_length=80"]
    parsed = task.ASRTask.get_parser().parse_args(arguments)
    parsed.token_list = tokens
    model = task.ASRTask.build_model(parsed)

    speech, lengths = torch.randn(2, RATE), torch.tensor([RATE, RATE // 2])
    text, text_lengths = torch.tensor([[2, 3, 2], [3, -1, -1]]), torch.tensor([3, 1])
    loss, stats, _ = model(speech, lengths, text, text_lengths)
    loss.backward()
    assert loss.isfinite()
    assert stats["loss_ctc"].isfinite()
    out, out_lengths = model.eval().encode(speech, lengths)
    assert out.shape == (2, 34, 32)  # 101 frames of 10 ms
    assert out_lengths.tolist() == [34, 17]
    feats = model.collect_feats(speech, lengths, text, text_lengths)
    assert feats["feats_lengths"].tolist() == [101, 51]


def test_print_config_through_the_runner_shows_the_defaults():
    done = succeeded(
        espnet(
            "asr_train",
            *("--print_config", "--encoder", "cape_transformer"),
            through="cape_plugins.run -m",
        )
    )
    shown = yaml.safe_load(done.stdout)
    assert shown["encoder"] == "cape_transformer"
    assert shown["encoder_conf"] == {
        "output_size": 768,
        "attention_heads": 4,
        "linear_units": 3072,
        "num_blocks": 36,
        "dropout_rate": 0.1,
        "positional_dropout_rate": 0.0,
        "attention_dropout_rate": 0.1,
        "conv_dropout_rate": 0.3,
        "normalize_before": True,
        "interctc_layer_idx": [],
        "interctc_use_conditioning": False,
        "layer_drop_rate": 0.1,
        "pos": "cape",
        "max_global_shift": 30.0,
        "max_local_shift": None,
        "max_global_scale": 1.1,
        "abspos_context": 13.8,
        "relpos_context": None,
        "relpos_values": False,
        "random_range": 60.0,
        "frequency_scale": 30.0,
        "attention_logn": None,
        "frame_shift": 0.01,
    }


# --- from WAV files to recognised words, and mistakes on the way


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Two words, two tones: WAV files, wav.scp, text, a token list and a YAML config."""
    folder = tmp_path_factory.mktemp("espnet")
    random = np.random.default_rng(0)
    pitch = {"low": 400, "high": 1600}
    for name, count in (("train", 12), ("valid", 4)):
        scp, text = "", ""
        for index in range(count):
            words = random.choice(["low", "high"], size=random.integers(2, 5)).tolist()
            time = np.arange(RATE // 4) / RATE
            sound = [
                np.sin(2 * np.pi * pitch[word] * time) * np.hanning(len(time)) for word in words
            ]
            samples = 0.5 * np.concatenate(sound) + 0.01 * random.standard_normal(
                len(words) * len(time)
            )
            path = folder / f"{name}{index}.wav"
            soundfile.write(path, samples, RATE)
            scp += f"{name}{index} {path}\n"
            text += f"{name}{index} {' '.join(words)}\n"
        (folder / f"{name}.scp").write_text(scp)
        (folder / f"{name}.text").write_text(text)
    (folder / "tokens.txt").write_text("<blank>\n<unk>\nhigh\nlow\n<sos/eos>\n")
    config = {
        "encoder": "cape_transformer",
        "encoder_conf": dict(output_size=32, linear_units=64, num_blocks=2, max_global_shift=5),
        "frontend_conf": dict(fs="8k", n_fft=256, win_length=200, hop_length=80, n_mels=20),
        "normalize": "utterance_mvn",
        "model_conf": dict(ctc_weight=1.0),
        "optim": "adam",
        "optim_conf": dict(lr=0.001),
        "max_epoch": 2,
        "batch_type": "unsorted",
        "batch_size": 4,
        "best_model_criterion": [["valid", "loss", "min"]],
        "num_workers": 0,
        "use_tensorboard": False,
        "use_matplotlib": False,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def train_flags(data: Path) -> list[object]:
    flags = ["--config", data / "config.yaml", "--ngpu", 0, "--use_preprocessor", "true"]
    flags += ["--token_type", "word", "--token_list", data / "tokens.txt"]
    for name in ("train", "valid"):
        for file, kind in ((f"{name}.scp", "speech,sound"), (f"{name}.text", "text,text")):
            flags += [f"--{name}_data_path_and_name_and_type", f"{data / file},{kind}"]
    return flags


@pytest.fixture(scope="module")
def shapes(data) -> list[object]:
    """What collect-stats finds, as flags of the training."""
    stats = data / "stats"
    succeeded(
        espnet("asr_train", "--collect_stats", "true", "--output_dir", stats, *train_flags(data))
    )
    return [
        part
        for name in ("train", "valid")
        for kind in ("speech_shape", "text_shape")
        for part in (f"--{name}_shape_file", stats / name / kind)
    ]


def test_collect_stats_then_train_then_recognise(data, shapes):
    trained = data / "exp"
    succeeded(espnet("asr_train", "--output_dir", trained, *shapes, *train_flags(data)))
    assert yaml.safe_load((trained / "config.yaml").read_text())["encoder"] == "cape_transformer"
    assert (trained / "2epoch.pth").exists()

    succeeded(
        espnet(
            "asr_inference",
            *("--data_path_and_name_and_type", f"{data / 'valid.scp'},speech,sound"),
            *("--asr_train_config", trained / "config.yaml"),
            *("--asr_model_file", trained / "2epoch.pth"),
            *("--beam_size", 1, "--ctc_weight", 1.0, "--output_dir", trained / "decode"),
        )
    )
    recognised = (trained / "decode" / "1best_recog" / "text").read_text().splitlines()
    assert [line.split()[0] for line in recognised] == [f"valid{index}" for index in range(4)]


# what `python -m espnet2.bin.asr_train` runs: importing takes longer than training
EACH = """
import sys
from espnet2.bin.asr_train import main

variants, folder, *arguments = sys.argv[1:]
for pos in variants.split():
    main(cmd=[*arguments, "--encoder_conf", f"pos={pos}", "--output_dir", f"{folder}/{pos}"])
"""


def test_each_variant_trains_and_is_validated(data, shapes, tmp_path):
    # Δ of the YAML is not for all
    flags = ["--encoder_conf", "max_global_shift=30.0", "--max_epoch", 1, *shapes]
    command = [sys.executable, "-c", EACH, " ".join(names(1)), tmp_path, *train_flags(data), *flags]
    succeeded(subprocess.run([str(part) for part in command], capture_output=True, text=True))
    for pos in names(1):
        assert yaml.safe_load((tmp_path / pos / "config.yaml").read_text())["encoder_conf"]["pos"]
        assert (tmp_path / pos / "valid.loss.best.pth").exists()


def test_a_bad_value_fails_before_any_data_is_read_and_says_what_is_allowed(data, tmp_path):
    flags = [
        str(flag).replace(str(data / "train.scp"), "/no/such/file") for flag in train_flags(data)
    ]
    shapes = ["--train_shape_file", "/no/such/file", "--valid_shape_file", "/no/such/file"]
    failed = espnet(
        "asr_train", "--encoder_conf", "pos=bogus", "--output_dir", tmp_path, *shapes, *flags
    )
    assert failed.returncode != 0
    last = failed.stderr.strip().splitlines()[-1]
    assert last == (
        "ValueError: encoder_conf pos: unknown variant 'bogus': "
        f"choose one of {', '.join(names(1))}"
    )


def test_an_unknown_encoder_fails_and_lists_the_choices(data):
    failed = espnet("asr_train", "--encoder", "nonsense", *train_flags(data))
    assert failed.returncode != 0
    assert "nonsense" in failed.stderr
    assert "cape_transformer" in failed.stderr
