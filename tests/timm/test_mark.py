"""What a checkpoint of timm's train.py says of its variant, and who listens."""

import argparse
import copy
import logging
import pickle
import re
from pathlib import Path

import pytest
import torch

timm = pytest.importorskip("timm")

from timm.models import load_checkpoint, resume_checkpoint  # noqa: E402
from timm.task import ClassificationTask, resume_task_checkpoint  # noqa: E402
from timm.utils import CheckpointSaver, ModelEmaV3  # noqa: E402

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off

# without a class token sinpos, cape, UniViT and nopos have the same weights
SMALL = dict(depth=1, num_classes=10, class_token=False, global_pool="avg")
REFUSED = "was trained with pos=cape .*this model has pos=sinpos: create the model it was trained"


def create(variant: str = "cape", **kwargs) -> torch.nn.Module:
    return timm.create_model(f"vit_tiny_patch16_{variant}_224", **{**SMALL, **kwargs})


def task_of(model: torch.nn.Module) -> ClassificationTask:
    return ClassificationTask(model, criterion=torch.nn.CrossEntropyLoss(), verbose=False)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """Of cape, written as train.py writes it, with averaged weights."""
    folder, model = tmp_path_factory.mktemp("cape"), create()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saver = CheckpointSaver(
        *(model, optimizer, argparse.Namespace(model="cape"), None),
        checkpoint_dir=str(folder),
    )
    saver.model_ema = ModelEmaV3(model)
    saver.save_checkpoint(0, metric=1.0)
    return folder / "last.pth.tar"


@pytest.mark.parametrize("use_naflex", [False, True])
def test_a_checkpoint_resumes_as_its_own_variant_only(use_naflex, tmp_path):
    torch.save({"state_dict": create(use_naflex=use_naflex).state_dict()}, tmp_path / "c.pth")
    resume_checkpoint(create(use_naflex=use_naflex), str(tmp_path / "c.pth"))
    with pytest.raises(ValueError, match=REFUSED):
        resume_checkpoint(create("sinpos", use_naflex=use_naflex), str(tmp_path / "c.pth"))


def test_what_train_py_resumes_with_refuses_another_variant(checkpoint):
    resume_task_checkpoint(task_of(create()), str(checkpoint))
    with pytest.raises(ValueError, match=REFUSED):
        resume_task_checkpoint(task_of(create("sinpos")), str(checkpoint))


@pytest.mark.parametrize("use_ema", [False, True])
def test_initial_checkpoint_refuses_another_variant(checkpoint, use_ema):
    load_checkpoint(create(), str(checkpoint), use_ema=use_ema)
    with pytest.raises(ValueError, match=REFUSED):
        load_checkpoint(create("sinpos"), str(checkpoint), use_ema=use_ema)


@pytest.mark.parametrize(
    ("variant", "options", "told"),
    [
        ("univit", {}, "this model has pos=cape max_global_scale=1.0 "),
        ("cape", dict(max_global_shift=0.0), "this model has .*max_global_shift=0.0"),
        ("cape", dict(max_local_shift=(0.1, 0.2)), r"max_local_shift=\(0.1,0.2\)"),
    ],
)
def test_other_shifts_and_scales_are_told(variant, options, told, checkpoint, caplog):
    with caplog.at_level(logging.WARNING):
        resume_checkpoint(create(variant, **options), str(checkpoint))
    (message,) = caplog.messages
    assert re.search(told, message)


def test_the_same_settings_and_another_extent_say_nothing(checkpoint, caplog):
    with caplog.at_level(logging.WARNING):
        resume_checkpoint(create(extent=2.0), str(checkpoint))
    assert not caplog.messages


def test_pretrained_weights_may_be_of_another_variant_and_the_log_says_so(checkpoint, caplog):
    overlay = dict(file=str(checkpoint), num_classes=10)
    with caplog.at_level(logging.WARNING):
        model = create("sinpos", pretrained=True, pretrained_cfg_overlay=overlay)
    assert "weights were trained with pos=cape" in caplog.text
    weights = torch.load(checkpoint, weights_only=False)["state_dict_ema"]
    assert torch.equal(model.patch_embed.proj.weight, weights["patch_embed.proj.weight"])
    create("sinpos").load_state_dict(model.state_dict())  # the model's own variant from now on


def test_a_state_dict_has_the_weights_alone():
    model = create()
    assert [*model.state_dict()] == [name for name, _ in model.named_parameters()]


def test_a_stock_vit_without_positions_loads_nopos_strictly_and_the_other_way_round():
    stock = timm.create_model("vit_tiny_patch16_224", pos_embed="none", **SMALL)
    stock.load_state_dict(create("nopos").state_dict())
    create("nopos").load_state_dict(stock.state_dict())


def test_checkpoints_without_a_mark_load(tmp_path, checkpoint):
    from safetensors.torch import save_file

    model = create()
    plain = {name: weight.clone() for name, weight in model.state_dict().items()}
    torch.save(plain, tmp_path / "old.pth")
    save_file(model.state_dict(), tmp_path / "c.safetensors")
    for name in ("old.pth", "c.safetensors"):
        load_checkpoint(create("sinpos"), str(tmp_path / name))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_a_model_mark_and_compare_as_well(again):
    model = again(create())
    with pytest.raises(ValueError, match=REFUSED):
        create("sinpos").load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match="this model has pos=cape"):
        model.load_state_dict(create("sinpos").state_dict())


def test_another_frequency_scale_is_told(caplog, tmp_path):
    torch.save({"state_dict": create("cape_low").state_dict()}, tmp_path / "c.pth")
    with caplog.at_level(logging.WARNING):
        resume_checkpoint(create("cape"), str(tmp_path / "c.pth"))
    assert "was trained with pos=cape frequency_scale=0.1 " in caplog.text
