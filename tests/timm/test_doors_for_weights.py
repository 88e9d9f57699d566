"""timm's doors for weights: our models come back by each, and timm's files start them."""

import copy
import json
import logging

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import load_checkpoint
from timm.task import ClassificationTask
from timm.task._helpers import load_task_ema_checkpoint  # what train.py --resume --model-ema calls

EVA = "vit_small_patch16_dinov3_cape"
LIKE_A_VIT = dict(class_token=True, global_pool="token", reg_tokens=0, fc_norm=False)
HOSTS = {"vit": {}, "naflexvit": dict(LIKE_A_VIT, init_values=1e-5)}


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Equal weights, of the same names."""
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


@pytest.mark.parametrize("host", HOSTS)
def test_googles_layout_is_refused_by_a_line_that_says_how_to_convert_it(create, host):
    for refused in (
        lambda: create("cape", host, checkpoint_path="Ti_16.npz"),
        lambda: load_checkpoint(create("cape", host), "Ti_16.npz"),
    ):
        with pytest.raises(ValueError, match=r"Ti_16\.npz .*state_dict") as caught:
            refused()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("host", HOSTS)
def test_what_a_variant_learns_about_positions_starts_as_initialized(
    create, load, host, tmp_path, caplog
):
    torch.save(create("nopos", host, **HOSTS[host]).state_dict(), tmp_path / "nopos.pth")
    model = load(tmp_path / "nopos.pth", "sinpos", host, **HOSTS[host])
    assert "cls_pos_embed" in caplog.text
    embeds = getattr(model, "embeds", model)
    assert 0.01 < embeds.cls_pos_embed.std() < 0.03
    torch.save(model.state_dict(), tmp_path / "sinpos.pth")
    caplog.clear()
    load(tmp_path / "sinpos.pth", "nopos", host, **HOSTS[host])
    assert "dropped" in caplog.text
    assert "cls_pos_embed" in caplog.text


@pytest.mark.parametrize("host", [*HOSTS, EVA])
def test_a_published_model_is_the_same_from_the_hub(create, host, tmp_path, monkeypatch):
    own = dict(embed_dim=64) if host == EVA else HOSTS[host]
    model = create(EVA, "eva", **own) if host == EVA else create("cape", host, **own)
    revision = tmp_path / "models--us--vit" / "snapshots" / ("0" * 40)
    (tmp_path / "models--us--vit" / "refs").mkdir(parents=True)
    (tmp_path / "models--us--vit" / "refs" / "main").write_text(revision.name)
    timm.models.save_for_hf(model, str(revision), safe_serialization=True)
    assert json.loads((revision / "config.json").read_text())["architecture"]
    # the hub's own cache, as without network
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    again = timm.create_model("hf-hub:us/vit", pretrained=True, cache_dir=str(tmp_path))
    assert type(again) is type(model)
    assert same(again, model)


def test_safetensors_and_averaged_weights_load_by_each_door(create, load, tmp_path, caplog):
    model = create("cape")
    save_file(model.state_dict(), tmp_path / "c.safetensors")
    torch.save(
        {
            "state_dict": create("cape", fresh=True).state_dict(),
            "state_dict_ema": model.state_dict(),
        },
        tmp_path / "ema.pth.tar",
    )
    with caplog.at_level(logging.WARNING):
        for name in ("c.safetensors", "ema.pth.tar"):
            path = tmp_path / name
            assert same(create("cape", fresh=True, checkpoint_path=str(path)), model)
            assert same(load(path), model)
        criterion = torch.nn.CrossEntropyLoss()
        resumed = ClassificationTask(create("cape", fresh=True), criterion, verbose=False)
        resumed.setup_ema()
        load_task_ema_checkpoint(resumed, str(tmp_path / "ema.pth.tar"))
        assert same(resumed.get_eval_model(ema=True).module, model)
    assert not caplog.messages


# Weights in parts, and models without their last blocks: as timm's own

PARTS = {"cape_low": "vit", "ropepos": "vit", "cape": "naflexvit"}


@pytest.mark.parametrize("variant", PARTS)
def test_weights_in_several_files_load_as_one(create, variant, tmp_path):
    model = create(variant, PARTS[variant])
    huggingface_hub.save_torch_model(model, tmp_path, max_shard_size="50KB")
    assert len([*tmp_path.glob("*.safetensors")]) > 1
    again = create(variant, PARTS[variant], fresh=True)
    huggingface_hub.load_torch_model(again, tmp_path)
    assert same(again, model)


@pytest.mark.parametrize("variant", PARTS)
def test_a_model_without_its_last_blocks_takes_the_weights_of_the_others(create, variant):
    whole = create(variant, PARTS[variant], depth=3)
    pruned = create(variant, PARTS[variant], depth=3, fresh=True)
    pruned.prune_intermediate_layers([1])
    pruned.load_state_dict(whole.state_dict(), strict=False)
    assert len(pruned.blocks) == 2
    expected = whole.state_dict()
    assert all(each.equal(expected[name]) for name, each in pruned.state_dict().items())


@pytest.mark.parametrize("host", HOSTS)
def test_a_checkpoint_that_is_refused_has_changed_nothing(create, host):
    model, other = create("cape", host), create("sinpos", host)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="pos sinpos"):
        model.load_state_dict({name: each + 1 for name, each in other.state_dict().items()})
    assert all(each.equal(before[name]) for name, each in model.state_dict().items())


@pytest.mark.parametrize(
    ("host", "trained", "given", "advice"),
    [
        ("vit", ("ropepos", {}), ("cape", {}), "ropepos in its name"),
        ("naflexvit", ("ropepos", {}), ("cape", {}), "ropepos in its name"),
        ("vit", ("cape_low", {}), ("cape", {}), "low in its name"),
        ("vit", ("alibi", dict(img_size=128)), ("alibi", {}), "img_size=128"),
        ("naflexvit", ("alibi", dict(pos_embed_grid_size=(8, 8))), ("alibi", {}), r"=\(8, 8\)"),
    ],
)
def test_a_refusal_says_what_to_create(create, host, trained, given, advice):
    """It names what one types: a name or an argument of timm's, not what the core calls it."""
    state = create(trained[0], host, **trained[1]).state_dict()
    with pytest.raises(ValueError, match=f"create the model with .*{advice}"):
        create(given[0], host, **given[1]).load_state_dict(state)
