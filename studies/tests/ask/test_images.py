"""A user's images: what is trained on and tested, and each fault by name."""

import csv
import os
import shutil

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

pytest.importorskip("timm")

import timm
from timm.data import create_dataset

from cape_studies.evaluate.timm.images import Images as Tested
from cape_studies.evaluate.timm.images import open_folder, sizes
from cape_studies.prepare import chosen, images
from lab_support import script

CHOICES = ("side", "patch", "batch_size", "epochs", "updates")


def prepared(folder, **options):
    """The facts, and the names of timm's train and test."""
    out = folder.parent / "out"
    choices = {name: options.pop(name) for name in CHOICES if name in options}
    shutil.rmtree(out, ignore_errors=True)
    images.prepare(folder, out, **options)
    facts = chosen.images(yaml.safe_load((out / "facts.yaml").read_text("utf-8")), **choices)
    parts = [set(create_dataset("", str(out), split).filenames()) for split in ("train", "test")]
    assert "{} images to train on and {} to test".format(*map(len, parts)) in facts["found"]
    return facts, *parts


def split(folder, test="test"):
    """Bring the classes into train/, and two other images of each into a test."""
    for path in [*folder.iterdir()]:
        shutil.move(path, folder / "train" / path.name)
        (folder / test / path.name).mkdir(parents=True)
        for number in range(2):
            pixels = np.full((24, 24, 3), 10 * number + ord(path.name[0]), np.uint8)
            Image.fromarray(pixels).save(folder / test / path.name / f"new{number}.png")


# --- what is trained on and tested


def test_a_folder_of_classes_is_split_by_name_the_same_in_every_call(classes, picture):
    _, *parts = prepared(classes)
    assert [len(part) for part in parts] == [24, 6]
    assert not parts[0] & parts[1]
    picture(99).save(classes / "c" / "another.png")
    _, *again = prepared(classes)
    for before, after in zip(parts, again, strict=True):
        assert {name for name in before ^ after if name[0] != "c"} == set()


@pytest.mark.parametrize("name", ["val", "Testing"])
def test_the_test_that_a_user_brings_is_the_test(classes, name):
    split(classes, name)
    (classes / "train").rename(classes / ("Training" if name == "Testing" else "train"))
    facts, train, test = prepared(classes)
    assert len(train) == 30
    assert test == {f"{one}/new{number}.png" for one in "abc" for number in (0, 1)}
    assert f"tested on those in {name}/" in facts["found"]


def test_images_are_the_users_own_files_of_any_size_and_nothing_is_made_anew(classes):
    Image.new("RGB", (600, 900)).save(classes / "a" / "tall.jpg")
    prepared(classes)
    made = [path for path in (classes.parent / "out").rglob("*") if not path.is_dir()]
    (facts,) = (path for path in made if not path.is_symlink())
    assert facts.name == "facts.yaml"
    (tall,) = (path for path in made if path.name == "tall.jpg")
    assert tall.resolve() == (classes / "a" / "tall.jpg").resolve()


def test_images_of_sub_folders_are_of_the_first_folders_class_and_none_is_lost(classes, picture):
    for number, place in enumerate(("cam/1_0.png", "cam_1/0.png", "cam%2F1_0.png")):
        path = classes / "a" / place
        path.parent.mkdir(exist_ok=True)
        picture(100 + number).save(path)
    facts, train, test = prepared(classes)
    assert facts["majority"] < 100 / 2
    assert len(train | test) == 33


def test_groups_of_images_are_in_one_part_each(classes):
    for path in classes.glob("*/*.png"):
        path.rename(path.with_name(f"p{int(path.stem) % 10}_{path.name}"))
    facts, train, test = prepared(classes, group=r"p(\d)_")
    groups = [{name.split("/p")[1][0] for name in part} for part in (train, test)]
    assert not groups[0] & groups[1]
    assert (len(groups[1]), facts["groups"]) == (5, {"within": 5, "beyond": 5})
    with (classes.parent / "out" / "groups.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["item"]: row["group"] for row in rows} == {
        name: name.split("/p")[1][0] for name in test
    }


def test_a_group_in_training_and_in_the_test_is_named(classes):
    split(classes)
    with pytest.raises(ValueError, match="group a/ is in training and in a test"):
        prepared(classes, group="[abc]/")


