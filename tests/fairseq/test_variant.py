"""A checkpoint of another variant is refused before training."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq.models import MODEL_REGISTRY
from omegaconf import OmegaConf

from cape_plugins.fairseq.config import CapeTransformerConfig

VARIANTS = ["nopos", "abspos", "sinpos", "cape", "relpos"]


@pytest.mark.parametrize("found", VARIANTS)
@pytest.mark.parametrize("wanted", ["sinpos", "cape"])
def test_weights_of_another_variant_are_refused(build, found, wanted):
    state = build(found).state_dict()
    model = build(wanted)
    if found == wanted:
        model.load_state_dict(state)
        return
    with pytest.raises(ValueError, match=f"with --pos {found}, this model has --pos {wanted}"):
        model.load_state_dict(state)


def test_weights_from_before_the_mark_load(build):
    state = build("cape", seed=1).state_dict()
    del state["decoder.variant.number"]
    model = build("cape")
    model.load_state_dict(state)
    torch.testing.assert_close(model.state_dict()["decoder.version"], state["decoder.version"])


def test_options_from_before_relpos_and_admin_build(dictionary):
    values = dataclasses.asdict(CapeTransformerConfig(pos="sinpos", source_scale=1.0))
    sizes = {"embed_dim": 16, "ffn_embed_dim": 16, "layers": 1}
    values |= {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in sizes.items()}
    for name in list(values):
        if name.startswith(("relpos", "admin")):
            del values[name]
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    cfg = OmegaConf.create({"model": {**values, "pos": "sinpos", "source_bos": "auto"}}).model
    model = MODEL_REGISTRY["cape_transformer"].build_model(cfg, task)
    assert model.encoder.embed_positions.embedding.variant == "sinpos"


def test_the_mark_survives_half_precision(build):
    model = build("cape").half()
    assert model.state_dict()["decoder.variant.number"].dtype == torch.int64
    build("cape").load_state_dict(model.state_dict())


def test_resuming_with_another_variant_fails_before_training(data, run, tmp_path):
    def train(pos, check=True):
        return run(
            *("fairseq-train", data, "--arch", "cape_transformer_tiny", "--pos", pos, "--cpu"),
            *("--optimizer", "adam", "--lr", 0.001, "--batch-size", 5, "--num-workers", 0),
            *("--save-dir", tmp_path, "--max-update", 1, "--disable-validation"),
            check=check,
        )

    train("sinpos")
    failed = train("cape", check=False)
    assert failed.returncode
    assert "trained with --pos sinpos, this model has --pos cape" in failed.stdout
    assert "begin training epoch" not in failed.stdout
