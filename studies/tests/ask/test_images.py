"""A user's images: what is split and held out, and each fault by the name of its file."""

import shutil

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("timm")

from cape_studies.ask import images


def picture(number: int, side: int = 24) -> Image.Image:
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def classes(tmp_path):
    """A folder of three classes of ten images."""
    folder = tmp_path / "mine"
    for number in range(30):
        path = folder / "abc"[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
    return folder


def parts(folder, side=8):
    out = folder.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    images.prepare(folder, out, side)
    return {
        part: {str(path.relative_to(out / part)) for path in (out / part).rglob("*.*")}
        for part in ("train", "test", "moved")
    }


def test_a_folder_of_classes_is_split_by_name_the_same_in_every_call(classes):
    found = parts(classes)
    assert {part: len(files) for part, files in found.items()} == {
        "train": 24,
        "test": 6,
        "moved": 6,
    }
    assert not found["train"] & found["test"]
    picture(99).save(classes / "c" / "another.png")
    again = parts(classes)
    assert all(
        {name for name in again[part] if name[0] != "c"} == {n for n in found[part] if n[0] != "c"}
        for part in found
    )


@pytest.mark.parametrize("name", ["test", "validation", "val"])
def test_the_test_that_a_user_brings_is_the_test(classes, name):
    for one in "abc":
        number = ord(one)
        shutil.move(classes / one, classes / "train" / one)
        (classes / name / one).mkdir(parents=True)
        picture(number).save(classes / name / one / "new.png")
    found = parts(classes)
    assert len(found["train"]) == 30
    assert found["test"] == {f"{one}/new.png.jpg" for one in "abc"}
    assert found["moved"] == {f"{one}/new.png.png" for one in "abc"}


def test_an_image_that_the_test_and_training_share_is_named_under_both_names(classes):
    for one in "abc":
        shutil.copytree(classes / one, classes / "train" / one)
        shutil.move(classes / one, classes / "test" / one)
    for path in sorted((classes / "test").glob("*/*"))[1:]:
        picture(100 + int(path.stem)).save(path)
    with pytest.raises(ValueError, match=r"test/a/0.png .* same image as .*train/a/0.png of train"):
        parts(classes)


def test_images_are_reduced_to_what_the_largest_test_needs(classes):
    Image.new("RGB", (60, 90)).save(classes / "a" / "tall.png")
    parts(classes)
    (tall,) = (classes.parent / "out").glob("t*/a/tall.png.jpg")
    assert Image.open(tall).size == (16, 24)


def test_moved_images_lie_a_quarter_aside_on_the_mean_of_their_edge():
    image = Image.new("RGB", (8, 8), (100, 50, 0))
    image.putpixel((3, 3), (255, 255, 255))
    moved = np.asarray(images.moved(image, (0.25, 0)))
    assert moved[3, 5].tolist() == [255, 255, 255]
    assert moved[:, :2].reshape(-1, 3).tolist() == [[100, 50, 0]] * 16


def spoil_a_file(folder):
    broken = sorted((folder / "a").iterdir())[3]
    broken.write_bytes(broken.read_bytes()[:200])
    return broken.name


def leave_one_image(folder):
    for path in sorted((folder / "b").iterdir())[1:]:
        path.unlink()
    return "class 'b'"


def empty_a_class(folder):
    for path in (folder / "c").iterdir():
        path.unlink()
    return "class 'c'"


@pytest.mark.parametrize("spoil", [spoil_a_file, leave_one_image, empty_a_class])
def test_a_fault_is_named_before_any_training(classes, spoil):
    named = spoil(classes)
    with pytest.raises(ValueError, match=named):
        parts(classes)


def test_a_class_that_the_test_does_not_have_is_named(classes):
    (classes / "train").mkdir()
    for one in "abc":
        shutil.move(classes / one, classes / "train" / one)
        (classes / "test" / one).mkdir(parents=True)
    picture(1).save(classes / "test" / "a" / "1.png")
    with pytest.raises(ValueError, match=r"class 'b' .* has no image for the test"):
        parts(classes)


def test_images_that_are_not_there_are_said(tmp_path):
    with pytest.raises(ValueError, match="has 0 folders of classes"):
        images.look(tmp_path)
