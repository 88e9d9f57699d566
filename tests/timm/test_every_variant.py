"""Each model by name trains for a few real steps by timm's own train.py."""

import csv
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("timm")

from cape_plugins.timm.registry import variants_by_name

# what train.py runs, for one model after the other: importing takes longer than training
COMMAND = """
import sys
sys.path.insert(0, sys.argv[1])
import train

models, *arguments = sys.argv[2:]
for model in models.split():
    sys.argv = ["train.py", *arguments, "--model", model, "--experiment", model]
    train.main()
"""


def test_each_trains_and_is_validated(tmp_path):
    scripts = os.environ.get("TIMM_SCRIPTS")
    if not scripts:
        pytest.skip("TIMM_SCRIPTS names no folder with timm's train.py")
    random = np.random.default_rng(0)
    for split in ("train", "validation"):
        for label in ("a", "b"):
            (tmp_path / split / label).mkdir(parents=True)
            for index in range(4):
                pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / label / f"{index}.png")
    models = [f"vit_tiny_patch4_{named}_32" for named in variants_by_name()]
    arguments = ["--data-dir", tmp_path, "--device", "cpu", "--num-classes", "2", "-b", "4"]
    arguments += ["--epochs", "1", "--warmup-epochs", "0", "--workers", "0", "--opt", "adamw"]
    arguments += ["--lr", "1e-3", "--model-kwargs", "depth=2", "--output", tmp_path / "out"]
    arguments += ["--device-modules", "cape_plugins.timm"]  # where autoload is switched off
    command = [sys.executable, "-c", COMMAND, scripts, " ".join(models), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for model in models:
        with (tmp_path / "out" / model / "summary.csv").open() as file:
            (epoch,) = csv.DictReader(file)
        assert 0 < float(epoch["train_loss"]) < 10
