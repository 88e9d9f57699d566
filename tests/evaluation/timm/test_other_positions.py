"""cape-timm-eval tests weights with other positions than they were trained with only if asked."""

import argparse
import csv
from pathlib import Path

import pytest
import torch
from PIL import Image

timm = pytest.importorskip("timm")

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off
from cape_plugins.evaluation.timm import loading  # noqa: E402
from cape_plugins.evaluation.timm.evaluate import main  # noqa: E402
from cape_plugins.evaluation.timm.loading import Source  # noqa: E402

CAPE, SINPOS, UNIVIT = (f"vit_tiny_patch4_{name}_32" for name in ("cape", "sinpos", "univit"))
SMALL = dict(depth=1, embed_dim=32, num_heads=2)


def checkpoint_of(kind: str, folder: Path) -> str:
    """cape's weights, in a file that tells their variant in one of its ways."""
    model = timm.create_model(CAPE, num_classes=10, max_global_scale=1.2, **SMALL)
    marked = model.state_dict()
    plain = {name: weight.clone() for name, weight in marked.items()}
    args = argparse.Namespace(model=CAPE, model_kwargs={"max_global_scale": 1.2, **SMALL})
    if kind == "local-dir":
        timm.models.save_for_hf(model, str(folder / "hub"))
        return f"local-dir:{folder / 'hub'}"
    content = {
        "train.py's record, of an older version": {"state_dict": plain, "arch": CAPE, "args": args},
        "a mark": marked,
        "nothing": plain,
    }
    torch.save(content[kind], folder / "c.pth")
    return str(folder / "c.pth")


RECORD, MARK = "train.py's record, of an older version", "a mark"


@pytest.mark.parametrize("kind", [RECORD, MARK])
@pytest.mark.parametrize(
    ("model", "kwargs", "asked"),
    [
        (SINPOS, {}, "pos=sinpos"),
        (UNIVIT, {"max_global_scale": 1.0}, "pos=cape max_global_scale=1.0"),
        (CAPE, {"max_global_scale": 1.2, "max_global_shift": 0.0}, "max_global_shift=0.0"),
        (CAPE, {"max_global_scale": 1.2, "max_local_shift": 0.0}, r"max_local_shift=\(0.0,0.0\)"),
    ],
)
def test_other_positions_than_the_checkpoints_are_refused_and_taken_when_permitted(
    kind, model, kwargs, asked, tmp_path
):
    source = Source(checkpoint_of(kind, tmp_path), model, {**SMALL, **kwargs})
    if model == SINPOS and kind == RECORD:  # the record's own arguments hold λ
        source = Source(source.checkpoint, model, {**SMALL, "max_global_scale": 1.4})
    says = f"was trained with pos=cape max_global_scale=1.2 .*ask for .*{asked}"
    with pytest.raises(ValueError, match=says):
        loading.load(source)
    loading.load(Source(*list(vars(source).values())[:3], other_positions=True))


def test_a_local_dir_is_held_to_its_config(tmp_path):
    name = checkpoint_of("local-dir", tmp_path)
    loading.load(Source(name, None, {"extent": 2.0, "img_size": 16}))
    with pytest.raises(ValueError, match=r"ask for pos=cape max_global_scale=1.4"):
        loading.load(Source(name, None, {"max_global_scale": 1.4}))


@pytest.mark.parametrize("kind", [RECORD, MARK])
@pytest.mark.parametrize("kwargs", [{}, {"extent": 2.0}, {"img_size": 16}, {"use_naflex": True}])
def test_what_belongs_to_the_test_needs_no_permission(kind, kwargs, tmp_path):
    kwargs = {**SMALL, "max_global_scale": 1.2, **kwargs}
    loading.load(Source(checkpoint_of(kind, tmp_path), CAPE, kwargs))


def test_a_file_that_tells_nothing_is_taken_as_it_is_called(tmp_path):
    loading.load(Source(checkpoint_of("nothing", tmp_path), SINPOS, SMALL))


@pytest.fixture
def data(tmp_path) -> Path:
    for i in range(10):
        path = tmp_path / "data" / "validation" / str(i) / f"{i}.png"
        path.parent.mkdir(parents=True)
        Image.new("RGB", (32, 32), (20 * i,) * 3).save(path)
    return tmp_path / "data"


def test_the_command_line_refuses_in_one_line_and_tests_with_permission(data, tmp_path, capsys):
    given = ["-c", checkpoint_of(MARK, tmp_path), "--model", SINPOS, "--model-kwargs"]
    given += [f"{name}={value}" for name, value in SMALL.items()]
    given += ["--data", str(data), "--workers", "0", "--device", "cpu"]
    given += ["--csv", str(tmp_path / "o.csv")]
    with pytest.raises(SystemExit) as exit_:
        main(given)
    assert exit_.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "leave them out, or give --other-positions too" in line
    assert not (tmp_path / "o.csv").exists()
    main([*given, "--other-positions"])
    with (tmp_path / "o.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["variant"] == "sinpos"


def test_alibis_distances_are_those_of_the_trainings_grid(tmp_path):
    name, path = "vit_tiny_patch4_alibi_32", str(tmp_path / "c.pth")
    weights = timm.create_model(name, num_classes=10, img_size=16, **SMALL).state_dict()
    args = argparse.Namespace(model=name, model_kwargs=SMALL)  # as the size were the name's
    torch.save({"state_dict": weights, "arch": name, "args": args}, path)
    with pytest.raises(ValueError, match=r"trained with pos=alibi unit=0\.666.* img_size=N"):
        loading.load(Source(path))
    model = loading.load(Source(path, model_kwargs={"img_size": 16})).model
    assert model.blocks[0].attn.relative.unit == pytest.approx(2 / 3)
