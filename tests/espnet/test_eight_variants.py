"""Encodings of the literature, written outside: ESPnet's encoders run all of them."""

import pytest
import torch

pytest.importorskip("espnet2")

from cape_support import EIGHT
from espnet_support import SIZES, assert_alone, batch, make


@pytest.mark.parametrize("pos", EIGHT)
@pytest.mark.parametrize("name", ["cape_transformer", "cape_conformer"])
def test_an_encoder_learns_with_it_and_padding_changes_nothing(eight, name, pos):
    encoder = make(name, pos)
    features, lengths = batch(60, 43)
    out, _, _ = encoder.train()(features, lengths)
    out.square().mean().backward()
    learned = [key for key, one in encoder.named_parameters() if is_positional(key)]
    assert bool(learned) == (pos not in ("xpos", "shape"))
    for key, one in encoder.named_parameters():
        assert not is_positional(key) or one.grad.isfinite().all()
    assert_alone(encoder.eval(), features, lengths)


def is_positional(key: str) -> bool:
    return ".positional." in key or key.startswith("positions.")


def test_layers_that_share_a_module_have_its_parameters_once(eight):
    shared, of_each = (make("cape_transformer", pos) for pos in ("t5_shared", "t5"))
    count = [
        sum(is_positional(key) for key, _ in one.named_parameters()) for one in (shared, of_each)
    ]
    assert count == [1, SIZES["num_blocks"]]


@pytest.mark.parametrize("pos", ["fourier", "conditional", "t5"])
def test_espnets_init_leaves_what_a_variant_starts_from(eight, build, pos):
    torch.manual_seed(0)
    conf = {**SIZES, "linear_units": 32, "pos": pos}
    spread = []
    for init in (None, "xavier_uniform"):
        encoder = build(encoder_conf=conf, init=init).encoder
        found = {k: one for k, one in encoder.named_parameters() if is_positional(k)}
        spread.append({k: one.std().item() for k, one in found.items() if one.numel() > 30})
    plain, drawn = spread
    assert plain.keys() == drawn.keys()
    for key, std in plain.items():
        assert drawn[key] == pytest.approx(std, rel=0.5), key
    if pos == "fourier":
        biases = [one for k, one in encoder.named_parameters() if "network" in k and "bias" in k]
        assert all(one.abs().max() > 0 for one in biases)  # ESPnet's init makes them 0


def test_a_misspelt_option_is_told_with_those_there_are(eight, build):
    conf = {**SIZES, "linear_units": 32, "pos": "fourier", "fourier_featurs": 8}
    with pytest.raises(ValueError, match=r"fourier_featurs.*mean encoder_conf fourier_features\?"):
        build(encoder_conf=conf)
