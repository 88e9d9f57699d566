"""Checkpoints: ours come back, timm's load without their table of positions, others are refused."""

import logging

import pytest
import torch

timm = pytest.importorskip("timm")

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off

SMALL = dict(depth=2, num_classes=10)
CAPE = "vit_tiny_patch16_cape_224"


def create(name: str = CAPE, **kwargs) -> torch.nn.Module:
    return timm.create_model(name, **{**SMALL, **kwargs})


def load(path, name: str = CAPE, *, head: int = 10, **kwargs) -> torch.nn.Module:
    """As train.py --pretrained --pretrained-path does; it says head=-1: always a new head."""
    overlay = dict(file=str(path), num_classes=head)
    return create(name, pretrained=True, pretrained_cfg_overlay=overlay, **kwargs)


def save(model: torch.nn.Module, path):
    torch.save(model.state_dict(), path)
    return path


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("nopos", dict()),
        ("sinpos", dict(extent=0.7)),
        ("cape", dict(max_global_scale=1.1, max_local_shift=(0.1, 0.2))),
        ("univit", dict(max_global_scale=1.1, max_local_shift=(0.1, 0.2))),
    ],
)
def test_a_saved_model_comes_back_by_local_dir_with_its_options(variant, options, tmp_path):
    model = create(f"vit_tiny_patch16_{variant}_224", **options).eval()
    timm.models.save_for_hf(model, str(tmp_path))
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    for name, value in options.items():
        found = getattr(again.position, name)
        assert (tuple(found) if isinstance(found, list) else found) == value
    x = images(1, 3, 96, 64)
    assert torch.equal(again(x), model(x))
    assert again.train()(x).isfinite().all()


def test_a_checkpoint_of_one_image_size_serves_another(tmp_path):
    path = save(create(img_size=224), tmp_path / "224.pth")
    model = create(img_size=384, checkpoint_path=str(path))
    assert model(images(1, 3, 384, 384)).shape == (1, 10)


def test_a_standard_vit_checkpoint_loads_and_its_table_is_dropped_aloud(tmp_path, caplog):
    stock = create("vit_tiny_patch16_224")
    with caplog.at_level(logging.WARNING):
        model = load(save(stock, tmp_path / "stock.pth"))
    assert "dropped pos_embed (1, 197, 192)" in caplog.text
    assert torch.equal(model.cls_pos_embed, stock.pos_embed[:, :1])
    assert torch.equal(model.blocks[1].mlp.fc2.weight, stock.blocks[1].mlp.fc2.weight)
    assert torch.equal(model.head.weight, stock.head.weight)


def test_a_table_without_a_row_for_the_class_token_leaves_it_without_position(tmp_path):
    stock = create("vit_tiny_patch16_224", no_embed_class=True)
    model = load(save(stock, tmp_path / "stock.pth"))
    assert torch.equal(model.cls_pos_embed, torch.zeros(1, 1, 192))


@pytest.mark.parametrize("variant", ["nopos", "sinpos", "univit"])
def test_every_variant_takes_a_standard_vit_checkpoint(variant, tmp_path):
    stock = create("vit_tiny_patch16_224")
    model = load(save(stock, tmp_path / "stock.pth"), f"vit_tiny_patch16_{variant}_224")
    assert torch.equal(model.norm.weight, stock.norm.weight)


def test_a_checkpoint_with_another_head_keeps_the_rest(tmp_path):
    stock = create("vit_tiny_patch16_224", num_classes=1000)
    model = load(save(stock, tmp_path / "stock.pth"), head=-1)
    assert model.head.weight.shape == (10, 192)
    assert torch.equal(model.patch_embed.proj.weight, stock.patch_embed.proj.weight)


def test_another_head_that_nobody_announced_is_named(tmp_path):
    path = save(create(num_classes=7), tmp_path / "seven.pth")
    with pytest.raises(RuntimeError, match=r"size mismatch for head.weight.*\[7, 192\]"):
        load(path)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (dict(depth=3), "width 192 with 3 blocks, the model has width 192 and 2 blocks"),
        (dict(embed_dim=384), "width 384 with 2 blocks, the model has width 192 and 2 blocks"),
    ],
)
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", CAPE])
def test_a_checkpoint_of_another_model_size_is_refused_in_one_line(tmp_path, name, other, message):
    path = save(create(name, **other), tmp_path / "other.pth")
    with pytest.raises(ValueError, match=message):
        load(path)


def test_timms_patches_are_resized_to_ours(tmp_path):
    path = save(create("vit_tiny_patch16_224"), tmp_path / "stock.pth")
    model = load(path, "vit_tiny_patch8_cape_64")
    assert model.patch_embed.proj.weight.shape == (192, 3, 8, 8)
    assert model(images(1, 3, 64, 64)).isfinite().all()
