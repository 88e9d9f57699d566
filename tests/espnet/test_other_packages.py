"""Variants of other packages by ESPnet's own commands: FIRE, and encodings of the literature."""

import shutil

import pytest
import torch
import yaml

from espnet_support import SIZES, make

FIRE = {**SIZES, "linear_units": 32, "pos": "fire", "fire_width": 8}


def is_positional(key: str) -> bool:
    return ".positional." in key or key.startswith("positions.")


def test_one_trains_is_resumed_recognises_and_refuses_another(
    asr_train, recognise, corpus, tmp_path
):
    fire, exp = tmp_path / "fire", tmp_path / "exp"
    asr_train(fire, encoder_conf=FIRE)
    written = yaml.safe_load((fire / "config.yaml").read_text())["encoder_conf"]
    assert (written["pos"], written["fire_width"]) == ("fire", 8)
    found = recognise(fire, corpus / "valid" / "wav.scp", tmp_path / "decode")
    assert list(found) == [f"valid{index}" for index in range(4)]
    shutil.copytree(fire, exp)
    resume = "--resume", "true", "--max_epoch", 2
    for conf, named in (({"pos": "cape"}, "pos fire.* cape"), ({"pos": "fire"}, "fire_width 8")):
        with pytest.raises(ValueError, match=named) as refused:
            asr_train(exp, *resume, encoder_conf={**SIZES, "linear_units": 32, **conf})
        assert "\n" not in str(refused.value)
    asr_train(exp, *resume, encoder_conf=FIRE)
    first = torch.load(fire / "1epoch.pth", weights_only=True)
    second = torch.load(exp / "2epoch.pth", weights_only=True)
    learned = [key for key in first if key.endswith("multiplier")]
    assert len(learned) == SIZES["num_blocks"]
    assert all(1 != first[key] != second[key] for key in learned)


def test_its_options_are_for_it_alone(build):
    conf = {**SIZES, "linear_units": 32, "pos": "rope", "fire_width": 8}
    with pytest.raises(ValueError, match=r"fire_width .*cape_fire"):
        build(encoder_conf=conf)
    with pytest.raises(ValueError, match=r"fire_widt.*mean encoder_conf fire_width\?"):
        build(encoder_conf={**conf, "pos": "fire", "fire_widt": 8})


def test_layers_that_share_a_module_have_its_parameters_once(eight):
    shared, of_each = (make("cape_transformer", pos) for pos in ("t5_shared", "t5"))
    count = [sum(map(is_positional, dict(one.named_parameters()))) for one in (shared, of_each)]
    assert count == [1, SIZES["num_blocks"]]


@pytest.mark.parametrize("pos", ["fourier", "conditional", "t5", "fire"])
def test_espnets_init_leaves_what_a_variant_starts_from(eight, build, pos):
    torch.manual_seed(0)
    conf, spread = {**SIZES, "linear_units": 32, "pos": pos}, []
    for init in (None, "xavier_uniform"):
        encoder = build(encoder_conf=conf, init=init).encoder
        found = {k: one for k, one in encoder.named_parameters() if is_positional(k)}
        spread.append({k: one.std().item() for k, one in found.items() if one.numel() > 30})
    plain, drawn = spread
    assert plain.keys() == drawn.keys()
    for key, std in plain.items():
        assert drawn[key] == pytest.approx(std, rel=0.5), key
    for key, one in found.items():
        if key.endswith((".c", ".multiplier")):
            assert one.item() == pytest.approx(0.1 if key.endswith(".c") else 1.0)
        elif "bias" in key:
            assert one.abs().max() > 0, key  # ESPnet's init makes those of linear layers 0
