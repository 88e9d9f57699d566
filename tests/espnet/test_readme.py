"""README's commands for ESPnet, at reduced size, on a small corpus."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("espnet2")

import soundfile

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
SMALLER = " --max_epoch 1 --num_workers 0 --batch_bins 64000 --use_matplotlib false"
for size in ("output_size=16", "attention_heads=2", "linear_units=32", "num_blocks=1"):
    SMALLER += f" --encoder_conf {size}"


def test_the_quickstart_prepares_and_trains(tmp_path):
    (script,) = (block for block in BLOCKS if "prepare_wavs.py" in block)
    for name in ("configs", "integrations"):
        (tmp_path / name).symlink_to(ROOT / name)
    noise = np.random.default_rng(0)
    for split, count in (("train", 6), ("valid", 2), ("test", 1)):
        folder = tmp_path / "wavs" / split
        folder.mkdir(parents=True)
        for index in range(count):
            soundfile.write(folder / f"{split}{index}.wav", noise.normal(0, 0.1, 16000), 16000)
            (folder / f"{split}{index}.txt").write_text(["one\n", "two\n"][index % 2])
    config = "--config configs/espnet/quickstart.yaml"
    assert script.count(config) == 1
    assert script.count("--ngpu 1") == 1
    script = script.replace(config, config + SMALLER).replace("--ngpu 1", "--ngpu 0")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "exp" / "cape" / "valid.cer_ctc.best.pth").exists()
