"""ADMIN: scaled residuals, measured on training data while the model is built."""

import pytest
import torch

from cape_plugins.fairseq.paper.admin import AdminLayer, median_batch, profile
from fairseq_support import configure

EOS = 2
SAMPLE = {
    "net_input": {
        "src_tokens": torch.tensor([[5, 6, 7, EOS], [8, 9, 5, EOS], [4, 4, 7, EOS]]),
        "src_lengths": torch.tensor([4, 4, 4]),
        "prev_output_tokens": torch.tensor([[EOS, 10, 11], [EOS, 14, 15], [EOS, 9, 8]]),
    }
}
# 2 encoder layers of 2 residuals, 2 decoder layers of 3
ONES = ",".join(["1"] * 10)


def scales_of(model):
    named = model.named_parameters()
    vectors = [row for name, rows in named if name.endswith("residual_scale") for row in rows]
    assert all((vector == vector[0]).all() for vector in vectors)
    return [float(vector[0]) for vector in vectors]


def test_each_scale_is_the_deviation_of_all_that_comes_before(build, monkeypatch):
    model = build(admin_init=True, admin_scales=ONES, pos="sinpos", train=True)
    measured = profile(model, SAMPLE)
    torch.testing.assert_close(torch.tensor(measured), torch.tensor(scales_of(model)))
    # of residuals and sub-layers, in a model that is not profiled
    variances = {type(model.encoder.layers[0]): [], type(model.decoder.layers[0]): []}
    real = AdminLayer.residual_connection

    def spy(layer, x, residual):
        variances[type(layer)].append((residual.var(correction=0), x.var(correction=0)))
        return real(layer, x, residual)

    monkeypatch.setattr(AdminLayer, "residual_connection", spy)
    with torch.no_grad():
        model(**SAMPLE["net_input"])
    expected = []
    for side in variances.values():
        scale = 1.0
        for residual, x in side:
            expected.append(float(scale))
            scale = (scale**2 * residual + x).sqrt()
    assert len(expected) == 10
    torch.testing.assert_close(torch.tensor(measured), torch.tensor(expected))


def test_residuals_are_multiplied_by_their_scales(build, monkeypatch):
    layer = build(admin_init=True, admin_scales="1,2,1,1,1,3,5,1,1,1").decoder.layers[0]
    added = []
    real = AdminLayer.residual_connection

    def spy(layer, x, residual):
        added.append((real(layer, x, residual), x, residual))
        return added[-1][0]

    monkeypatch.setattr(AdminLayer, "residual_connection", spy)
    source = torch.randn(4, 1, 16)
    layer(torch.randn(2, 1, 16), source)
    assert len(added) == len(layer.residual_scale) == 3
    for (found, x, residual), scale in zip(added, layer.residual_scale, strict=True):
        torch.testing.assert_close(found, x + scale * residual)


def test_with_ones_it_is_the_model_without(build):
    plain, scaled = build(), build(admin_init=True, admin_scales=ONES)
    scaled.load_state_dict(plain.state_dict(), strict=False)
    for name, scale in scaled.named_parameters():
        if name.endswith("residual_scale"):
            torch.nn.init.ones_(scale)
    found, expected = (model(**SAMPLE["net_input"])[0] for model in (scaled, plain))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert not any("residual_scale" in name for name, _ in plain.named_parameters())


def test_profiling_leaves_randomness_and_mode_alone(build):
    model = build(
        admin_init=True, admin_scales=ONES, dropout=0.3, encoder_layerdrop=0.9, train=True
    )
    state = torch.get_rng_state()
    measured = profile(model, SAMPLE)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(measured) == 10  # no layer is left out
    assert all(module.training for module in model.modules())


def test_building_measures_and_stores_for_the_checkpoint(data):
    config, task = configure(data, "--admin-init --dropout 0")
    model = task.build_model(config.model)
    stored = [float(scale) for scale in config.model.admin_scales.split(",")]
    torch.testing.assert_close(torch.tensor(scales_of(model)), torch.tensor(stored))
    assert stored[0] == stored[4] == 1
    assert all(1 < scale < 10 for scale in stored[1:4] + stored[5:])
    assert "train" not in task.datasets  # the trainer loads it itself


def test_it_measures_sentences_of_the_median_length(data):
    _, task = configure(data)
    task.load_dataset("train")
    lengths = sorted(task.dataset("train")[i]["source"].numel() for i in range(10))
    batch = median_batch(task, "train", tokens=18)["net_input"]
    assert batch["src_lengths"].sort().values.tolist() == lengths[5 : 5 + 18 // lengths[5]]


@pytest.mark.parametrize("wrong", ["1,1.5", f"{ONES},1", f"{ONES[:-1]}x", f"{ONES[:-1]}0"])
def test_scales_are_positive_numbers_for_each_residual(build, wrong):
    with pytest.raises(ValueError, match="--admin-scales"):
        build(admin_init=True, admin_scales=wrong)


def test_given_scales_need_no_training_set(dictionaries):
    flags = "--admin-init -s en -t de --source-scale 1"
    config, task = configure(dictionaries, flags)
    with pytest.raises(ValueError, match="--admin-scales"):
        task.build_model(config.model)
    config, task = configure(dictionaries, f"{flags} --admin-scales {ONES.replace('1', '1.5')}")
    assert scales_of(task.build_model(config.model)) == [1.5] * 10
