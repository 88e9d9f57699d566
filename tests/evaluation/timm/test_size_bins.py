"""Appendix B.2: bins by the images' own size, and what each strategy feeds."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

timm = pytest.importorskip("timm")

from timm.data import create_transform  # noqa: E402

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off
from cape_plugins.evaluation.timm import size_bins, testset  # noqa: E402
from cape_plugins.evaluation.timm.evaluate import main  # noqa: E402
from cape_plugins.evaluation.timm.testset import View  # noqa: E402

PATCH = (16, 16)

#: (height, width) → number of the bin of the shorter side
SIZES = {
    (60, 90): 0,
    (300, 100): 0,
    (101, 400): 1,
    (150, 150): 1,
    (151, 160): 2,
    (333, 200): 2,
    (250, 201): 3,
    (300, 251): 4,
    (350, 500): 5,
    (351, 500): 6,
    (500, 384): 6,
    (385, 385): 7,
    (2000, 3000): 7,
}


def picture(height: int, width: int) -> Image.Image:
    """A smooth colour gradient with a grid, so that shifts and scales show."""
    y, x = np.mgrid[:height, :width]
    channels = [255 * y / height, 255 * x / width, 128 + 127 * np.sin(x / 5) * np.cos(y / 7)]
    return Image.fromarray(np.stack(channels, axis=-1).astype("uint8"))


def view(strategy: str, height: int, width: int, **kwargs) -> View | None:
    kwargs = {"patch": PATCH, "crop_pct": 0.875, **kwargs}
    return next(iter(size_bins.view_of(strategy, height, width, **kwargs)), None)


@pytest.mark.parametrize(("size", "number"), SIZES.items())
def test_the_shorter_side_decides_the_bin(size, number):
    assert size_bins.bin_of(*size) == number
    least, most = size_bins.BINS[number]
    assert least <= min(size) <= (most or 10**6)


def test_the_bins_are_the_papers_eight():
    labels = "0-100 101-150 151-200 201-250 251-300 301-350 351-384 385+"
    assert " ".join(size_bins.LABELS) == labels


@pytest.mark.parametrize(
    ("strategy", "size", "expected"),
    [
        ("min", (150, 210), (144, 144)),
        ("max", (150, 210), (208, 208)),
        ("min", (600, 800), (496, 496)),  # at most 500² in the last bin
        ("max", (390, 430), (416, 416)),
        ("max", (250, 900), (896, 896)),  # the limit is that of the last bin alone
        ("original", (150, 210), (150, 210)),
        ("original-no-crop", (150, 210), (150, 210)),
        ("original", (9, 210), (16, 210)),  # one patch at least
        ("min", (9, 210), (16, 16)),
    ],
)
def test_each_image_gets_its_size(strategy, size, expected):
    found = view(strategy, *size)
    assert (found.height, found.width) == expected
    assert found.crop_pct == (1.0 if strategy == "original-no-crop" else 0.875)


def test_fixed_takes_one_size_for_all_and_originals_stop_at_384():
    assert view("fixed", 60, 90, resolution=224) == View(224, 224, 0.875, PATCH)
    assert view("fixed", 600, 900, resolution=672) == View(672, 672, 0.875, PATCH)
    assert view("original", 385, 900) is None
    assert view("original-no-crop", 385, 900) is None


def test_original_no_crop_feeds_the_image_itself_cut_to_whole_patches():
    image = picture(70, 90)
    pixels = testset.prepare(image, view("original-no-crop", 70, 90), "bicubic")
    expected = torch.from_numpy(np.array(image)).permute(2, 0, 1)[:, :64, :80]
    assert torch.equal(pixels, expected)


def test_original_enlarges_and_crops_back_to_the_rectangle():
    image = picture(70, 90)
    pixels = testset.prepare(image, view("original", 70, 90), "bicubic")
    transform = create_transform(
        (3, 70, 90), crop_pct=0.875, interpolation="bicubic", normalize=False
    )
    assert torch.equal(pixels, transform(image)[:, :64, :80])
    enlarged = image.resize((round(90 / 0.875), round(70 / 0.875)), Image.Resampling.BICUBIC)
    top, left = (enlarged.height - 70) // 2, (enlarged.width - 90) // 2
    by_hand = np.array(enlarged)[top : top + 64, left : left + 80].transpose(2, 0, 1)
    assert np.abs(pixels.numpy().astype(int) - by_hand).mean() < 12  # within a pixel's shift


@pytest.mark.parametrize("strategy", ["min", "max", "fixed"])
def test_squares_are_timms_resize_and_centre_crop(strategy):
    image, found = picture(70, 90), view(strategy, 70, 90, resolution=48)
    side = {"min": 64, "max": 80, "fixed": 48}[strategy]
    transform = create_transform(side, crop_pct=0.875, interpolation="bicubic", normalize=False)
    assert torch.equal(testset.prepare(image, found, "bicubic"), transform(image))


def test_wrong_strategies_are_named():
    with pytest.raises(ValueError, match="unknown strategy 'huge': choose among min, max"):
        view("huge", 70, 90)
    with pytest.raises(ValueError, match="fixed needs a resolution"):
        view("fixed", 70, 90)


def save(root: Path, sizes: list[tuple[int, int]]) -> None:
    for label in ("a", "b"):
        (root / label).mkdir(parents=True)
        for i, size in enumerate(sizes):
            picture(*size).save(root / label / f"{i}.png")


def test_images_of_one_size_share_batches_and_left_out_ones_are_in_none(tmp_path):
    save(tmp_path, [(40, 60), (60, 40), (40, 60), (390, 400)])
    folder = testset.open_folder(str(tmp_path), None)
    assert folder.sizes == [(40, 60), (60, 40), (40, 60), (390, 400)] * 2
    kwargs = dict(patch=PATCH, crop_pct=1.0)
    views = [size_bins.view_of("original", *size, **kwargs) for size in folder.sizes]
    dataset = testset.ViewDataset(folder, {"a": 0, "b": 1}, views, "bicubic")
    assert dataset.batches(3) == [[0, 2, 4], [6], [1, 5]]
    shares = [list(dataset.loader(3, rank=rank, world_size=2).batch_sampler) for rank in (0, 1)]
    assert shares == [[[0, 2, 4], [1, 5]], [[6]]]
    (pixels,), targets, numbers = next(iter(dataset.loader(3)))
    assert pixels.shape == (3, 3, 32, 48)
    assert (targets.tolist(), numbers.tolist()) == ([0, 0, 1], [0, 2, 4])


@pytest.mark.parametrize("name", ["vit_tiny_patch16_cape_224", "vit_tiny_patch16_224"])
def test_every_bin_has_its_row_and_the_bins_add_up(name, tmp_path):
    save(tmp_path / "data", [(60, 90), (100, 64), (120, 110), (390, 400)])
    model = timm.create_model(name, depth=1, embed_dim=32, num_heads=2, num_classes=2)
    torch.save({"arch": name, "state_dict": model.state_dict()}, tmp_path / "a.pth.tar")
    main(
        [
            *("-c", str(tmp_path / "a.pth.tar"), "--data", str(tmp_path / "data"), "--size-bins"),
            *("--resolutions", "32", "64", "--model-kwargs", "depth=1", "embed_dim=32"),
            *("num_heads=2", "--workers", "0", "--csv", str(tmp_path / "o.csv")),
        ]
    )
    rows = list(csv.DictReader((tmp_path / "o.csv").open()))
    images = {(row["strategy"], row["resolution"], row["bin"]): row["images"] for row in rows}
    assert {key[:2] for key in images} == {
        *(("fixed", "32"), ("fixed", "64"), ("min", ""), ("max", "")),
        *(("original", ""), ("original-no-crop", "")),
    }
    for strategy, resolution in {key[:2] for key in images}:
        bins = {key[2]: int(n) for key, n in images.items() if key[:2] == (strategy, resolution)}
        total = bins.pop("all")
        largest = {} if "original" in strategy else {"385+": 2}
        assert bins == {"0-100": 4, "101-150": 2, **largest}
        assert total == sum(bins.values())
