"""cape-timm-eval with what is faulty: one line and no result, and runs that were interrupted."""

import argparse
import csv
import os
from pathlib import Path

import pytest
import torch
from PIL import Image

timm = pytest.importorskip("timm")

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off
from cape_plugins.evaluation.timm import evaluate, testset  # noqa: E402
from cape_plugins.evaluation.timm.evaluate import main  # noqa: E402

NAME = "vit_tiny_patch4_cape_32"
SMALL = dict(depth=1, embed_dim=32, num_heads=2, img_size=16)


@pytest.fixture
def data(tmp_path) -> Path:
    """Two images in each of ten class folders."""
    generator = torch.Generator().manual_seed(0)
    for i in range(20):
        path = tmp_path / "data" / "validation" / str(i % 10) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(256, (24, 24, 3), generator=generator).to(torch.uint8)
        Image.fromarray(pixels.numpy()).save(path)
    return tmp_path / "data"


def save(path: Path, **args) -> Path:
    """A small model as train.py saves it."""
    torch.manual_seed(0)
    model = timm.create_model(NAME, num_classes=10, **SMALL)
    args = argparse.Namespace(model=NAME, model_kwargs=SMALL, img_size=16, **args)
    torch.save({"state_dict": model.state_dict(), "arch": NAME, "args": args}, path)
    return path


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    return save(tmp_path / "last.pth.tar")


def error_of(capsys, *arguments: object) -> str:
    with pytest.raises(SystemExit) as exit_:
        main([*map(str, arguments), "--workers", "0", "--device", "cpu"])
    assert exit_.value.code == 2
    text = capsys.readouterr().err.strip()
    assert len(text.splitlines()) == 1
    return text


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(value, data, checkpoint, tmp_path, capsys):
    content = torch.load(checkpoint, weights_only=False)
    content["state_dict"]["head.weight"][3, 5] = value
    torch.save(content, checkpoint)
    error = error_of(capsys, "-c", checkpoint, "--data", data, "--csv", tmp_path / "o.csv")
    assert "last.pth.tar has NaN or infinite numbers in 1 of" in error
    assert "such as head.weight" in error
    assert not (tmp_path / "o.csv").exists()


def test_logits_that_are_no_numbers_are_refused(data, checkpoint, tmp_path, capsys):
    content = torch.load(checkpoint, weights_only=False)
    content["state_dict"]["head.weight"].fill_(3e38)  # finite; their sums are not
    torch.save(content, checkpoint)
    error = error_of(capsys, "-c", checkpoint, "--data", data, "--csv", tmp_path / "o.csv")
    assert "NaN or infinite logits for 20 of 20 images" in error
    assert not (tmp_path / "o.csv").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--std", "0"],
            "--std takes numbers above 0, at most 1 (pixels are taken as 0 to 1), got 0",
        ),
        (["--std", "0.5", "nan", "0.5"], "--std takes numbers above 0"),
        (["--std", "-0.5"], "--std takes numbers above 0"),
        (["--std", "inf"], "--std takes numbers above 0"),
        (["--mean", "nan"], "--mean takes numbers from 0 to 1"),
        (["--mean", "123.675", "116.28", "103.53"], "got 123.675"),
        (["--mean", "-0.5"], "--mean takes numbers from 0 to 1"),
    ],
)
def test_a_mean_and_std_that_no_pixels_have_are_refused(options, message, data, checkpoint, capsys):
    assert message in error_of(capsys, "-c", checkpoint, "--data", data, *options)


def test_a_std_of_zero_in_the_training_is_refused(data, tmp_path, capsys):
    path = save(tmp_path / "zero.pth", std=(0.0, 0.5, 0.5))
    assert "--std takes numbers above 0" in error_of(capsys, "-c", path, "--data", data)


def test_no_file_is_written_over_a_checkpoint_or_another_output(data, checkpoint, tmp_path, capsys):
    options = ["-c", checkpoint, "--data", data, "--overwrite"]
    before = checkpoint.read_bytes()
    error = error_of(capsys, *options, "--csv", checkpoint)
    assert f"{checkpoint} would be written over --checkpoint: choose another name" in error
    assert checkpoint.read_bytes() == before
    both = tmp_path / "both.csv"
    error = error_of(capsys, *options, "--csv", both, "--markdown", tmp_path / "." / "both.csv")
    assert "would be written over another output" in error
    assert not both.exists()


def run(*arguments: object, out: Path) -> list[dict[str, str]]:
    main([*map(str, arguments), "--csv", str(out), "--workers", "0", "--device", "cpu"])
    return rows(out)


