"""cape-timm-eval with what is faulty: one line and no result."""

import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("timm")

CAPE, SINPOS = (f"vit_tiny_patch4_{name}_32" for name in ("cape", "sinpos"))


@pytest.fixture
def checkpoint(cape, tmp_path) -> Path:
    """A copy, to be spoilt."""
    return Path(shutil.copy(cape, tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--resolutions 18", "18 × 18 pixels: Input height (18) should be"),
        ("--model vit_tinny", "timm has no model 'vit_tinny'"),
        ("--model vit_tiny_patch16_224", "vit_tiny_patch16_224"),
        ("--model-kwargs num_classes=7", "size mismatch for head.weight: copying a param"),
        ("--model-kwargs dept=2", "dept"),
        ("--model-kwargs num_heads=0", "'num_heads': 0"),
        ("--model-kwargs pretrained=True", "pretrained=True"),
        ("--split test", "validation/test"),
    ],
)
def test_a_wrong_option_is_one_line_before_any_work(options, message, data, cape, refused):
    assert message in refused("-c", cape, "--data", data, *options.split())


# --- checkpoints


def test_checkpoints_that_cannot_be_tested_are_one_line(cape, data, tmp_path, refused):
    weights, path = torch.load(cape, weights_only=False)["state_dict"], tmp_path / "plain.pth"
    unread = "cannot be read as a checkpoint"
    assert f"plain.pth {unread}" in refused("-c", path, "--data", data)
    for name in ("text.pth", "text.safetensors"):
        (tmp_path / name).write_text("cat,dog\n")
        assert f"{name} {unread}" in refused("-c", tmp_path / name, "--data", data)
    for content, message in (
        (weights, "--model NAME"),
        ({"model": [1]}, unread),
        (weights["head.weight"], unread),
    ):
        torch.save(content, path)
        assert message in refused("-c", path, "--data", data)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(value, data, checkpoint, refused):
    content = torch.load(checkpoint, weights_only=False)
    content["state_dict"]["head.bias"][...] = value
    torch.save(content, checkpoint)
    error = refused("-c", checkpoint, "--data", data)
    assert f"{checkpoint} 16: NaN or infinite logits" in error


@pytest.mark.parametrize(
    ("model", "kwargs", "told"),
    [
        (SINPOS, "depth=1", "was trained with pos cape, this model has sinpos"),
        (CAPE, "frequency_scale=0.5", "was trained with frequency_scale 1, this model has 0.5"),
    ],
)
def test_other_positions_than_the_weights_are_marked_with_are_refused(
    model, kwargs, told, cape, data, refused
):
    error = refused("-c", cape, "--model", model, "--model-kwargs", kwargs, "--data", data)
    assert f"{cape} does not fit {model} with " in error
    assert told in error


@pytest.fixture
def offline(monkeypatch):
    """A connection fails the test, whatever its caller catches."""

    def connect(*where, **_):
        pytest.fail(f"connected to {where}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)


@pytest.mark.parametrize(
    ("arch", "kwargs", "told"),
    [
        ("hf-hub:someone/vit", {}, "'hf-hub:someone/vit'"),
        ("local-dir:.", {}, "'local-dir:.'"),
        (CAPE, {"pretrained": True, "pretrained_cfg": {"url": "https://a/b"}}, "pretrained=True"),
        (CAPE, {"pretrained_cfg": {"hf_hub_id": "someone/vit"}}, "pretrained_cfg="),
        (CAPE, {"checkpoint_path": "https://a/b.pth"}, "checkpoint_path='https://a/b.pth'"),
    ],
)
def test_a_checkpoint_opens_nothing_that_it_names(
    arch, kwargs, told, data, checkpoint, refused, offline
):
    content = torch.load(checkpoint, weights_only=False)
    content["arch"] = arch
    content["args"].model_kwargs.update(kwargs)
    torch.save(content, checkpoint)
    error = refused("-c", checkpoint, "--data", data)
    assert f"{checkpoint}: " in error
    assert told in error


# --- images


def test_folders_without_the_models_classes_are_refused(data, cape, tmp_path, refused):
    some = tmp_path / "some"
    shutil.copytree(data, some)
    shutil.rmtree(some / "8")
    (some / "8").mkdir()
    error = refused("-c", cape, "--data", some)
    assert f"{some} has images of 9 classes (0, 1, 2, 3, 4 …), {cape} knows 10" in error
    shutil.copytree(data, tmp_path / "more")
    shutil.copytree(data / "8", tmp_path / "more" / "eighty")
    error = refused("-c", cape, "--data", tmp_path / "more")
    assert f"{tmp_path}/more has images of 11 classes" in error
    assert "no such folder of images" in refused("-c", cape, "--data", tmp_path / "nothing")
    (tmp_path / "splits").mkdir()
    for split in ("train", "test"):  # timm would take the images of both
        (tmp_path / "splits" / split).symlink_to(some)
    error = refused("-c", cape, "--data", tmp_path / "splits")
    assert "is not <class>/<image>" in error
    assert "--split" in error


def test_an_image_that_cannot_be_used_is_named_rather_than_replaced(data, cape, tmp_path, refused):
    shutil.copytree(data, tmp_path / "one")
    bad = next((tmp_path / "one" / "3").iterdir())
    bad.write_bytes(b"no image")
    told = f"{bad} cannot be used as an image"
    assert told in refused("-c", cape, "--data", tmp_path / "one")
    Image.fromarray(np.full((16, 16), 3000, np.uint16)).save(bad)  # would be white
    assert f"{told}: it has more than 8 bits" in refused("-c", cape, "--data", tmp_path / "one")
