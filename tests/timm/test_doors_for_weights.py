"""Every door of timm for weights gives the same model, or one line that says why not."""

import functools
import json
import logging
import shutil

import huggingface_hub
import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import load_checkpoint, resume_checkpoint
from timm.task import ClassificationTask, resume_task_checkpoint
from timm.task._helpers import load_task_ema_checkpoint  # what train.py --resume --model-ema calls

from cape_plugins.timm import google
from cape_plugins.timm.files import fault

STOCK = "vit_tiny_patch16_224"
EVA = "vit_small_patch16_dinov3_cape"
LIKE_A_VIT = dict(class_token=True, global_pool="token", reg_tokens=0, fc_norm=False)
HOSTS = {"vit": {}, "naflexvit": dict(LIKE_A_VIT, init_values=1e-5)}


def googles(model: torch.nn.Module, is_big_vision: bool) -> dict[str, np.ndarray]:
    """A stock ViT's weights in Google's layout: Vision Transformer's, or Big Vision's, scanned."""
    width, heads = model.embed_dim, model.blocks[0].attn.num_heads
    sub = dict(attention=0, mlp=0, norm=1) if is_big_vision else dict(attention=1, mlp=3, norm=2)
    table = "pos_embedding" if is_big_vision else "Transformer/posembed_input/pos_embedding"
    found = {"cls": model.cls_token, table: model.pos_embed}
    found["embedding/kernel"] = model.patch_embed.proj.weight.permute(2, 3, 1, 0)
    found["embedding/bias"] = model.patch_embed.proj.bias
    found["Transformer/encoder_norm/scale"] = model.norm.weight
    found["Transformer/encoder_norm/bias"] = model.norm.bias
    found |= {"head/kernel": model.head.weight.T, "head/bias": model.head.bias}
    blocks = []
    for block in model.blocks:
        attention, each = f"MultiHeadDotProductAttention_{sub['attention']}", {}
        for name, norm in (("LayerNorm_0", block.norm1), (f"LayerNorm_{sub['norm']}", block.norm2)):
            each |= {f"{name}/scale": norm.weight, f"{name}/bias": norm.bias}
        weights = block.attn.qkv.weight.chunk(3), block.attn.qkv.bias.chunk(3)
        for name, weight, bias in zip(("query", "key", "value"), *weights, strict=True):
            each[f"{attention}/{name}/kernel"] = weight.T.reshape(width, heads, -1)
            each[f"{attention}/{name}/bias"] = bias.reshape(heads, -1)
        each[f"{attention}/out/kernel"] = block.attn.proj.weight.T.reshape(heads, -1, width)
        each[f"{attention}/out/bias"] = block.attn.proj.bias
        for number, layer in enumerate((block.mlp.fc1, block.mlp.fc2)):
            each[f"MlpBlock_{sub['mlp']}/Dense_{number}/kernel"] = layer.weight.T
            each[f"MlpBlock_{sub['mlp']}/Dense_{number}/bias"] = layer.bias
        blocks.append(each)
    for name in blocks[0]:
        values = [block[name] for block in blocks]
        if is_big_vision:
            found[f"Transformer/encoderblock/{name}"] = torch.stack(values)
        else:
            found |= {f"Transformer/encoderblock_{i}/{name}": one for i, one in enumerate(values)}
    return {name: value.detach().numpy() for name, value in found.items()}


@pytest.fixture(scope="module")
def stock(create):
    return create(STOCK, "timm")