@pytest.mark.parametrize("model", [None, "vit_small_patch16_dinov3"])  # my_images, my_backbone
def test_the_same_pixels_in_another_encoding_are_the_same_image(classes, model):
    split(classes)
    with Image.open(classes / "train" / "a" / "0.png") as image:
        image.save(classes / "test" / "a" / "new9.bmp")
    (classes / "test" / "a" / "new9.bmp").rename(classes / "test" / "a" / "new9.jpg")
    with pytest.raises(ValueError, match=r"new9\.jpg of a test has the same content as .*0\.png"):
        prepared(classes, model=model)


def test_training_and_test_see_a_photo_as_its_exif_says(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "a").mkdir()
    Image.new("RGB", (3, 2)).save(tmp_path / "a" / "photo.png", exif=exif)
    folder = open_folder(tmp_path)
    assert (sizes(folder), sizes(folder, upright=True)) == ([(2, 3)], [(3, 2)])
    trained = script("../../integrations/timm/train_lightning.py").Images(str(tmp_path), 0.0)
    for seen in (Tested(folder, [0], upright=True), trained):
        seen.transform = np.asarray
        assert seen[0][0].shape == (3, 2, 3)


def test_images_behind_links_to_folders_count_and_a_link_that_leads_nowhere_is_said(
    classes, picture, tmp_path, caplog
):
    (tmp_path / "more").mkdir()
    for number in range(5):
        picture(100 + number).save(tmp_path / "more" / f"{number}.png")
    (classes / "a" / "more").symlink_to(tmp_path / "more")
    (classes / "a" / "gone").symlink_to("nothing")
    facts, *parts = prepared(classes)
    assert sum(map(len, parts)) == 35
    assert "left out: 1 gone" in facts["found"]
    assert "a/gone is a link" in caplog.text


def test_hidden_files_and_folders_are_no_images_and_no_classes(classes, picture):
    (classes / "a" / "._0.jpg").write_bytes(b"of a Mac")
    (classes / ".ipynb_checkpoints").mkdir()
    picture(0).save(classes / ".ipynb_checkpoints" / "0.png")
    facts, *parts = prepared(classes)
    assert "3 classes, " in facts["found"]
    assert sum(map(len, parts)) == 30


def test_files_that_are_not_used_are_counted_by_kind_with_the_reason(classes, picture):
    picture(100).save(classes / "a" / "100.webp")
    picture(101).save(classes / "b" / "101.bmp")
    picture(102).save(classes / "102.png")
    found = prepared(classes)[0]["found"]
    assert "30 .png; left out: 1 .png, 1 .webp, 1 .bmp (not .png, .jpg, .jpeg, or in no" in found


def test_what_a_study_needs_follows_from_the_images(classes):
    facts, *_ = prepared(classes, batch_size=8)
    assert (facts["side"], facts["patch"], facts["embed_dim"]) == (16, 2, 64)
    assert facts["updates"] == 300  # 24 images are three batches, seen 100 times
    assert facts["resolutions"] == [12, 16, 24, 32]
    assert facts["majority"] == pytest.approx(100 / 3, abs=0.01)
    assert "3 classes, 24 images to train on and 6 to test" in facts["found"]


def test_what_a_user_sets_stays(classes):
    facts, *_ = prepared(classes, side=32, patch=16, epochs=4, batch_size=8)
    assert (facts["side"], facts["patch"], facts["updates"]) == (32, 16, 12)
    assert facts["resolutions"] == [32, 48, 64]  # of whole patches
    facts, *_ = prepared(classes, updates=20, batch_size=8)
    assert facts["updates"] == 20
    assert "20 updates, about 6.7 epochs" in facts["found"]


def test_a_backbone_has_its_own_side_its_twin_and_its_unit_of_shifts(classes):
    name = "vit_tiny_patch16_dinov3_qkvb"
    facts, *_ = prepared(classes, model=name)
    assert (facts["side"], facts["twin"], facts["shift_coords"]) == (256, f"{name}_cape", 0.5)
    assert facts["resolutions"] == [192, 256, 384, 512]
    with pytest.raises(ValueError, match="has no _cape twin"):
        prepared(classes, model="resnet18")


def test_a_backbone_that_counts_patches_gets_those_of_training(classes):
    facts, *_ = prepared(classes, model="vit_small_patch16_rope_224.naver_in1k")
    assert (facts["side"], facts["ref_feat_shape"]) == (224, 14)
    facts, *_ = prepared(classes, model="vit_base_patch16_rope_ape_224", side=256)
    assert facts["ref_feat_shape"] == 16


