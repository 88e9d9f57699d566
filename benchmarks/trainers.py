"""The hosts' own trainers in half precision, on tiny data made here: does a variant train?

    python benchmarks/trainers.py [--device cuda] [--hosts timm fairseq espnet] [--pos cape rope …]
        [--jobs 6] [--csv table.csv] [--label before]

fairseq-train --fp16, ESPnet's asr_train --use_amp, and timm's train.py --amp under torchrun;
TIMM_SCRIPTS names its folder. fairseq-train --bf16 is for TPUs alone: fairseq's command line takes
it for one. On the CPU only what these trainers can do there. A line for each training, as soon as
it ends. Ends with status 1 where a training fails, or where its loss does not fall.
"""

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from cape_plugins.variants import VARIANTS
from common import Table, add_outputs, on_device
from hosts import names_of, vit_name

ROOT = Path(__file__).resolve().parents[1]
RATE = 8000
PITCH = {"low": 400, "high": 1600}
NUMBER = r"([\d.e+-]+|nan|inf)"

SHOWN = ["host", "variant", "precision", "steps", "first_loss", "last_loss", "seconds", "trained"]

# the flag of its precision, command, how the trainer's output tells its losses
Training = tuple[str, list[str], str]


def fairseq_data(folder: Path) -> None:
    """Sentences and their reverse, through fairseq-preprocess."""

    random = np.random.default_rng(0)
    words = [random.choice(20, size=random.integers(2, 8)).tolist() for _ in range(200)]
    for language, order in (("en", 1), ("de", -1)):
        lines = (" ".join(f"w{word}" for word in sentence[::order]) for sentence in words)
        (folder / f"text.{language}").write_text("".join(f"{line}\n" for line in lines))
    command = [sys.executable, "-m", "fairseq_cli.preprocess", "-s", "en", "-t", "de"]
    command += ["--trainpref", str(folder / "text"), "--validpref", str(folder / "text")]
    command += ["--destdir", str(folder / "bin")]
    subprocess.run(command, check=True, capture_output=True)


def fairseq_trainings(pos: str, data: Path, device: str) -> Iterator[Training]:
    """fairseq-train --fp16; on the CPU it has float32 alone."""
    command = [sys.executable, "-m", "fairseq_cli.train", str(data / "bin"), "--no-save"]
    command += ["--user-dir", str(ROOT / "integrations/fairseq/user_dir")]
    command += ["--arch", "cape_transformer_tiny", "--pos", pos, "--max-update", "30"]
    command += ["--optimizer", "adam", "--lr", "0.002", "--batch-size", "40", "--dropout", "0"]
    command += ["--log-interval", "1", "--log-format", "json", "--disable-validation"]
    command += ["--num-workers", "0"]
    flag = "--fp16" if device == "cuda" else "--cpu"
    yield flag, [*command, flag], rf'train_inner .*?"loss": "{NUMBER}"'


