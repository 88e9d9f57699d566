"""cape-timm-eval with what is faulty: one line and no result."""

import argparse
import shutil
from pathlib import Path

import pytest
import torch

timm = pytest.importorskip("timm")

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off
from cape_studies.evaluation.timm import images  # noqa: E402

CAPE, SINPOS, UNIVIT = (f"vit_tiny_patch4_{name}_32" for name in ("cape", "sinpos", "univit"))
SMALL = dict(depth=1, embed_dim=32, num_heads=2)


@pytest.fixture
def checkpoint(cape, tmp_path) -> Path:
    """A copy, to be spoilt."""
    return Path(shutil.copy(cape, tmp_path))


# --- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--resolutions 18", "takes no images of 18 × 18 pixels: Input height (18) should be"),
        ("--resolutions 1000000000", "takes no images of 1000000000 × 1000000000 pixels"),
        ("--resolutions 16 16", "--resolutions: the list has 16 twice"),
        ("--tta", "takes no images of -16 × -16 pixels"),
        ("--tta --tta-step 16", "takes no images of 0 × 0 pixels"),
        ("--size-bins --extent ratio", "with --size-bins give numbers"),
        ("--size-bins --tta --resolutions 64", "--size-bins, --tta and --throughput do not go"),
        ("--extent nan", "--extent: input should be a finite number or input should be 'ratio' or"),
        ("--attention-logn 1", "--attention-logn takes tokens of a training sample, ≥ 2, or"),
        ("--model vit_tinny", "is of vit_tinny, which timm does not know: give --model NAME"),
        ("--model vit_tiny_patch16_cape_224", "does not fit vit_tiny_patch16_cape_224"),
        ("--model-kwargs num_classes=7", "does not fit vit_tiny_patch4_cape_32: Error(s) in"),
        ("--model-kwargs dept=2", "dept"),
        ("--model-kwargs num_heads=0", "cannot be created with"),
        ("--crop-pct 1.5", "--crop-pct: input should be less than or equal to 1, got 1.5"),
        ("--split test", "has no split 'test', it has validation"),
        ("--split validation validation", "--split: the list has validation twice"),
        ("--device meta", "--device meta cannot be used"),
    ],
)
def test_a_wrong_option_is_one_line_before_any_work(options, message, data, cape, refused):
    assert message in refused("-c", cape, "--data", data, *options.split())


def test_there_must_be_something_to_do(cape, refused):
    assert "nothing to do: give --data DIR, --throughput or both" in refused("-c", cape)
    message = "--items are images: give --data DIR"
    assert message in refused("-c", cape, "--throughput", "--items", "items.csv")


# --- checkpoints


@pytest.mark.parametrize("text", ["cat,dog\n", "", "{}"])
@pytest.mark.parametrize("name", ["text.pth", "text.safetensors"])
def test_a_text_file_as_checkpoint_is_one_line(text, name, data, tmp_path, refused):
    (tmp_path / name).write_text(text)
    assert "cannot be read as a checkpoint" in refused("-c", tmp_path / name, "--data", data)


def test_checkpoints_that_cannot_be_tested_are_one_line(checkpoint, data, tmp_path, refused):
    assert "nowhere.pth cannot be read as a checkpoint" in refused(
        "-c", "nowhere.pth", "--data", data
    )
    weights = torch.load(checkpoint, weights_only=False)["state_dict"]
    torch.save(weights, tmp_path / "plain.pth")
    error = refused("-c", tmp_path / "plain.pth", "--data", data)
    assert "is of a model it does not name, which timm does not know: give --model" in error
    torch.save({"state_dict": {}}, tmp_path / "plain.pth")
    assert "holds no state dict" in refused("-c", tmp_path / "plain.pth", "--data", data)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])  # the last: its sums
def test_what_is_no_number_is_refused(value, data, checkpoint, refused):
    content = torch.load(checkpoint, weights_only=False)
    content["state_dict"]["head.weight"][...] = value
    torch.save(content, checkpoint)
    error = refused("-c", checkpoint, "--data", data)
    assert "NaN or infinite logits for 120 of 120 images" in error