@pytest.mark.parametrize(
    ("name", "quarter"),
    [
        ("vit_small_patch16_rope_224", 3.5),  # of 14 patches
        ("vit_pe_core_tiny_patch16_384", 6.0),  # of 24, its own reference
        ("eva02_tiny_patch14_336", 4.0),  # of 16, its own reference; it has 24
        ("vit_base_patch16_lingbot", 0.5),  # from -1 to 1
    ],
)
def test_a_quarter_of_the_side_is_in_the_unit_of_each_backbone(name, quarter, classes):
    facts, *_ = prepared(classes, model=name)
    assert facts["shift_coords"] == quarter
    assert timm.is_model(facts["twin"].partition(".")[0])


def rotated(name, size, **kwargs):
    """What timm's rotation of a grid is, of a shallow model."""
    model = timm.create_model(name, depth=1, dynamic_img_size=True, **kwargs)
    found = model.rope.get_embed((size, size))
    return found if isinstance(found, torch.Tensor) else torch.stack([*found])


@pytest.mark.parametrize(
    "name",
    [
        "vit_small_patch16_rope_ape_224",
        "vit_small_patch16_rope_mixed_224",
        "vit_pe_core_tiny_patch16_384",
        "vit_tiny_patch16_dinov3_qkvb",
    ],
)
def test_ref_feat_shape_is_given_where_it_changes_larger_images_and_not_trainings(name, classes):
    side, patch = timm.get_pretrained_cfg(name).input_size[-1], int(name.split("patch")[1][:2])
    grid = side // patch
    torch.manual_seed(0)
    own = [rotated(name, size) for size in (grid, 2 * grid)]
    torch.manual_seed(0)
    given = [rotated(name, size, ref_feat_shape=grid) for size in (grid, 2 * grid)]
    same, larger = map(torch.allclose, own, given)
    facts, *_ = prepared(classes, model=name)
    assert facts["ref_feat_shape"] == (grid if same and not larger else None)


# --- faults


def deep(path):
    Image.fromarray(np.full((24, 24), 3000, np.uint16)).save(path)


def see_through(path):
    """A square that only the alpha channel shows."""
    pixels = np.zeros((24, 24, 4), np.uint8)
    pixels[5:12, 5:12, 3] = 255
    Image.fromarray(pixels, "RGBA").save(path)


def in_a_circle(path):
    (path.parent / "again").symlink_to(path.parent.absolute())


def latin(path):
    shutil.copy(path, os.fsdecode(os.fsencode(path.parent) + b"/caf\xe9.png"))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.write_bytes(b""), r"a/3\.png cannot be used as an image"),
        (deep, r"a/3\.png .* more than 8 bits a channel \(mode I;16\)"),
        (see_through, r"a/3\.png .* in the alpha channel alone"),
        (in_a_circle, r"a/again is a link to a folder that holds it"),
        (latin, r"caf.udce9\.png' has a name that is not UTF-8"),
    ],
)
def test_what_cannot_be_used_is_named(classes, spoil, said):
    spoil(classes / "a" / "3.png")
    with pytest.raises(ValueError, match=said):
        prepared(classes)


def test_an_image_with_an_alpha_channel_and_colours_is_taken(classes, picture):
    image = picture(100)
    image.putalpha(Image.fromarray(np.tri(24, dtype=np.uint8) * 255))
    image.save(classes / "a" / "100.png")
    Image.new("RGBA", (24, 24), (0, 0, 0, 255)).save(classes / "a" / "black.png")
    _, *parts = prepared(classes)
    assert sum(map(len, parts)) == 32


def test_an_image_too_large_for_pillow_is_named(classes, monkeypatch):
    Image.new("RGB", (60, 60)).save(classes / "a" / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ValueError, match=r"large\.png cannot be used as an image"):
        prepared(classes)


def test_a_class_of_one_image_is_named(classes):
    for path in sorted((classes / "b").iterdir())[1:]:
        path.unlink()
    with pytest.raises(ValueError, match=r"class 'b' .* has 0 images to train on and 1 to test"):
        prepared(classes)


def test_images_that_are_not_there_are_said(tmp_path):
    with pytest.raises(ValueError, match="has 0 classes of images, 2 are needed: no file"):
        images.look(tmp_path)
    with pytest.raises(OSError, match="nothing"):
        images.look(tmp_path / "nothing")


def test_training_without_a_test_is_said(classes):
    split(classes)
    shutil.rmtree(classes / "test")
    with pytest.raises(ValueError, match="train has classes, and none of test, validation"):
        prepared(classes)


def test_fewer_images_than_a_batch_end_with_a_line_and_what_to_type(classes):
    with pytest.raises(ValueError, match=r"24 images to train on.* options\.batch-size=12"):
        prepared(classes, batch_size=64)
