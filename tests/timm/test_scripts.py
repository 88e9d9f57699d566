"""The makers of images, and the comparison with timm's own tests."""

import os
import runpy
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from cape_support import ROOT


@pytest.fixture
def run(monkeypatch, capsys):
    """script, arguments → its exit status and what it wrote to stderr, in this process."""

    def call(script: str, *arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as end:
            return end.code, capsys.readouterr().err
        return 0, capsys.readouterr().err

    return call


@pytest.mark.parametrize(
    ("classes", "images", "validation", "named"),
    [(10, 4, 1, ""), (9, 3, 0, "train"), (10, 2, 1, "class0")],  # not one for both
)
def test_linked_images_are_the_first_of_each_class(
    run, tmp_path, classes, images, validation, named
):
    for split in ("train", "test"):
        for name in range(classes):
            (tmp_path / "data" / split / f"class{name}").mkdir(parents=True)
            for index in range(images):
                file = tmp_path / "data" / split / f"class{name}" / f"{index:04}.jpg"
                file.write_bytes(b"jpeg")
                file.with_name(f"._{file.name}").write_bytes(b"of a Mac")
    folders = ["--data", tmp_path / "data", "--out", tmp_path / "out"]
    counts = ["--train", 2, "--test", 1, "--validation", validation]
    status, error = run("studies/data/link_images.py", *folders, *counts)
    assert status == (2 if named else 0)
    assert named in error
    links = {"train": ["0000.jpg", "0001.jpg"], "test": ["0000.jpg"], "validation": ["0003.jpg"]}
    for split, names in [] if named else links.items():
        found = sorted((tmp_path / "out" / split).glob("*/*.jpg"))
        assert [path.name for path in found] == names * 10
        assert all(path.read_bytes() == b"jpeg" for path in found)


@pytest.fixture
def objects(tmp_path):
    """Eight images of 8 × 8 pixels, none of them black, in a folder of one class."""
    pixels = np.random.default_rng(0).integers(1, 256, (8, 8, 8), dtype=np.uint8)
    (tmp_path / "images" / "a").mkdir(parents=True)
    for index, one in enumerate(pixels):
        Image.fromarray(one).save(tmp_path / "images" / "a" / f"{index}.png")
    (tmp_path / "images" / "a" / "._0.png").write_bytes(b"of a Mac")
    return pixels


def place(path, pixels):
    """How far right and down of the canvas' middle the object is; it must be whole."""
    canvas = np.asarray(Image.open(path))
    rows, columns = (np.flatnonzero(canvas.any(axis=axis)) for axis in (1, 0))
    row, column = rows[0], columns[0]
    assert (canvas[row : row + 8, column : column + 8] == pixels).all()
    middle = (len(canvas) - 8) // 2
    return column - middle, row - middle


@pytest.fixture
def places(run, tmp_path, objects):
    """Options of make_off_centre.py → folder of what it writes → the places of the objects."""

    def make(*options):
        folders = ["--images", tmp_path / "images", "--out", tmp_path / "out"]
        assert run("studies/data/make_off_centre.py", *folders, *options) == (0, "")
        found = {}
        for path in sorted((tmp_path / "out").glob("*/a/*.png")):
            one = objects[int(path.stem.split("_")[0])]
            found.setdefault(path.parents[1].name, []).append(place(path, one))
        return found

    return make


def test_the_object_is_whole_wherever_it_is_moved(places, tmp_path):
    found = places()  # a canvas of 12 × 12 pixels
    assert found["centre"] == [(0, 0)] * 8
    assert len(found["anywhere"]) == 8
    assert len(set(found["anywhere"])) > 1
    assert np.abs(found["anywhere"]).max() == 2
    shutil.rmtree(tmp_path / "out")
    found = places("--canvas", 2, "--jitter", 1, "--copies", 3)["centre"]
    assert len(found) == 8 * 3
    assert len(set(found)) > 4
    assert np.abs(found).max() == 1
    shutil.rmtree(tmp_path / "out")
    found = places("--canvas", 2, "--shifts", 0, 3)
    assert set(found["0"]) == {(0, 0)}
    assert set(found["3"]) == {(3, 0), (0, 3), (-3, 0), (0, -3)}
    assert set(found["corner"]) == {(4, 4), (-4, 4), (-4, -4), (4, -4)}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--canvas", 0.5], "--canvas"),
        (["--canvas", 2, "--shifts", 5], "4 pixels"),
        (["--canvas", 2, "--jitter", 5], "4 pixels"),
        (["--shifts", 1, "--jitter", 1], "--jitter"),
        (["--shifts", 1, "--copies", 2], "--copies"),
    ],
)
def test_what_does_not_fit_on_the_canvas_is_refused(run, tmp_path, objects, options, named):
    folders = ["--images", tmp_path / "images", "--out", tmp_path / "out"]
    status, error = run("studies/data/make_off_centre.py", *folders, *options)
    assert status == 2
    assert named in error.splitlines()[-1]


def test_a_folder_that_is_no_checkout_of_timm_is_named(run, tmp_path):
    status, _ = run("tools/run_timm_tests.py", tmp_path)
    assert str(tmp_path / "tests" / "test_models.py") in status


@pytest.mark.release
def test_timms_own_tests_pass_where_they_pass_for_timms_vit():
    checkout = os.environ.get("TIMM_CHECKOUT")
    if not checkout:
        pytest.skip("TIMM_CHECKOUT names no checkout of pytorch-image-models")
    command = [sys.executable, str(ROOT / "tools" / "run_timm_tests.py"), checkout, "--models"]
    names = ["vit_tiny_patch4_cape_32", "vit_tiny_patch4_cape_alibi_32"]
    done = subprocess.run([*command, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "ours pass wherever the stock model passes" in done.stdout
    assert done.stdout.count("2 passed") >= 8
    nothing = subprocess.run([*command, "resnet*"], capture_output=True, text=True)
    assert "no model of cape-plugins matches resnet*" in nothing.stderr