def test_a_run_that_dies_leaves_its_rows_and_resume_goes_on_from_them(
    data, checkpoint, tmp_path, capsys, monkeypatch
):
    options = ["-c", checkpoint, "--data", data, "--resolutions", 12, 16, 24]
    whole = run(*options, out=tmp_path / "whole.csv")
    out, score, scored = tmp_path / "o.csv", evaluate.score, []

    def dies_at(call: int):
        def dying(*given, **named):
            scored.append(named["title"])
            if len(scored) == call:
                raise KeyboardInterrupt
            return score(*given, **named)

        return dying

    monkeypatch.setattr(evaluate, "score", dies_at(1))
    with pytest.raises(KeyboardInterrupt):
        run(*options, out=out)
    assert not out.exists()  # no header without a row
    scored.clear()
    monkeypatch.setattr(evaluate, "score", dies_at(3))
    with pytest.raises(KeyboardInterrupt):
        run(*options, out=out)
    assert [row["resolution"] for row in rows(out)] == ["12", "16"]
    assert "--resume to continue it" in error_of(capsys, *options, "--csv", out)

    scored.clear()
    monkeypatch.setattr(evaluate, "score", dies_at(0))
    resumed = run(*options, "--resume", "--markdown", tmp_path / "o.md", out=out)
    assert len(scored) == 1
    assert "24" in scored[0]
    for row in (*whole, *resumed):
        del row["seconds"]
    assert resumed == whole
    assert len((tmp_path / "o.md").read_text().splitlines()) == 2 + 3


def test_rows_of_older_weights_are_not_continued(data, checkpoint, tmp_path, capsys):
    options = ["-c", checkpoint, "--data", data]
    run(*options, out=tmp_path / "o.csv")
    before = (tmp_path / "o.csv").read_bytes()
    later = (tmp_path / "o.csv").stat().st_mtime + 1  # a save may fall in the same clock tick
    os.utime(checkpoint, (later, later))
    error = error_of(capsys, *options, "--csv", tmp_path / "o.csv", "--resume")
    assert "last.pth.tar is newer than" in error
    assert (tmp_path / "o.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--interpolation", "bicubicc"], "--interpolation takes nearest, bilinear, bicubic"),
        (["--device", "gpu"], "--device gpu cannot be used"),
        (["--device", "meta"], "--device meta cannot be used"),
        (["--device", "cuda:99"], "--device cuda:99"),
        (["--model-kwargs", "depth"], "--model-kwargs takes NAME=VALUE, got 'depth'"),
        (["--model-kwargs", "=3"], "--model-kwargs takes NAME=VALUE, got '=3'"),
        (["--model-kwargs", "num_heads=0"], "cannot be created with"),
        (["--model-kwargs", "depth='deep'"], "cannot be created with"),
        (["--resolutions", "1000000000"], "--resolutions must be ≤ 16384, got 1000000000"),
        (["--tta"], "(trained at 16) would need images of -16 pixels"),
    ],
)
def test_a_wrong_option_is_one_line(options, message, data, checkpoint, tmp_path, capsys):
    given = ["-c", checkpoint, "--data", data, "--csv", tmp_path / "o.csv"]
    with pytest.raises(SystemExit) as exit_:
        main([*map(str, given), "--workers", "0", *options])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert exit_.value.code == 2
    assert message in line
    assert not (tmp_path / "o.csv").exists()


@pytest.mark.parametrize("text", ["cat,dog\n", "\x80", "", "{}", "hello world " * 99])
@pytest.mark.parametrize("name", ["text.pth", "text.safetensors"])
def test_a_text_file_as_checkpoint_is_one_line(text, name, data, tmp_path, capsys):
    (tmp_path / name).write_text(text)
    error = error_of(capsys, "-c", tmp_path / name, "--data", data)
    assert "cannot be read as a checkpoint" in error


def test_a_folder_as_output_is_one_line(data, checkpoint, tmp_path, capsys):
    for option in ("--csv", "--markdown"):
        error = error_of(capsys, "-c", checkpoint, "--data", data, option, tmp_path, "--overwrite")
        assert "is a folder: give the name of a file" in error


@pytest.mark.parametrize(
    "failure", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_too_little_memory_is_one_line(failure, data, checkpoint, capsys, monkeypatch):
    def full(*_: object) -> None:
        raise failure

    monkeypatch.setattr(testset.ViewDataset, "__getitem__", full)
    error = error_of(capsys, "-c", checkpoint, "--data", data)
    assert "out of memory" in error
    assert "give a smaller --batch-size or smaller images" in error


def test_an_empty_class_folder_is_called_empty(data, tmp_path, capsys):
    words = dict(zip("0123456789", "abcdefghij", strict=True))
    for digit, word in words.items():
        (data / "validation" / digit).rename(data / "validation" / word)
    for image in (data / "validation" / "d").iterdir():
        image.unlink()
    checkpoint = save(tmp_path / "last.pth.tar")
    error = error_of(capsys, "-c", checkpoint, "--data", data)
    assert "1 of 10 class folders are empty: d; --allow-missing-classes tests the others" in error
    (row,) = run(
        "-c", checkpoint, "--data", data, "--allow-missing-classes", out=tmp_path / "o.csv"
    )
    assert row["images"] == "18"
