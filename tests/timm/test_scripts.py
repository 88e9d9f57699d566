"""The scripts of integrations/timm: images, and the comparison with timm's own tests."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SCRIPTS = Path(__file__).resolve().parents[2] / "integrations" / "timm"


@pytest.fixture
def run(monkeypatch, capsys):
    """script, arguments → its exit status and what it wrote to stderr, in this process."""

    def call(script: str, *arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        try:
            runpy.run_path(str(SCRIPTS / script), run_name="__main__")
        except SystemExit as end:
            return end.code, capsys.readouterr().err
        return 0, capsys.readouterr().err

    return call


@pytest.mark.parametrize(
    ("classes", "images", "validation", "message"),
    [
        (10, 4, 0, None),
        (10, 4, 1, None),
        (9, 3, 0, "ten class folders, found 9"),
        (10, 1, 0, "holds 1 images, 2 are needed"),
        (10, 2, 1, "holds 2 images, 3 are needed"),  # not one for training and validation
    ],
)
def test_linked_images_are_the_first_of_each_class(
    run, tmp_path, classes, images, validation, message
):
    for split in ("train", "test"):
        for name in range(classes):
            (tmp_path / "data" / split / f"class{name}").mkdir(parents=True)
            for index in range(images):
                file = tmp_path / "data" / split / f"class{name}" / f"{index:04}.jpg"
                file.write_bytes(b"jpeg")
    folders = ["--data", tmp_path / "data", "--out", tmp_path / "out"]
    counts = ["--train", 2, "--test", 1, "--validation", validation]
    status, error = run("link_images.py", *folders, *counts)
    assert status == (2 if message else 0)
    assert (message or "") in error
    if message is None:
        expected = dict(train=["0000.jpg", "0001.jpg"], test=["0000.jpg"])
        for split, names in {**expected, "validation": ["0003.jpg"] * validation}.items():
            links = sorted((tmp_path / "out" / split).glob("*/*.jpg"))
            assert [path.name for path in links] == names * 10
            assert all(path.read_bytes() == b"jpeg" for path in links)


def test_the_object_is_whole_on_both_canvases(run, tmp_path):
    pixels = np.random.default_rng(0).integers(1, 256, (6, 8, 8), dtype=np.uint8)
    for index, one in enumerate(pixels):
        path = tmp_path / "images" / "a" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(one).save(path)
    folders = ["--images", tmp_path / "images", "--out", tmp_path / "out"]
    assert run("make_off_centre.py", *folders) == (0, "")
    corners = set()
    for index, one in enumerate(pixels):
        centre, anywhere = (
            np.asarray(Image.open(tmp_path / "out" / split / "a" / f"{index}.png"))
            for split in ("centre", "anywhere")
        )
        assert centre.shape == (12, 12)
        assert (centre[2:10, 2:10] == one).all()
        rows, columns = (np.flatnonzero(anywhere.any(axis=axis)) for axis in (1, 0))
        assert (anywhere[rows[0] : rows[0] + 8, columns[0] : columns[0] + 8] == one).all()
        corners.add((rows[0], columns[0]))
    assert len(corners) > 1


@pytest.mark.parametrize(
    ("options", "message"), [([], "holds no <class>/<image>"), (["--canvas", 0.5], "must be ≥ 1")]
)
def test_a_folder_without_images_and_too_small_a_canvas_are_refused(
    run, tmp_path, options, message
):
    status, error = run("make_off_centre.py", "--images", tmp_path, "--out", tmp_path, *options)
    assert status == 2
    assert message in error.splitlines()[-1]


def test_a_folder_that_is_no_checkout_of_timm_is_named(run, tmp_path):
    status, _ = run("run_timm_tests.py", tmp_path)
    path = tmp_path / "tests" / "test_models.py"
    assert status == f"{path} does not exist: give a checkout of pytorch-image-models"


@pytest.mark.release
def test_timms_own_tests_pass_where_they_pass_for_timms_vit():
    checkout = os.environ.get("TIMM_CHECKOUT")
    if not checkout:
        pytest.skip("TIMM_CHECKOUT names no checkout of pytorch-image-models")
    command = [sys.executable, str(SCRIPTS / "run_timm_tests.py"), checkout, "--models"]
    names = ["vit_tiny_patch4_cape_32", "vit_tiny_patch4_cape_alibi_32"]
    done = subprocess.run([*command, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "ours pass wherever the stock model passes" in done.stdout
    assert done.stdout.count("2 passed") >= 8
    nothing = subprocess.run([*command, "resnet*"], capture_output=True, text=True)
    assert "no model of cape-plugins matches resnet*" in nothing.stderr