@pytest.mark.parametrize(
    ("model", "kwargs", "made"),
    [
        (SINPOS, {}, "pos=sinpos"),
        (UNIVIT, {}, "pos=cape max_global_scale=1.0"),
        (CAPE, {"max_global_shift": 0.0}, "pos=cape max_global_scale=1.4 max_global_shift=0.0"),
    ],
)
def test_other_positions_than_the_weights_are_marked_with_are_refused(
    model, kwargs, made, cape, data, refused
):
    given = [f"{name}={value}" for name, value in {**SMALL, "img_size": 16, **kwargs}.items()]
    error = refused("-c", cape, "--model", model, "--model-kwargs", *given, "--data", data)
    assert "was trained with pos=cape max_global_scale=1.4" in error
    assert f"this model would have {made}" in error.replace(", ", " ")


def test_alibis_distances_are_those_of_the_trainings_grid(data, tmp_path, run, refused):
    name, path = "vit_tiny_patch4_alibi_32", tmp_path / "c.pth"
    weights = timm.create_model(name, num_classes=10, img_size=16, **SMALL).state_dict()
    args = argparse.Namespace(model=name, model_kwargs=SMALL, num_classes=10)
    torch.save({"state_dict": weights, "arch": name, "args": args}, path)
    assert "trained with pos=alibi unit=0.666" in refused("-c", path, "--data", data)
    assert run("-c", path, "--data", data, "--model-kwargs", "img_size=16")


# --- images


def test_classes_without_an_image_are_refused(data, cape, tmp_path, refused):
    some = tmp_path / "some"
    shutil.copytree(data / "validation", some)
    shutil.rmtree(some / "8")
    (some / "8").mkdir()
    error = refused("-c", cape, "--data", some)
    assert f"{some} has images of 9 classes (0, 1, 2, 3, 4 …), {cape} knows 10" in error
    assert "no such folder of images" in refused("-c", cape, "--data", tmp_path / "nothing")
    (tmp_path / "splits" / "train").mkdir(parents=True)
    shutil.copytree(some, tmp_path / "splits" / "test")
    error = refused("-c", cape, "--data", tmp_path / "splits")
    assert "holds splits (test, train): choose with --split" in error


def test_class_folders_in_numeric_order_are_the_models_outputs(tmp_path):
    for name in range(12):
        (tmp_path / str(name)).mkdir()
        (tmp_path / str(name) / "a.png").touch()
    folder = images.open_folder(str(tmp_path), None)
    assert folder.reader.class_to_idx == {str(i): i for i in range(12)}  # 10 after 9


def test_an_unreadable_image_is_named_rather_than_replaced(data, cape, tmp_path, refused):
    shutil.copytree(data / "validation", tmp_path / "one")
    broken = next((tmp_path / "one" / "3").iterdir())
    broken.write_bytes(b"no image")
    error = refused("-c", cape, "--data", tmp_path / "one")
    assert f"{broken} cannot be read" in error


@pytest.mark.parametrize(
    "failure", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_too_little_memory_is_one_line(failure, data, cape, refused, monkeypatch):
    def full(*_: object) -> None:
        raise failure

    monkeypatch.setattr(images.Batches, "__getitem__", full)
    error = refused("-c", cape, "--data", data)
    assert "out of memory, give smaller batches or inputs" in error


# --- outputs


def test_nothing_is_overwritten_unless_asked(data, checkpoint, tmp_path, run, refused):
    out, before = tmp_path / "o.csv", checkpoint.read_bytes()
    out.write_text("precious")
    options = ["-c", checkpoint, "--data", data]
    error = refused(*options, "--csv", out)
    assert "exists: choose another name or give --overwrite" in error
    assert out.read_text() == "precious"
    assert len(run(*options, "--overwrite")) == 2
    error = refused(*options, "--overwrite", "--csv", checkpoint)
    assert f"{checkpoint} is no name of a CSV: end it with .csv" in error
    assert checkpoint.read_bytes() == before
