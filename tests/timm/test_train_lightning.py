"""integrations/timm/train_lightning.py on small folders of images."""

import ast
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cape_support import ROOT

pytest.importorskip("timm")
pytest.importorskip("lightning")
pytest.importorskip("cape_studies")

SCRIPT = str(ROOT / "integrations" / "timm" / "train_lightning.py")
SMALL = "--model vit_tiny_patch16_cape_224 --model-kwargs patch_size=8 depth=1 embed_dim=32"
SMALL += " num_heads=2 --img-size 16 --batch-size 4"


@pytest.fixture
def folder(tmp_path):
    """Two classes of four images each, in ``images/train``."""
    for number in range(8):
        path = tmp_path / "images" / "train" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return tmp_path / "images"


@pytest.fixture
def train(folder, monkeypatch):
    """Options → the content of model.pth, trained in this process."""

    def call(*options):
        out = folder.parent / "run"
        words = [*SMALL.split(), "--data-dir", folder, "--out", out, "--steps", 2, *options]
        monkeypatch.setattr(sys, "argv", ["train_lightning.py", *map(str, words)])
        runpy.run_path(SCRIPT, run_name="__main__")
        return torch.load(out / "model.pth", weights_only=False)

    return call


def test_the_command_of_its_first_lines_trains(folder, monkeypatch):
    """But for its number of steps, on folders of these names."""
    text = ast.get_docstring(ast.parse(Path(SCRIPT).read_text("utf-8")))
    line = re.search(r"^ +python (.*?)\n\n", text, re.DOTALL | re.MULTILINE)[1]
    monkeypatch.chdir(folder.parent)
    words = [*shlex.split(line.replace("\\\n", " ")), "--steps", "2", "--batch-size", "4"]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(ROOT / words[0]), run_name="__main__")
    assert (folder.parent / "run" / "model.pth").exists()


def test_hidden_files_are_no_images_and_folders_behind_links_are_classes(folder, train, tmp_path):
    (folder / "train" / "b").rename(tmp_path / "elsewhere")
    (folder / "train" / "b").symlink_to(tmp_path / "elsewhere")
    (folder / "train" / ".ipynb_checkpoints").mkdir()
    shutil.copy(folder / "train" / "a" / "0.png", folder / "train" / ".ipynb_checkpoints" / "0.png")
    (folder / "train" / "a" / "._0.png").write_bytes(b"of a Mac")
    assert train()["args"]["model_kwargs"]["num_classes"] == 2


def spoilt(folder, how):
    path = folder / "train" / "b" / "3.png"
    if how == "cut off":
        path.write_bytes(path.read_bytes()[:200])
    elif how == "16 bits":
        Image.fromarray(np.full((16, 16), 3000, np.uint16)).save(path)


@pytest.mark.parametrize(
    ("how", "options", "named"),
    [
        ("whole", ("--batch-size", 9), "9"),  # more than there are
        ("whole", ("--train-split", "other"), "other"),
        ("cut off", ("--no-aug",), "b/3.png"),
        ("16 bits", ("--no-aug",), "b/3.png"),
    ],
)
def test_what_cannot_be_trained_on_is_named_in_one_line(folder, train, how, options, named):
    spoilt(folder, how)
    with pytest.raises(SystemExit) as stop:
        train(*options)
    assert named in stop.value.code
    assert "\n" not in stop.value.code


def test_a_model_that_is_lost_after_the_last_step_is_written_again_with_the_averaged_weights(
    train, tmp_path
):
    steps = "--steps", 100  # a checkpoint is written each 100
    first = train(*steps)["state_dict"]
    (tmp_path / "run" / "model.pth").unlink()
    again = train(*steps)["state_dict"]
    for name, value in first.items():
        torch.testing.assert_close(again[name], value, rtol=0, atol=0)
