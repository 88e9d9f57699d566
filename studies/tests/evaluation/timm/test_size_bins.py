"""Appendix B.2: bins by the images' own size, and what each strategy feeds."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lab_support import check_items

timm = pytest.importorskip("timm")

from timm.data import create_transform  # noqa: E402

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off
from cape_studies.evaluation.timm import images, size_bins  # noqa: E402
from cape_studies.evaluation.timm.loading import Loaded  # noqa: E402
from cape_studies.evaluation.timm.size_bins import View  # noqa: E402

BICUBIC = dict(interpolation="bicubic", crop_mode="center", mean=(0.0,) * 3, std=(1 / 255,) * 3)


def picture(height: int, width: int) -> Image.Image:
    """A smooth colour gradient with a grid, so that shifts and scales show."""
    y, x = np.mgrid[:height, :width]
    channels = [255 * y / height, 255 * x / width, 128 + 127 * np.sin(x / 5) * np.cos(y / 7)]
    return Image.fromarray(np.stack(channels, axis=-1).astype("uint8"))


def view(strategy: str, height: int, width: int, fixed: int) -> View | None:
    return size_bins.view_of(strategy, height, width, 0.875, fixed if strategy == "fixed" else None)


def test_the_shorter_side_decides_among_the_papers_eight_bins():
    labels = "54-100 101-150 151-200 201-250 251-300 301-350 351-384 385+"
    assert " ".join(size_bins.LABELS) == labels
    sides = {53: None, 54: 0, 100: 0, 101: 1, 200: 2, 201: 3, 300: 4, 301: 5, 384: 6, 385: 7}
    for side, number in {**sides, 3000: 7}.items():
        assert size_bins.bin_of(side, 4000) == size_bins.bin_of(4000, side) == number


@pytest.mark.parametrize(
    ("strategy", "size", "expected"),
    [
        ("min", (60, 90), (54, 54, 0.875)),  # of the bin, whatever the image
        ("max", (54, 900), (100, 100, 0.875)),
        ("max", (351, 900), (384, 384, 0.875)),
        ("min", (600, 800), (385, 385, 0.875)),
        ("max", (390, 3000), (500, 500, 0.875)),
        ("fixed", (600, 900), (672, 672, 0.875)),
        ("original", (150, 210), (150, 210, 0.875)),
        ("original-no-crop", (150, 210), (150, 210, 1.0)),
        ("original", (385, 900), None),
        ("original-no-crop", (385, 900), None),
        *((strategy, (53, 900), None) for strategy in size_bins.STRATEGIES),
    ],
)
def test_what_a_strategy_feeds_and_leaves_out(strategy, size, expected):
    assert view(strategy, *size, 672) == expected


def save(root: Path, sizes: list[tuple[int, int]]) -> None:
    for label in ("a", "b"):
        (root / label).mkdir(parents=True)
        for i, size in enumerate(sizes):
            picture(*size).save(root / label / f"{i}.png")


def batches(root: Path, views: list[View | None], batch_size: int) -> images.Batches:
    """Of a model with patches of 16 × 16 pixels."""
    model = timm.create_model("vit_tiny_patch16_cape_224", depth=1, embed_dim=32, num_heads=2)
    config = {**BICUBIC, "input_size": (3, 224, 224)}
    loaded = Loaded(model, "", "", 224, config, torch.device("cpu"))
    return images.Batches(images.open_folder(str(root), None), views, loaded, batch_size)


@pytest.mark.parametrize("strategy", size_bins.STRATEGIES)
def test_a_model_is_fed_timms_resize_and_crop_cut_to_whole_patches(strategy, tmp_path):
    save(tmp_path, [(70, 90)])
    side = {"min": 54, "max": 100, "fixed": 50}.get(strategy)
    height, width = (side, side) if side else (70, 90)
    transform = create_transform(
        (3, height, width),
        crop_pct=1.0 if strategy == "original-no-crop" else 0.875,
        interpolation="bicubic",
        normalize=False,
    )
    made = batches(tmp_path, [view(strategy, 70, 90, 50)] * 2, 8)
    ((pixels, targets),) = made.loader(torch.device("cpu"), workers=0)
    # the authors' patch convolution leaves the rest out
    expected = transform(picture(70, 90))[:, : height // 16 * 16, : width // 16 * 16]
    if strategy == "original-no-crop":
        assert np.array_equal(expected, np.array(picture(70, 90)).transpose(2, 0, 1)[:, :64, :80])
    assert torch.equal(pixels, torch.stack([expected, expected]).float())
    assert targets.tolist() == [0, 1]


def test_images_of_one_size_share_batches_and_left_out_ones_are_in_none(tmp_path):
    save(tmp_path, [(60, 70), (70, 60), (60, 70), (390, 400)])
    sizes = images.own_sizes(images.open_folder(str(tmp_path), None))
    assert sizes == [(60, 70), (70, 60), (60, 70), (390, 400)] * 2
    made = batches(tmp_path, [view("original", *size, 0) for size in sizes], 3)
    assert made.members == [[0, 2, 4], [6], [1, 5]]
    pixels, targets = made[0]
    assert pixels.shape == (3, 3, 48, 64)
    assert targets.tolist() == [0, 0, 1]


def new_model(name: str, folder: Path) -> list[object]:
    """Options of a test by bins of a small new model."""
    model = timm.create_model(name, depth=1, embed_dim=32, num_heads=2, num_classes=2)
    torch.save({"arch": name, "state_dict": model.state_dict()}, folder / "a.pth.tar")
    options = ["-c", folder / "a.pth.tar", "--data", folder / "data", "--size-bins"]
    return [*options, "--model-kwargs", "depth=1", "embed_dim=32", "num_heads=2", "num_classes=2"]


@pytest.mark.parametrize("name", ["vit_tiny_patch16_cape_224", "vit_tiny_patch16_224"])
def test_every_bin_has_its_row_and_the_bins_add_up(name, tmp_path, run):
    save(tmp_path / "data", [(60, 90), (100, 64), (120, 110), (390, 400), (53, 400)])
    files = ["--resolutions", 32, 64, "--items", tmp_path / "items.csv"]
    scores = run(*new_model(name, tmp_path), *files)
    check_items(scores, tmp_path / "items.csv")
    rows = [row for row in scores if row["metric"] == "top1"]
    found = {(row["strategy"], row["resolution"], row["bin"]): row["items"] for row in rows}
    others = [(name, "") for name in size_bins.STRATEGIES if name != "fixed"]
    assert {key[:2] for key in found} == {("fixed", "32"), ("fixed", "64"), *others}
    for strategy, resolution in {key[:2] for key in found}:
        bins = {key[2]: int(n) for key, n in found.items() if key[:2] == (strategy, resolution)}
        total = bins.pop("all")
        largest = {} if "original" in strategy else {"385+": 2}
        assert bins == {"54-100": 4, "101-150": 2, **largest}  # 53 is below the bins
        assert total == sum(bins.values())


def test_images_that_are_all_below_the_bins_are_refused(tmp_path, refused):
    save(tmp_path / "data", [(32, 32), (53, 90)])
    error = refused(*new_model("vit_tiny_patch16_cape_224", tmp_path))
    assert "has no image that --size-bins min feeds" in error
