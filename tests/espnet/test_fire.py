"""A variant of another package, FIRE of examples/cape-fire, by ESPnet's own commands."""

import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("espnet2")

import yaml

from espnet_support import SIZES

FIRE = {**SIZES, "linear_units": 32, "pos": "fire", "fire_width": 8}


@pytest.fixture(scope="module")
def fire(asr_train, tmp_path_factory) -> Path:
    """The folder of a training of one epoch."""
    out = tmp_path_factory.mktemp("fire")
    asr_train(out, encoder_conf=FIRE)
    return out


def test_it_trains_and_a_training_is_resumed(fire, asr_train, tmp_path):
    written = yaml.safe_load((fire / "config.yaml").read_text())["encoder_conf"]
    assert (written["pos"], written["fire_width"]) == ("fire", 8)
    exp = shutil.copytree(fire, tmp_path / "exp")
    asr_train(exp, "--resume", "true", "--max_epoch", 2, encoder_conf=FIRE)
    state = torch.load(exp / "checkpoint.pth", weights_only=False)
    assert state["reporter"]["epoch"] == 2
    first = torch.load(fire / "1epoch.pth", weights_only=True)
    learned = [key for key in first if key.endswith("multiplier")]
    assert len(learned) == SIZES["num_blocks"]
    for key in learned:
        assert first[key] != 1
        assert state["model"][key] != first[key]


def test_it_recognises(fire, recognise, corpus, tmp_path):
    found = recognise(fire, corpus / "valid" / "wav.scp", tmp_path / "decode")
    assert list(found) == [f"valid{index}" for index in range(4)]


@pytest.mark.parametrize(
    ("conf", "named"),
    [
        ({"pos": "cape"}, "pos fire.* cape"),
        ({"pos": "fire"}, "fire_width 8"),
        ({"pos": "rope", "fire_width": 8}, "fire_width .*cape_fire"),
        ({"pos": "fire", "fire_width": 0}, "fire_width"),
    ],
)
def test_another_variants_model_or_option_refuses_it(conf, named, fire, asr_train, tmp_path):
    exp = shutil.copytree(fire, tmp_path / "exp")
    conf = {**SIZES, "linear_units": 32, **conf}
    with pytest.raises(ValueError, match=named) as refused:
        asr_train(exp, "--resume", "true", "--max_epoch", 2, encoder_conf=conf)
    assert "\n" not in str(refused.value)


def test_espnets_init_leaves_its_function_and_thresholds_as_they_are_at_first(build):
    model = build(encoder_conf=FIRE, init="xavier_uniform")
    for name, value in model.encoder.named_parameters():
        if name.endswith((".c", ".multiplier")):
            assert value.item() == pytest.approx(0.1 if name.endswith(".c") else 1.0)
        elif "function" in name and name.endswith("bias"):
            assert value.abs().max() > 0  # those of ESPnet's linear layers are 0
