"""Checkpoints: ours come back as what they were trained as, timm's load without their table."""

import argparse
import re

import pytest
import timm
import torch
from timm.models import load_checkpoint
from timm.task import ClassificationTask, resume_task_checkpoint
from timm.utils import CheckpointSaver, ModelEmaV3

STOCK = "vit_tiny_patch16_224"


def save(model: torch.nn.Module, path):
    torch.save(model.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def stock(create):
    """timm's name, options → its own small model, noise added to its weights."""
    return lambda name=STOCK, **options: create(name, "timm", **options)


# weights


@pytest.mark.parametrize("host", ["vit", "naflexvit"])
@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("sinpos", dict(extent=0.7)),
        ("cape", dict(max_global_scale=1.1, max_local_shift=(0.1, 0.2))),
        ("cape_alibi", dict(max_local_shift=0.0)),
    ],
)
def test_a_saved_model_comes_back_by_local_dir(create, images, host, variant, options, tmp_path):
    model = create(variant, host, **options).eval()
    timm.models.save_for_hf(model, str(tmp_path))
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    first, second = (getattr(one, "embeds", one) for one in (model, again))
    assert (first.position.pos, first.position.options) == (
        second.position.pos,
        second.position.options,
    )
    assert first.extent == second.extent
    x = images(1, 3, 96, 64)
    assert torch.equal(again(x), model(x))
    assert again.train()(x).isfinite().all()


@pytest.mark.parametrize("how", ["--pretrained", "--initial-checkpoint"])
@pytest.mark.parametrize("variant", ["nopos", "cape_low", "cape_rope"])
def test_a_standard_vit_loads_and_one_line_says_that_its_table_is_dropped(
    stock, create, load, variant, how, tmp_path, caplog
):
    given = stock("deit_tiny_patch16_224" if variant == "cape_rope" else STOCK)
    path = save(given, tmp_path / "stock.pth")
    if how == "--pretrained":
        model = load(path, variant)
    else:
        model = create(variant, checkpoint_path=str(path), fresh=True)
    (line,) = caplog.messages
    assert "pos_embed (1, 197, 32)" in line
    expected, found = given.state_dict(), dict(model.named_parameters())
    class_row = expected.pop("pos_embed")[:, :1]
    if variant == "cape_low":
        expected["cls_pos_embed"] = class_row
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    if how == "--pretrained":
        model = load(save(stock(num_classes=1000), path), variant, head=-1)
        assert model.head.weight.shape == (10, 32)  # another head keeps the rest


@pytest.mark.parametrize(
    ("theirs", "ours", "has_row"),
    [
        (dict(no_embed_class=True), {}, False),
        (dict(reg_tokens=4), dict(reg_tokens=4), True),
        (dict(img_size=(160, 224)), dict(img_size=(160, 224)), True),
        (dict(img_size=(160, 224), no_embed_class=True), dict(img_size=(160, 224)), False),
        (dict(img_size=(128, 160)), dict(img_size=(128, 160)), True),  # 81 rows are a square too
        (dict(img_size=(160, 224)), {}, True),  # another size, no square: most have a row
        (dict(class_token=False, global_pool="avg", reg_tokens=4), dict(reg_tokens=4), False),
    ],
)
def test_the_class_tokens_row_of_a_table_becomes_its_position(stock, create, theirs, ours, has_row):
    given, model = (torch.nn.ModuleDict({"part": one}) for one in (stock(**theirs), create(**ours)))
    found = model.load_state_dict(given.state_dict(), strict=False)
    assert not [name for name in found.unexpected_keys if "pos_embed" in name]
    row = given["part"].pos_embed[:, :1]
    assert torch.equal(model["part"].cls_pos_embed, row if has_row else 0 * row)


@pytest.mark.parametrize("name", [STOCK, "naflexvit_base_patch16_gap"])
def test_a_stock_model_loads_into_our_naflexvit(stock, load, name, tmp_path, caplog):
    given = stock(name, init_values=1e-5)
    target = dict(class_token=True, global_pool="token", reg_tokens=0, fc_norm=False)
    path = save(given, tmp_path / "stock.pth")
    model = load(path, host="naflexvit", **target if name == STOCK else {})
    assert "pos_embed" in caplog.text
    assert torch.equal(model.blocks[1].mlp.fc2.weight, given.blocks[1].mlp.fc2.weight)
    if name == STOCK:
        assert torch.equal(model.embeds.cls_pos_embed, given.pos_embed[:, :1])


