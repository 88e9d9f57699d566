"""The hosts' own trainers in half precision, on tiny data made here: the loss falls.

fairseq-train --fp16, ESPnet's asr_train --use_amp, and timm's train.py --amp under torchrun;
TIMM_SCRIPTS names its folder. fairseq-train --bf16 is for TPUs alone: fairseq's command line takes
it for one. On the CPU only what these trainers can do there.
"""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from cape_support import ROOT, run

NUMBER = r"([\d.e+-]+|nan|inf)"
VARIANTS = ["cape", "rope"]
TRAIN_PY = Path(os.environ.get("TIMM_SCRIPTS", ""), "train.py")


def assert_the_loss_falls(pattern: str, *command: object) -> None:
    """``pattern`` finds the losses in what the trainer prints."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))  # of gpu.sh
    status, said = run(sys.executable, *command, PYTHONPATH=path)
    losses = [float(loss) for loss in re.findall(pattern, said)]
    assert status == 0, said[-2000:]
    assert losses[-1] < losses[0], losses  # no NaN


@pytest.fixture(scope="module")
def sentences(tmp_path_factory) -> Path:
    """Sentences and their reverse, through fairseq-preprocess."""
    pytest.importorskip("fairseq")
    folder, random = tmp_path_factory.mktemp("fairseq"), np.random.default_rng(0)
    words = [random.choice(20, size=random.integers(2, 8)).tolist() for _ in range(200)]
    for language, order in (("en", 1), ("de", -1)):
        lines = (" ".join(f"w{word}" for word in sentence[::order]) for sentence in words)
        (folder / f"text.{language}").write_text("".join(f"{line}\n" for line in lines))
    given = ["-s", "en", "-t", "de", "--trainpref", folder / "text", "--validpref", folder / "text"]
    command = [sys.executable, "-m", "fairseq_cli.preprocess", *given, "--destdir", folder / "bin"]
    status, said = run(*command)
    assert status == 0, said
    return folder / "bin"


@pytest.mark.parametrize("pos", VARIANTS)
def test_fairseq_train_in_half_precision(pos, sentences, device):
    """On the CPU it has float32 alone."""
    command = ["-m", "fairseq_cli.train", sentences, "--no-save"]
    command += ["--user-dir", ROOT / "integrations/fairseq/user_dir"]
    command += ["--arch", "cape_transformer_tiny", "--pos", pos, "--max-update", 30]
    command += ["--optimizer", "adam", "--lr", 0.002, "--batch-size", 40, "--dropout", 0]
    command += ["--log-interval", 1, "--log-format", "json", "--disable-validation"]
    command += ["--num-workers", 0, "--fp16" if device == "cuda" else "--cpu"]
    assert_the_loss_falls(rf'train_inner .*?"loss": "{NUMBER}"', *command)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> Path:
    """Two words, two tones: recordings, texts, lengths, tokens and a configuration."""
    pytest.importorskip("espnet2")
    soundfile, yaml = pytest.importorskip("soundfile"), pytest.importorskip("yaml")
    folder, random = tmp_path_factory.mktemp("espnet"), np.random.default_rng(0)
    rate, pitch = 8000, {"low": 400, "high": 1600}
    time = np.arange(rate // 4) / rate
    scp, text, shapes = "", "", ""
    for index in range(32):
        words = random.choice([*pitch], size=random.integers(2, 5)).tolist()
        tones = [np.sin(2 * np.pi * pitch[word] * time) * np.hanning(len(time)) for word in words]
        sound = 0.5 * np.concatenate(tones) + 0.01 * random.standard_normal(len(words) * len(time))
        soundfile.write(folder / f"{index}.wav", sound, rate)
        scp += f"u{index:02} {folder / f'{index}.wav'}\n"
        text += f"u{index:02} {' '.join(words)}\n"
        shapes += f"u{index:02} {len(sound)}\n"
    (folder / "wav.scp").write_text(scp)
    (folder / "text").write_text(text)
    (folder / "shapes").write_text(shapes)
    (folder / "tokens.txt").write_text("<blank>\n<unk>\nhigh\nlow\n<sos/eos>\n")
    config = dict(
        encoder="cape_transformer",
        encoder_conf=dict(
            output_size=64, linear_units=128, num_blocks=2, dropout_rate=0.0, layer_drop_rate=0.0
        ),
        frontend_conf=dict(fs="8k", n_fft=256, win_length=200, hop_length=80, n_mels=20),
        normalize="utterance_mvn",
        model_conf=dict(ctc_weight=1.0),
        optim="adam",
        optim_conf=dict(lr=0.002),
        max_epoch=4,
        batch_type="unsorted",
        batch_size=8,
        best_model_criterion=[["train", "loss", "min"]],
        num_workers=0,
        log_interval=1,
        use_tensorboard=False,
        use_matplotlib=False,
    )
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.mark.parametrize("pos", VARIANTS)
def test_asr_train_with_amp(pos, recordings, device, tmp_path):
    """ESPnet's autocast is CUDA's, so on the CPU it stays with float32."""
    on_cuda = device == "cuda"
    command = ["-m", "cape_plugins.run", "-m", "espnet2.bin.asr_train", "--output_dir", tmp_path]
    command += ["--config", recordings / "config.yaml", "--encoder_conf", f"pos={pos}"]
    command += ["--use_preprocessor", "true", "--token_type", "word"]
    command += ["--token_list", recordings / "tokens.txt"]
    for name in ("train", "valid"):
        for file, kind in (("wav.scp", "speech,sound"), ("text", "text,text")):
            command += [f"--{name}_data_path_and_name_and_type", f"{recordings / file},{kind}"]
        command += [f"--{name}_shape_file", recordings / "shapes"]
    command += ["--ngpu", int(on_cuda), "--use_amp", str(on_cuda).lower()]
    assert_the_loss_falls(rf"train:\d+-\d+batch: .*?\bloss={NUMBER}", *command)


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Red and blue noise."""
    pytest.importorskip("timm")
    image = pytest.importorskip("PIL.Image")
    folder, random = tmp_path_factory.mktemp("timm"), np.random.default_rng(0)
    for channel, name in ((0, "red"), (2, "blue")):
        for split in ("train", "validation"):
            (folder / split / name).mkdir(parents=True)
            for index in range(32):
                pixels = random.integers(0, 128, size=(32, 32, 3), dtype=np.uint8)
                pixels[..., channel] += 127
                image.fromarray(pixels).save(folder / split / name / f"{index}.png")
    return folder


@pytest.mark.skipif(not TRAIN_PY.is_file(), reason="needs timm's train.py, in TIMM_SCRIPTS")
@pytest.mark.parametrize("pos", VARIANTS)
def test_timms_train_py_with_amp(pos, images, device, tmp_path):
    """In float16 with its scaler; on the CPU in bfloat16."""
    name = {"cape": "vit_tiny_patch16_cape_224", "rope": "vit_tiny_patch16_ropepos_224"}[pos]
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 1]
    command += [TRAIN_PY, "--data-dir", images]
    command += ["--device-modules", "cape_plugins.timm", "--model", name]
    command += ["--img-size", 32, "--num-classes", 2, "--batch-size", 16]
    command += ["--opt", "adamw", "--lr", 0.0005, "--epochs", 3, "--warmup-epochs", 0]
    command += ["--cooldown-epochs", 0, "--log-interval", 1, "--workers", 1, "--device", device]
    command += ["--amp", "--amp-dtype", "float16" if device == "cuda" else "bfloat16"]
    command += ["--output", tmp_path, "--experiment", pos]
    assert_the_loss_falls(rf"Train: .*?Loss: +{NUMBER}", *command)
