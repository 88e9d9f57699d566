"""Appendix B.2: bins by the images' own size, and what each strategy feeds."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

timm = pytest.importorskip("timm")

from timm.data import create_transform  # noqa: E402

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off
from cape_plugins.evaluation.timm import results, size_bins, testset  # noqa: E402
from cape_plugins.evaluation.timm.evaluate import main  # noqa: E402
from cape_plugins.evaluation.timm.results import Row  # noqa: E402
from cape_plugins.evaluation.timm.testset import View  # noqa: E402

PATCH = (16, 16)

#: (height, width) → number of the bin of the shorter side
SIZES = {
    (53, 90): None,
    (54, 54): 0,
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
    if number is not None:
        least, most = size_bins.BINS[number]
        assert least <= min(size) <= (most if number < 7 else 10**6)


def test_the_bins_are_the_papers_eight():
    labels = "54-100 101-150 151-200 201-250 251-300 301-350 351-384 385+"
    assert " ".join(size_bins.LABELS) == labels


@pytest.mark.parametrize(
    ("strategy", "size", "expected"),
    [
        ("min", (60, 90), (54, 54)),  # of the bin, whatever the image
        ("max", (54, 900), (100, 100)),
        ("min", (210, 150), (101, 101)),
        ("max", (150, 210), (150, 150)),
        ("min", (384, 384), (351, 351)),
        ("max", (351, 900), (384, 384)),
        ("min", (600, 800), (385, 385)),
        ("max", (390, 3000), (500, 500)),
        ("original", (150, 210), (150, 210)),
        ("original-no-crop", (150, 210), (150, 210)),
    ],
)
def test_min_and_max_take_one_size_for_a_bin_and_originals_each_images_own(
    strategy, size, expected
):
    found = view(strategy, *size)
    assert (found.height, found.width) == expected
    assert found.crop_pct == (1.0 if strategy == "original-no-crop" else 0.875)


@pytest.mark.parametrize("strategy", size_bins.STRATEGIES)
def test_images_below_the_first_bin_are_left_out(strategy):
    assert view(strategy, 53, 900, resolution=224) is None


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
    side = {"min": 54, "max": 100, "fixed": 48}[strategy]
    transform = create_transform(side, crop_pct=0.875, interpolation="bicubic", normalize=False)
    whole = side // 16 * 16  # the authors' patch convolution leaves the rest out
    pixels = testset.prepare(image, found, "bicubic")
    assert torch.equal(pixels, transform(image)[:, :whole, :whole])


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
    save(tmp_path, [(60, 70), (70, 60), (60, 70), (390, 400)])
    folder = testset.open_folder(str(tmp_path), None)
    assert folder.sizes == [(60, 70), (70, 60), (60, 70), (390, 400)] * 2
    kwargs = dict(patch=PATCH, crop_pct=1.0)
    views = [size_bins.view_of("original", *size, **kwargs) for size in folder.sizes]
    dataset = testset.ViewDataset(folder, {"a": 0, "b": 1}, views, "bicubic")
    assert dataset.batches(3) == [[0, 2, 4], [6], [1, 5]]
    shares = [list(dataset.loader(3, rank=rank, world_size=2).batch_sampler) for rank in (0, 1)]
    assert shares == [[[0, 2, 4], [1, 5]], [[6]]]
    (pixels,), targets, numbers = next(iter(dataset.loader(3)))
    assert pixels.shape == (3, 3, 48, 64)
    assert (targets.tolist(), numbers.tolist()) == ([0, 0, 1], [0, 2, 4])


def evaluate(name: str, folder: Path, *options: str) -> None:
    """``cape-timm-eval --size-bins`` of a small new model."""
    model = timm.create_model(name, depth=1, embed_dim=32, num_heads=2, num_classes=2)
    torch.save({"arch": name, "state_dict": model.state_dict()}, folder / "a.pth.tar")
    main(
        [
            *("-c", str(folder / "a.pth.tar"), "--data", str(folder / "data"), "--size-bins"),
            *("--model-kwargs", "depth=1", "embed_dim=32", "num_heads=2", "--workers", "0"),
            *options,
        ]
    )


@pytest.mark.parametrize("name", ["vit_tiny_patch16_cape_224", "vit_tiny_patch16_224"])
def test_every_bin_has_its_row_and_the_bins_add_up(name, tmp_path, capsys, caplog):
    save(tmp_path / "data", [(60, 90), (100, 64), (120, 110), (390, 400), (53, 400)])
    files = ["--csv", str(tmp_path / "o.csv"), "--items", str(tmp_path / "items.csv")]
    evaluate(name, tmp_path, "--resolutions", "32", "64", *files)
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
        assert bins == {"54-100": 4, "101-150": 2, **largest}
        assert total == sum(bins.values())
    told = ("strategy", "resolution", "bin")
    items: dict[tuple[str, ...], list[int]] = {}
    for item in csv.DictReader((tmp_path / "items.csv").open()):
        if item["metric"] == "top1":
            items.setdefault(tuple(item[name] for name in told), []).append(int(item["value"]))
    for row in rows:
        right = items.pop(tuple(row[name] for name in told))
        assert len(right) == int(row["images"])
        assert 100 * sum(right) / len(right) == pytest.approx(float(row["top1"]), abs=1e-4)
    assert not items
    assert "2 of 10 images are smaller than 54 pixels" in caplog.text
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if line.startswith("| bin"))
    assert head.replace("|", " ").split() == (
        ["bin", "images", "top1", "min", "max", "original", "original-no-crop", "32", "64"]
    )


def test_images_that_are_all_below_the_bins_are_refused(tmp_path, capsys):
    save(tmp_path / "data", [(32, 32), (53, 90)])
    with pytest.raises(SystemExit) as exit_:
        evaluate("vit_tiny_patch16_cape_224", tmp_path, "--csv", str(tmp_path / "o.csv"))
    text = capsys.readouterr().err.strip()
    assert exit_.value.code == 2
    assert len(text.splitlines()) == 1
    assert "4 of 4 images are smaller than 54 pixels, where the size bins start" in text
    assert not (tmp_path / "o.csv").exists()


#: Table 5 of the paper: bin → images, and the accuracy of the best strategy (*) with what the
#: others lose to it
PAPER = """
54-100   146   *84.25 -0.69 -0.69 -19.86 -1.37 -6.16 -8.22
101-150  221   -0.81 -1.36 -0.45 -5.43 -2.71 -5.43 *74.66
151-200  372   -1.61 -1.08 -2.42 -3.23 -2.42 *78.49 -1.61
201-250  538   -3.16 -1.30 -1.49 -2.60 -1.86 *81.97 -2.42
251-300  1090  -4.40 -1.47 -0.28 -1.56 -1.01 *79.72 -0.37
301-350  8496  -3.83 -1.88 -0.48 -1.39 -1.08 *83.57 -0.48
351-384  24538 -4.14 -1.88 -0.43 -0.79 -0.43 *82.10 -0.13
385+     14599 -3.30 -1.25 -0.14 -0.13 *84.46
"""


def test_the_table_is_the_papers():
    ways = [("fixed", 160), ("fixed", 224), ("fixed", 384), ("min", None), ("max", None)]
    ways += [("original", None), ("original-no-crop", None)]
    rows, expected = [], []
    for line in PAPER.strip().splitlines():
        label, images, *cells = line.split()
        best = next(float(cell[1:]) for cell in cells if cell.startswith("*"))
        for (strategy, resolution), cell in zip(ways, cells, strict=False):
            row = Row("vit", "a.pth", "imagenet", resolution, strategy=strategy, bin=label)
            row.top1 = best + (0 if cell.startswith("*") else float(cell))
            row.top5, row.images = 0.0, int(images)
            rows.append(row)
        expected.append([label, images, f"{best:.2f}", *cells])
    for strategy, resolution in ways:
        mine = [row for row in rows if (row.strategy, row.resolution) == (strategy, resolution)]
        total = sum(row.images for row in mine)
        row = replace(mine[0], bin="all", images=total)
        row.top1 = sum(one.top1 * one.images for one in mine) / total
        rows.append(row)
    title, _, head, _, *body = results.markdown(rows).split("\n\n", 1)[1].splitlines()
    assert title == "a.pth · imagenet"
    names = "160 224 384 min max original original-no-crop"
    assert head.replace("|", " ").split() == ["bin", "images", "top1", *names.split()]
    *bins, last = [line.replace("|", " ").split() for line in body]
    assert bins == [["best" if cell[0] == "*" else cell for cell in line] for line in expected]
    # the paper's text: 82.92 with the best strategy in each bin, 81.26 at 224 and 82.55 at 384
    assert last[:2] == ["all", "50000"]
    assert float(last[2]) == pytest.approx(82.92, abs=0.02)
    assert [float(drop) for drop in last[4:6]] == pytest.approx([-1.66, -0.37], abs=0.02)
    assert len(last) == 8  # the originals do not take all images