@pytest.mark.parametrize("how", ["--pretrained", "--initial-checkpoint"])
@pytest.mark.parametrize("host", ["vit", "naflexvit"])
@pytest.mark.parametrize("other", [dict(depth=3), dict(embed_dim=64)])
def test_a_checkpoint_of_another_size_is_refused_in_one_line(
    stock, create, load, tmp_path, how, host, other
):
    ours = create("cape", host, **other)
    for model in [ours, stock(**other)] if host == "vit" else [ours]:
        path = save(model, tmp_path / "other.pth")
        given = {} if how == "--pretrained" else dict(checkpoint_path=str(path))
        with pytest.raises(ValueError, match="blocks") as caught:
            create("cape", host, **given) if given else load(path, host=host)
        assert "\n" not in str(caught.value)


# the mark: without a class token sinpos, cape, UniViT and nopos have the same weights

REFUSED = "pos cape.* sinpos"


@pytest.fixture(scope="module")
def plain(create):
    """variant, options → a model without class token."""
    return lambda variant="cape", **options: create(
        variant, depth=1, class_token=False, global_pool="avg", **options
    )


def task_of(model: torch.nn.Module) -> ClassificationTask:
    return ClassificationTask(model, criterion=torch.nn.CrossEntropyLoss(), verbose=False)


@pytest.fixture(scope="module")
def checkpoint(plain, tmp_path_factory):
    """Of cape, written as train.py writes it, with averaged weights."""
    folder, model = tmp_path_factory.mktemp("cape"), plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saver = CheckpointSaver(
        *(model, optimizer, argparse.Namespace(model="cape"), None),
        checkpoint_dir=str(folder),
    )
    saver.model_ema = ModelEmaV3(model)
    saver.save_checkpoint(0, metric=1.0)
    return folder / "last.pth.tar"


def test_what_train_py_loads_with_refuses_another_variant(plain, checkpoint):
    resume_task_checkpoint(task_of(plain()), str(checkpoint))
    with pytest.raises(ValueError, match=REFUSED):
        resume_task_checkpoint(task_of(plain("sinpos")), str(checkpoint))
    for use_ema in (False, True):
        load_checkpoint(plain(), str(checkpoint), use_ema=use_ema)
        with pytest.raises(ValueError, match=REFUSED):
            load_checkpoint(plain("sinpos"), str(checkpoint), use_ema=use_ema)


def test_another_local_shift_is_logged_but_for_one_that_depends_on_the_image(plain, caplog):
    """Any extent is taken: evaluation may have another."""
    plain(extent=2.0).load_state_dict(plain().state_dict())
    shift = dict(max_local_shift=(0.1, 0.2))
    for one, other, warns in ((shift, shift, 0), ({}, shift, 0), ({}, {}, 0), (shift, None, 1)):
        given = dict(max_local_shift=0.1) if other is None else other
        plain(**given).load_state_dict(plain(**one).state_dict())
        assert len(caplog.messages) == warns


@pytest.mark.parametrize("host", ["vit", "naflexvit"])
def test_pretrained_weights_may_be_of_another_variant_and_the_log_says_so(
    plain, load, host, tmp_path, caplog
):
    given = plain("cape", host=host)
    torch.save({"state_dict": given.state_dict()}, tmp_path / "cape.pth")
    plain_options = dict(depth=1, class_token=False, global_pool="avg")
    model = load(tmp_path / "cape.pth", "ropepos", host, **plain_options)
    (line,) = caplog.messages
    assert re.search("pos=cape .*max_global_scale=1.4.* pos=rope", line)
    assert torch.equal(model.blocks[0].attn.qkv.weight, given.blocks[0].attn.qkv.weight)
    plain("ropepos", host=host).load_state_dict(model.state_dict())  # its own from now on
    caplog.clear()
    load(tmp_path / "cape.pth", "cape", host, **plain_options)
    assert not caplog.messages