@pytest.fixture(scope="module")
def folder(stock, create, tmp_path_factory):
    """The same stock ViT in each format, and files that hold no weights of a ViT."""
    path = tmp_path_factory.mktemp("weights")
    weights = stock.state_dict()
    torch.save(weights, path / "vit.pth")
    torch.save({"state_dict": weights, "epoch": 3}, path / "vit.pth.tar")
    save_file(weights, path / "vit.safetensors")
    np.savez(path / "vit.npz", **googles(stock, is_big_vision=False))
    np.savez(path / "big_vision.npz", **googles(stock, is_big_vision=True))
    np.savez(path / "names_of_timm.npz", **{name: one.numpy() for name, one in weights.items()})
    np.save(path / "array.npy", np.zeros(3))
    for name in ("vit.pth", "vit.safetensors", "vit.npz"):
        whole = (path / name).read_bytes()
        (path / f"half_{name}").write_bytes(whole[: len(whole) // 2])
        (path / f"page_{name}").write_text("<!DOCTYPE html><html>Not found</html>")
    damaged = bytearray((path / "vit.npz").read_bytes())
    damaged[2000:2200] = bytes(200)
    (path / "damaged.npz").write_bytes(damaged)
    (path / "empty.pth").touch()
    (path / "pointer.pth").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    shutil.copy(path / "vit.pth", path / "torchs.safetensors")
    torch.save(torch.nn.Conv2d(3, 4, 1).state_dict(), path / "conv.pth")
    torch.save({"state_dict": create("cape", "naflexvit").state_dict()}, path / "naflex.pth")
    return path


@pytest.fixture
def refused(caplog):
    """message, what to call → an exception of one line is raised that has the message."""

    def check(message: str, call) -> None:
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400

    return check


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Equal weights, of the same names."""
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


# Google's layout


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("name", ["vit.npz", "big_vision.npz"])
def test_googles_weights_give_the_model_that_timms_give(
    create, load, folder, stock, host, name, caplog
):
    expected = load(folder / "vit.pth", host=host, **HOSTS[host])
    caplog.clear()
    made = dict(
        checkpoint_path=create(
            "cape", host, fresh=True, checkpoint_path=str(folder / name), **HOSTS[host]
        ),
        file=load(folder / name, host=host, **HOSTS[host]),
        load_checkpoint=create("cape", host, fresh=True, **HOSTS[host]),
    )
    load_checkpoint(made["load_checkpoint"], str(folder / name))
    assert all(same(one, expected) for one in made.values())
    assert caplog.text.count("dropped pos_embed (1, 197, 32) of the checkpoint") == 3
    tokens = getattr(expected, "embeds", expected)
    assert torch.equal(tokens.cls_pos_embed, stock.pos_embed[:, :1])
    scales = [one for each, one in expected.named_parameters() if each.endswith("gamma")]
    assert len(scales) == (4 if host == "naflexvit" else 0)
    assert all((one == 1).all() for one in scales)
    assert not made["file"].pretrained_cfg["state_dict"]  # not kept as long as the model


def test_reading_googles_weights_draws_no_random_numbers(folder):
    state = torch.get_rng_state()
    google.read(folder / "vit.npz")
    assert torch.equal(torch.get_rng_state(), state)


def test_layer_scale_that_a_checkpoint_does_not_have_is_1(create, load, folder):
    for name in ("vit.pth", "vit.npz"):
        model = load(folder / name, init_values=1e-5)
        assert (model.blocks[1].ls2.gamma == 1).all()


def test_googles_head_for_other_classes_is_left_and_the_log_says_so(create, load, folder, caplog):
    model = create("cape", fresh=True, num_classes=7, checkpoint_path=str(folder / "vit.npz"))
    assert "is for 10 classes, the model's for 7: the model's stays" in caplog.text
    assert same(model.blocks, load(folder / "vit.pth").blocks)
    model = load(folder / "vit.npz", head=-1)  # as train.py --pretrained-path
    assert (model.head.bias == 0).all()


def test_googles_patches_and_channels_are_converted_as_timms(create, load, folder):
    for options in (dict(patch_size=8, img_size=64), dict(in_chans=1)):
        one, other = (load(folder / f"vit.{end}", **options) for end in ("npz", "pth"))
        assert same(one, other)
        assert same(
            one, create("cape", checkpoint_path=str(folder / "vit.npz"), fresh=True, **options)
        )


def test_googles_weights_of_another_size_or_kind_are_refused(
    create, load, refused, folder, stock, tmp_path
):
    path = str(folder / "vit.npz")
    refused(
        "32 with 2 blocks, the model has width 32 and 3",
        lambda: create("cape", depth=3, checkpoint_path=path),
    )
    refused("width 32 with 2 blocks", lambda: load(path, embed_dim=64))
    weights = googles(stock, is_big_vision=False)
    np.savez(tmp_path / "hybrid.npz", **weights, **{"conv_root/kernel": np.zeros(3)})
    weights.pop("Transformer/encoder_norm/scale")
    np.savez(tmp_path / "gap.npz", **weights)
    weights.pop("Transformer/posembed_input/pos_embedding")
    np.savez(tmp_path / "bare.npz", **weights)
    for name, message in [
        ("hybrid", "has a ResNet before the ViT, .*: load it into timm's own model"),
        ("gap", "not in Google's layout of a ViT throughout: .*encoder_norm"),
        ("bare", "has no table of positions"),
    ]:
        refused(message, lambda name=name: load(tmp_path / f"{name}.npz"))
        refused(
            message, lambda name=name: create("cape", checkpoint_path=str(tmp_path / f"{name}.npz"))
        )


def test_a_rotary_vit_refuses_googles_layout(create, refused, folder):
    options = dict(embed_dim=64, fresh=True)
    path = str(folder / "vit.npz")
    message = "vit.npz is for plain ViTs .*, .* is none: give a .pth"
    refused(message, lambda: create(EVA, "eva", checkpoint_path=path, **options))
    overlay = dict(pretrained=True, pretrained_cfg_overlay=dict(file=path))
    refused(message, lambda: create(EVA, "eva", **overlay, **options))


# files that hold no weights


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("half_vit.pth", "is truncated: copy or download it again"),
        ("half_vit.npz", "is truncated: copy or download it again"),
        ("half_vit.safetensors", "is truncated, or no safetensors file: copy or download"),
        ("page_vit.pth", "is an HTML page, no weights: download the file itself"),
        ("page_vit.npz", "is an HTML page, no weights"),
        ("page_vit.safetensors", "is an HTML page, no weights"),
        ("damaged.npz", r"is damaged \(.*\): copy or download it again"),
        ("torchs.safetensors", "is no safetensors file but torch.save's: name it .pth"),
        ("pointer.pth", "is a pointer of Git LFS, no weights: .*git lfs pull"),
        ("empty.pth", "is empty: copy or download it again"),
        ("nowhere.pth", "does not exist: give the path of a .pth, .safetensors or .npz"),
        ("", "is a folder: give a file, or local-dir:"),
        ("names_of_timm.npz", "not in Google's layout of a ViT: .*cls_token.*: give a .pth|; give"),
        ("array.npy", "holds one array, expected an .npz"),
    ],
)
def test_a_file_without_weights_is_told_by_name(create, load, refused, folder, name, message):
    refused(f"{name} {message}" if name else message, lambda: load(folder / name))
    if name.endswith(("npz", "npy")):  # by these doors timm lets our model read the file
        path = str(folder / name)
        refused(message, lambda: create("cape", checkpoint_path=path))
        refused(message, lambda: load_checkpoint(create("cape"), path))


def test_files_with_weights_have_no_fault(folder):
    names = ("vit.pth", "vit.pth.tar", "vit.safetensors", "vit.npz", "conv.pth")
    assert [fault(folder / name) for name in names] == [None] * len(names)


@pytest.mark.parametrize("name", ["half_vit.safetensors", "page_vit.pth"])
def test_a_folder_with_a_damaged_file_is_told_by_the_files_name(
    create, refused, folder, name, tmp_path
):
    timm.models.save_for_hf(create("cape"), str(tmp_path), safe_serialization=False)
    (tmp_path / "pytorch_model.bin").unlink()
    shutil.copy(folder / name, tmp_path)
    refused(name, lambda: timm.create_model(f"local-dir:{tmp_path}", pretrained=True))


# weights of other models


def task(model: torch.nn.Module) -> ClassificationTask:
    return ClassificationTask(model, criterion=torch.nn.CrossEntropyLoss(), verbose=False)


@pytest.mark.parametrize(
    ("host", "name", "message"),
    [
        ("vit", "conv.pth", "not a ViT with timm's names, it has weight, bias: give one of"),
        ("naflexvit", "conv.pth", "not a ViT with timm's names, it has weight, bias: give one of"),
        (EVA, "conv.pth", "not a ViT with timm's names, it has weight, bias: give one of EvaCape"),
        ("naflexvit", "vit.pth", "lacks .*embeds.proj.weight.* and .*: it is a ViT's, this model"),
        ("vit", "naflex.pth", "lacks .* it is a NaFlexVit's, this model a ViT: create it as"),
    ],
)
def test_a_checkpoint_of_another_architecture_is_refused_at_each_door(
    create, refused, folder, host, name, message
):
    path = str(folder / name)
    if host == EVA:
        make = functools.partial(create, EVA, "eva", embed_dim=64, fresh=True)
    else:
        make = functools.partial(create, "cape", host, fresh=True)
    model = make()
    refused(message, lambda: make(checkpoint_path=path))
    refused(message, lambda: load_checkpoint(model, path))
    refused(message, lambda: resume_task_checkpoint(task(model), path))
    refused(message, lambda: resume_checkpoint(model, path))
    with pytest.raises(RuntimeError):  # what callers of PyTorch's load_state_dict catch
        load_checkpoint(model, path)


def test_pretrained_weights_never_leave_the_body_as_it_was_initialized(load, refused, folder):
    lacks = r"checkpoint lacks patch_embed.proj.weight, patch_embed.proj.bias: it is a NaFlexVit's"
    refused(lacks, lambda: load(folder / "naflex.pth", head=-1))
    refused("it has weight, bias", lambda: load(folder / "conv.pth", head=-1))


def test_a_whole_checkpoint_in_place_of_weights_is_told(create, refused, folder):
    whole = torch.load(folder / "vit.pth.tar")
    message = r"a whole checkpoint of a training: give its \['state_dict'\]"
    refused(message, lambda: create("cape").load_state_dict(whole))


def test_pretrained_weights_that_lack_a_part_are_logged(load, folder, caplog):
    load(folder / "vit.pth", host="naflexvit", head=-1)
    (line,) = [one for one in caplog.messages if "lacks" in one]
    assert "embeds.reg_token" in line
    assert "stay as they were initialized" in line


def test_sizes_that_differ_are_one_line(create, refused, folder):
    path = str(folder / "vit.pth")
    heads = (
        r"head.weight: \[10, 32\] in the checkpoint, \[7, 32\] in the model \(and 1 more\): create"
    )
    refused(heads, lambda: create("cape", num_classes=7, checkpoint_path=path))
    depth = "ViT of width 32 with 2 blocks, the model has width 32 and 3 blocks: create"
    refused(depth, lambda: create("cape", depth=3, checkpoint_path=path))


@pytest.mark.parametrize("name", ["vit.pth", "vit.npz"])
def test_what_a_variant_learns_about_positions_starts_as_initialized(load, folder, name, caplog):
    model = load(folder / name, "ropepos_mixed")
    assert "lacks blocks.0.attn.positional.frequencies" in caplog.text
    weights = {**model.state_dict()}
    torch.save(weights, folder / "mixed.pth")
    load(folder / "mixed.pth", "nopos")
    assert "dropped blocks.1.attn.positional.frequencies of the checkpoint" in caplog.text


# remap, and the other doors for our own checkpoints


def test_remap_fills_our_own_model_and_refuses_to_mix_up_pixels(create, refused, tmp_path):
    hosts = {"vit": False, "naflexvit": True}
    make = {host: functools.partial(create, "cape", use_naflex=hosts[host]) for host in hosts}
    models = {host: make[host]() for host in hosts}
    for host, model in models.items():
        torch.save(model.state_dict(), tmp_path / f"{host}.pth")
        again = make[host](fresh=True)
        load_checkpoint(again, str(tmp_path / f"{host}.pth"), remap=True)
        assert same(again, model)
    message = "remap=True reshapes the patch embedding, .* in another order: use --pretrained"
    for host, other in (("vit", "naflexvit"), ("naflexvit", "vit")):
        path = str(tmp_path / f"{other}.pth")
        refused(message, functools.partial(load_checkpoint, models[host], path, remap=True))


@pytest.mark.parametrize("host", [*HOSTS, EVA])
@pytest.mark.parametrize("door", ["local-dir", "hf-hub", "hf-hub: checkpoint"])
def test_a_published_model_is_the_same_by_each_door(create, host, door, tmp_path, monkeypatch):
    own = dict(embed_dim=64) if host == EVA else HOSTS[host]
    model = create(EVA, "eva", **own) if host == EVA else create("cape", host, **own)
    revision = tmp_path / "models--us--vit" / "snapshots" / ("0" * 40)
    (tmp_path / "models--us--vit" / "refs").mkdir(parents=True)
    (tmp_path / "models--us--vit" / "refs" / "main").write_text(revision.name)
    timm.models.save_for_hf(model, str(revision), safe_serialization=True)
    assert json.loads((revision / "config.json").read_text())["architecture"]
    given = dict(pretrained=True)
    name = f"local-dir:{revision}"
    if door != "local-dir":  # the hub's own cache, as without network
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        name, given = "hf-hub:us/vit", dict(pretrained=True, cache_dir=str(tmp_path))
    if door == "hf-hub: checkpoint":  # as of train.py, uploaded as it is
        (revision / "model.safetensors").unlink()
        torch.save({"epoch": 3, "state_dict": model.state_dict()}, revision / "pytorch_model.bin")
    assert same(timm.create_model(name, **given), model)


@pytest.mark.parametrize("name", ["vit.safetensors", "vit.npz"])
@pytest.mark.parametrize("host", HOSTS)
def test_a_stock_vit_of_the_hub_starts_ours(
    create, load, folder, host, name, tmp_path, monkeypatch
):
    revision = tmp_path / "models--us--vit" / "snapshots" / ("0" * 40)
    revision.mkdir(parents=True)
    shutil.copy(folder / name, revision)
    (tmp_path / "models--us--vit" / "refs").mkdir()
    (tmp_path / "models--us--vit" / "refs" / "main").write_text(revision.name)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    overlay = dict(hf_hub_id="us/vit", hf_hub_filename=name, num_classes=10)
    overlay |= dict(custom_load="hf") if name.endswith("npz") else {}
    given = dict(pretrained=True, pretrained_cfg_overlay=overlay, cache_dir=str(tmp_path))
    model = create("cape", host, fresh=True, **given, **HOSTS[host])
    assert same(model, load(folder / "vit.pth", host=host, **HOSTS[host]))


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
        resumed = task(create("cape", fresh=True))
        resumed.setup_ema()
        load_task_ema_checkpoint(resumed, str(tmp_path / "ema.pth.tar"))
        assert same(resumed.get_eval_model(ema=True).module, model)
    assert not caplog.messages
