"""A user's images: what is split and held out, and each fault by the name of its file."""

import shutil

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("timm")

from cape_studies.ask import images


def parts(folder, side=8):
    out = folder.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    images.prepare(folder, out, side)
    return {
        part: {str(path.relative_to(out / part)) for path in (out / part).rglob("*.*")}
        for part in ("train", "test", "moved")
    }


def test_a_folder_of_classes_is_split_by_name_the_same_in_every_call(classes, picture):
    found = parts(classes)
    assert [len(found[part]) for part in ("train", "test", "moved")] == [24, 6, 6]
    assert not found["train"] & found["test"]
    picture(99).save(classes / "c" / "another.png")
    again = parts(classes)
    for part, files in found.items():
        assert {name for name in again[part] ^ files if name[0] != "c"} == set()


@pytest.mark.parametrize("name", ["test", "validation", "val"])
def test_the_test_that_a_user_brings_is_the_test(classes, picture, name):
    for one in "abc":
        shutil.move(classes / one, classes / "train" / one)
        (classes / name / one).mkdir(parents=True)
        picture(ord(one)).save(classes / name / one / "new.png")
    found = parts(classes)
    assert len(found["train"]) == 30
    assert found["test"] == {f"{one}/new.png.jpg" for one in "abc"}
    assert found["moved"] == {f"{one}/new.png.png" for one in "abc"}


def test_an_image_that_the_test_and_training_share_is_named_under_both_names(classes, picture):
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


def test_an_image_that_cannot_be_read_is_named(classes):
    broken = sorted((classes / "a").iterdir())[3]
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(ValueError, match=broken.name):
        parts(classes)


def test_a_class_of_one_image_is_named(classes):
    for path in sorted((classes / "b").iterdir())[1:]:
        path.unlink()
    with pytest.raises(ValueError, match=r"class 'b' .* has 0 images to train on and 1 to test"):
        parts(classes)


def test_a_class_that_the_test_does_not_have_is_named(classes):
    (classes / "train").mkdir()
    for one in "abc":
        shutil.copytree(classes / one, classes / "train" / one)
        shutil.move(classes / one, classes / "test" / one)
    shutil.rmtree(classes / "test" / "b")
    with pytest.raises(ValueError, match=r"class 'b' .* has 10 images to train on and 0 to test"):
        parts(classes)


def test_images_that_are_not_there_are_said(tmp_path):
    with pytest.raises(ValueError, match="has 0 folders of classes"):
        images.look(tmp_path)
