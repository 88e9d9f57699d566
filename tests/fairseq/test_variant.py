"""A checkpoint of another variant is refused before training."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq.models import MODEL_REGISTRY
from omegaconf import OmegaConf

from cape_plugins.fairseq.config import CapeTransformerConfig
from cape_plugins.variants import get, names

VARIANTS = names(1)


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


@pytest.fixture
def build_from_checkpoint(dictionary):
    """Build a model from the plain options of a checkpoint."""

    def build_model(without=(), **options):
        values = {**dataclasses.asdict(CapeTransformerConfig()), "source_bos": "auto", **options}
        sizes = {"embed_dim": 16, "ffn_embed_dim": 16, "layers": 1}
        values |= {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in sizes.items()}
        values = {name: v for name, v in values.items() if not name.startswith(without)}
        task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
        cfg = OmegaConf.create({"model": values}).model
        return MODEL_REGISTRY["cape_transformer"].build_model(cfg, task)

    return build_model


def test_options_from_before_relpos_and_admin_build(build_from_checkpoint):
    model = build_from_checkpoint(("relpos", "admin"), pos="sinpos", source_scale=1.0)
    assert model.encoder.embed_positions.embedding.pos == "sinpos"


def test_options_from_before_they_were_refused_build(build_from_checkpoint, seen_positions, caplog):
    # a source scale was counted then whatever the variant, and any option could be given
    model = build_from_checkpoint(pos="sinpos", source_scale=1.25, max_global_shift=10.0)
    assert "source_scale 1.25 has no effect with --pos sinpos" in caplog.text
    model(torch.tensor([[5, 6, 7]]), None, torch.tensor([[2, 10, 11]]))
    torch.testing.assert_close(seen_positions[0], torch.arange(3.0)[None])


@pytest.mark.parametrize("pos", names(1))
def test_every_variant_is_marked_by_its_number_in_the_table(build, pos):
    assert build(pos).state_dict()["decoder.variant.number"].tolist() == [get(pos).number]


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
