"""integrations/timm/link_images.py: the first images of each class."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "integrations" / "timm" / "link_images.py"


def link(folder, classes, images, *options):
    """Two images of each class of a folder with both splits, linked into ``out``."""
    for split in ("train", "test"):
        for name in range(classes):
            (folder / "data" / split / f"class{name}").mkdir(parents=True)
            for index in range(images):
                file = folder / "data" / split / f"class{name}" / f"{index:04}.jpg"
                file.write_bytes(b"jpeg")
    words = ["--data", folder / "data", "--out", folder / "out", "--train", 2, "--test", 1]
    command = [sys.executable, str(SCRIPT), *map(str, (*words, *options))]
    return subprocess.run(command, capture_output=True, text=True)


def test_images_are_the_first_of_each_class(tmp_path):
    assert link(tmp_path, classes=10, images=3).returncode == 0
    for split, names in (("train", ["0000.jpg", "0001.jpg"]), ("test", ["0000.jpg"])):
        links = sorted((tmp_path / "out" / split).glob("*/*.jpg"))
        assert [path.name for path in links] == names * 10
        assert all(path.read_bytes() == b"jpeg" for path in links)


@pytest.mark.parametrize(
    ("classes", "images", "message"),
    [(9, 3, "ten class folders, found 9"), (10, 1, "holds 1 images, 2 are needed")],
)
def test_missing_images_are_named(tmp_path, classes, images, message):
    done = link(tmp_path, classes, images)
    assert done.returncode == 2
    assert message in done.stderr


def test_images_for_validation_are_the_last_and_not_those_of_training(tmp_path):
    assert link(tmp_path, 10, 4, "--validation", 1).returncode == 0
    for split, names in (("train", ["0000.jpg", "0001.jpg"]), ("validation", ["0003.jpg"])):
        links = sorted((tmp_path / "out" / split).glob("*/*.jpg"))
        assert [path.name for path in links] == names * 10


def test_an_image_is_not_for_training_and_validation(tmp_path):
    done = link(tmp_path, 10, 2, "--validation", 1)
    assert done.returncode == 2
    assert "holds 2 images, 3 are needed" in done.stderr
