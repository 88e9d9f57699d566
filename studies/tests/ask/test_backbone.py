"""A backbone's weights from a file: what is fine-tuned starts from them, and so does its twin."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

timm = pytest.importorskip("timm")
pytest.importorskip("lightning")
safetensors = pytest.importorskip("safetensors.torch")

SCRIPT = Path(__file__).parents[3] / "integrations" / "timm" / "train_lightning.py"
NAME = "vit_tiny_patch16_dinov3_qkvb"


@pytest.mark.parametrize("name", [NAME, f"{NAME}_cape"])
def test_training_starts_from_the_weights_of_a_file_but_for_the_head(name, tmp_path, monkeypatch):
    spec = spec_from_file_location("train_lightning", SCRIPT)
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    own = timm.create_model(NAME, num_classes=1000)
    for parameter in own.parameters():
        torch.nn.init.normal_(parameter)
    safetensors.save_file(own.state_dict(), tmp_path / "own.safetensors")
    words = f"--data-dir {tmp_path} --out out --model {name} --img-size 32 --steps 1 --pretrained"
    words = [*words.split(), "--pretrained-path", str(tmp_path / "own.safetensors")]
    monkeypatch.setattr(sys, "argv", ["train_lightning.py", *words])
    started = script.Classifier(script.parse(), 2).task.trainable_module.state_dict()
    assert started["head.weight"].shape[0] == 2
    for key, value in own.state_dict().items():
        if not key.startswith("head"):
            torch.testing.assert_close(started[key], value, rtol=0, atol=0)
