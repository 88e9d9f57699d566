"""Models by name train for a few real steps by timm's own train.py; so do the README's commands."""

import csv
import os
import sys
from collections.abc import Callable

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import cape_support
from cape_plugins.timm.registry import variants_by_name
from cape_support import ROOT, block_with, commands

pytestmark = pytest.mark.release

README = ROOT / "integrations" / "timm" / "README.md"

# what train.py runs, for one model after the other: importing takes longer than training
COMMAND = """
import logging, sys
sys.path.insert(0, sys.argv[1])
import train

for line in sys.argv[2:]:
    logging.getLogger().handlers.clear()  # of the model before
    sys.argv = ["train.py", *line.split("|")]
    train.main()
"""
TINY = ["--device", "cpu", "-b", "4", "--epochs", "1", "--warmup-epochs", "0", "--workers", "0"]
TINY += ["--device-modules", "cape_plugins.timm"]  # where autoload is switched off


@pytest.fixture
def train(tmp_path) -> Callable[[list[list[str]], list[str]], str]:
    """command lines, names of the experiments → what train.py says; images are in ./images."""
    scripts = os.environ.get("TIMM_SCRIPTS")
    if not scripts:
        pytest.skip("TIMM_SCRIPTS names no folder with timm's train.py")
    random = np.random.default_rng(0)
    for split in ("train", "validation"):
        for label in ("a", "b"):
            (tmp_path / "images" / split / label).mkdir(parents=True)
            for index in range(4):
                pixels = random.integers(0, 256, (32, 32 + 16 * (index % 2), 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "images" / split / label / f"{index}.png")

    def run(lines: list[list[str]], experiments: list[str]) -> str:
        command = [sys.executable, "-c", COMMAND, os.path.abspath(scripts)]
        command += ["|".join([*TINY, *line]) for line in lines]
        status, told = cape_support.run(*command, cwd=tmp_path, PYTHONPATH=ROOT)
        assert status == 0, told[-3000:]
        for experiment in experiments:
            with (tmp_path / "runs" / experiment / "summary.csv").open() as file:
                (epoch,) = csv.DictReader(file)
            assert 0 < float(epoch["train_loss"]) < 10
        return told

    return run


SHARED = ["--data-dir", "images", "--num-classes", "2", "--opt", "adamw", "--lr", "1e-3"]
SHARED += ["--output", "runs"]


def test_each_trains_and_is_validated(train):
    shared = [*SHARED, "--model-kwargs", "depth=2"]
    naflex = ["--naflex-loader", "--naflex-train-seq-lens", "4", "9", "--naflex-max-seq-len", "9"]
    models = {f"vit_tiny_patch4_{named}_32": [] for named in variants_by_name()}
    models |= {f"naflexvit_tiny_patch16_{named}_gap": naflex for named in ("cape", "cape_alibi")}
    lines = [
        [*shared, *flags, "--model", model, "--experiment", model]
        for model, flags in models.items()
    ]
    train(lines, [*models])


def test_the_readmes_commands_for_weights_that_exist(train, tmp_path):
    section = README.read_text().split("## Weights that exist")[1].split("\n## ")[0]
    assert len(eval(block_with(section, "list_models", "python"))) == 60
    lines = commands(section)
    assert all(line[:2] == ["python", "scripts/train.py"] for line in lines)
    # small ones, in place of those that are downloaded or that the user has
    for stock in ("deit_base_patch16_224", "vit_small_patch16_dinov3"):
        weights = timm.create_model(stock, depth=1).state_dict()
        torch.save({"state_dict": weights}, tmp_path / f"{stock.split('_patch')[0]}.pth.tar")
    smaller = ["--model-kwargs", "depth=1", "--epochs", "1", "-b", "4"]
    lines = [[*line[2:], *smaller] for line in lines]
    _, twin = lines
    assert "--pretrained-path" not in twin
    twin += ["--pretrained-path", "vit_small.pth.tar"]
    told = train(lines, ["from_deit", "dinov3_cape"])
    assert told.count("dropped pos_embed (1, 197, 768) of the checkpoint") == 1
