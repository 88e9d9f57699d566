"""Class folders become the model's outputs: by order, by number or by a class map."""

from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("timm")

from cape_plugins.evaluation.timm import testset


def test_imagenet_v2_folders_are_taken_in_numeric_order():
    index = testset.class_index([str(i) for i in range(1000)], 1000)
    assert index == {str(i): i for i in range(1000)}
    some = testset.class_index(["0", "2", "10"], 12, allow_missing=True)
    assert some == {"0": 0, "2": 2, "10": 10}


def test_class_folders_in_numeric_order_reach_the_model_as_its_outputs(tmp_path):
    for name in range(12):
        (tmp_path / str(name)).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / str(name) / "a.png")
    folder = testset.open_folder(str(tmp_path), None)
    views = [(testset.View(8, 8, 1.0),)] * 12
    dataset = testset.ViewDataset(folder, testset.class_index(folder.classes, 12), views, "bicubic")
    named = {int(Path(path).parent.name) for path in dataset.paths}
    assert named == set(dataset.targets) == set(range(12))
    assert all(
        int(Path(path).parent.name) == target
        for path, target in zip(dataset.paths, dataset.targets, strict=True)
    )


@pytest.mark.parametrize(
    ("folders", "classes", "options", "message"),
    [
        (["0", "2"], 4, {}, "2 of 4 class folders are missing or empty: 1, 3"),
        (["cat", "dog"], 3, {}, "2 class folders with images, but the model has 3 classes"),
        (["a", "b", "c"], 2, {}, r"3 class folders \(a, b, c\), but the model has 2 classes"),
        (["cat"], 2, dict(class_map={"cat": 0, "dog": 1}), "missing or empty: dog"),
        (["cow"], 2, dict(class_map={"cat": 0}), "the class map does not have: cow"),
        (["cat"], 2, dict(class_map={"cat": 7}), "beyond the model's 2 classes: cat"),
    ],
)
def test_missing_and_surplus_classes_are_named(folders, classes, options, message):
    with pytest.raises(ValueError, match=message):
        testset.class_index(folders, classes, **options)


def test_an_empty_class_folder_keeps_its_place_in_the_order():
    index = testset.class_index(["a", "c"], 3, empty=["b"], allow_missing=True)
    assert index == {"a": 0, "c": 2}
    with pytest.raises(ValueError, match="1 of 3 class folders are empty: b"):
        testset.class_index(["a", "c"], 3, empty=["b"])
    with pytest.raises(ValueError, match=r"2 class folders with images \(b without\), but the mod"):
        testset.class_index(["a", "c"], 7, empty=["b"])
    with pytest.raises(ValueError, match="1 of 2 class folders are empty: b"):
        testset.class_index(["a"], 2, empty=["b"], class_map={"a": 0, "b": 1})