def espnet_data(folder: Path) -> None:
    """Two words, two tones: recordings, texts, lengths, tokens and a configuration."""
    import soundfile
    import yaml

    random = np.random.default_rng(0)
    time = np.arange(RATE // 4) / RATE
    scp, text, shapes = "", "", ""
    for index in range(32):
        words = random.choice([*PITCH], size=random.integers(2, 5)).tolist()
        tones = [np.sin(2 * np.pi * PITCH[word] * time) * np.hanning(len(time)) for word in words]
        sound = 0.5 * np.concatenate(tones) + 0.01 * random.standard_normal(len(words) * len(time))
        soundfile.write(folder / f"{index}.wav", sound, RATE)
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


def espnet_trainings(pos: str, data: Path, device: str) -> Iterator[Training]:
    """asr_train --use_amp; ESPnet's autocast is CUDA's, so on the CPU it stays with float32."""
    amp = "true" if device == "cuda" else "false"
    command = [sys.executable, "-m", "cape_plugins.run", "-m", "espnet2.bin.asr_train"]
    command += ["--config", str(data / "config.yaml"), "--encoder_conf", f"pos={pos}"]
    command += ["--use_preprocessor", "true", "--token_type", "word"]
    command += ["--token_list", str(data / "tokens.txt"), "--output_dir", str(data / f"exp_{pos}")]
    for name in ("train", "valid"):
        for file, kind in (("wav.scp", "speech,sound"), ("text", "text,text")):
            command += [f"--{name}_data_path_and_name_and_type", f"{data / file},{kind}"]
        command += [f"--{name}_shape_file", str(data / "shapes")]
    command += ["--ngpu", "1" if device == "cuda" else "0", "--use_amp", amp]
    yield f"--use_amp {amp}", command, rf"train:\d+-\d+batch: .*?\bloss={NUMBER}"


def timm_data(folder: Path) -> None:
    """Red and blue noise."""
    from PIL import Image

    random = np.random.default_rng(0)
    for channel, name in ((0, "red"), (2, "blue")):
        for split in ("train", "validation"):
            (folder / split / name).mkdir(parents=True)
            for index in range(32):
                pixels = random.integers(0, 128, size=(32, 32, 3), dtype=np.uint8)
                pixels[..., channel] += 127
                Image.fromarray(pixels).save(folder / split / name / f"{index}.png")


def timm_trainings(pos: str, data: Path, device: str) -> Iterator[Training]:
    """train.py --amp under torchrun, in float16 with its scaler; on the CPU in bfloat16."""
    script = Path(os.environ.get("TIMM_SCRIPTS", ".")) / "train.py"
    if not script.exists():
        raise ImportError("TIMM_SCRIPTS names no folder with timm's train.py")
    precision = "float16" if device == "cuda" else "bfloat16"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "1", str(script), "--data-dir", str(data)]
    command += ["--device-modules", "cape_plugins.timm", "--model", vit_name("tiny", pos)]
    command += ["--img-size", "32", "--num-classes", "2", "--batch-size", "16"]
    command += ["--opt", "adamw", "--lr", "0.0005", "--epochs", "3", "--warmup-epochs", "0"]
    command += ["--cooldown-epochs", "0", "--log-interval", "1", "--workers", "1"]
    command += ["--device", device, "--amp", "--amp-dtype", precision]
    command += ["--output", str(data / "output"), "--experiment", f"{pos}-{precision}"]
    yield f"--amp-dtype {precision}", command, rf"Train: .*?Loss: +{NUMBER}"


# host → its module, what makes its data, its trainings of a variant
HOSTS: dict[str, tuple[str, Callable[[Path], None], Callable[..., Iterator[Training]]]] = {
    "timm": ("timm", timm_data, timm_trainings),
    "fairseq": ("fairseq", fairseq_data, fairseq_trainings),
    "espnet": ("espnet2", espnet_data, espnet_trainings),
}


def train(host: str, pos: str, training: Training) -> dict[str, object]:
    """Run one training; its row, and at the end of its output why it failed."""
    precision, command, losses = training
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = time.monotonic()
    ran = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    seconds = time.monotonic() - start
    found = [float(loss) for loss in re.findall(losses, ran.stdout)] or [math.nan]
    ok = ran.returncode == 0 and found[-1] < found[0]  # no NaN
    if not ok:
        print(f"\n{host} {pos} {precision} failed: {' '.join(command)}", file=sys.stderr)
        print(ran.stdout[-2000:], file=sys.stderr)
    return dict(
        host=host,
        variant=pos,
        precision=precision,
        steps=len(found),
        first_loss=found[0],
        last_loss=found[-1],
        seconds=seconds,
        trained="yes" if ok else "NO",
    )


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cpu", type=on_device, choices=("cpu", "cuda"))
    parser.add_argument("--hosts", nargs="+", default=HOSTS, choices=HOSTS)
    parser.add_argument("--pos", nargs="+", default=("cape", "rope"), choices=VARIANTS)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    add_outputs(parser)
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        started = []
        for host in arguments.hosts:
            module, prepare, trainings = HOSTS[host]
            data = Path(folder) / host
            data.mkdir()
            try:
                if find_spec(module) is None:
                    raise ImportError(f"no {module}")
                prepare(data)
                todo = [
                    (host, pos, training)
                    for pos in names_of(host)
                    if pos in arguments.pos
                    for training in trainings(pos, data, arguments.device)
                ]
            except ImportError as error:
                print(f"{host} left out, not all of it is here: {error}\n", flush=True)
                continue
            started += [pool.submit(train, *one) for one in todo]
        if not started:
            parser.exit(1, "none of the hosts is here\n")
        table = Table(SHOWN, arguments, "the hosts' trainers on tiny data")
        for one in as_completed(started):
            row = one.result()
            table.add(**row)
            failed += row["trained"] == "NO"
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
