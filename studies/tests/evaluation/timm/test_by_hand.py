"""cape-timm-eval against pixels and logits worked out with timm's own transforms, all options away
from their defaults."""

import argparse
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

timm = pytest.importorskip("timm")

from timm.data import create_transform  # noqa: E402

from cape_studies.evaluate.timm import evaluate, images, loading  # noqa: E402
from cape_studies.evaluate.timm.options import TimmOptions  # noqa: E402
from lab_support import check_items, rows  # noqa: E402

NAME, CPU = "vit_tiny_patch4_cape_32", torch.device("cpu")
KWARGS = dict(depth=2, embed_dim=32, num_heads=2, patch_size=(4, 8), img_size=16)
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
CLASSES = "abcdefg"
#: width and height of the images of a class, in pixels
SIZES = ((24, 16), (20, 34), (21, 21))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Two splits of noise, with two images of less than a patch, in height and in width."""
    folder, random = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for split in ("one", "two"):
        for label in CLASSES:
            (folder / split / label).mkdir(parents=True)
            for i, (width, height) in enumerate(SIZES):
                pixels = random.integers(0, 256, (height, width, 3), np.uint8)
                Image.fromarray(pixels).save(folder / split / label / f"{i}.png")
    Image.new("RGB", (40, 2), (200, 10, 60)).save(folder / "two" / "g" / "2.png")
    Image.new("RGB", (5, 30), (20, 90, 60)).save(folder / "two" / "f" / "2.png")
    return folder


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """What train.py leaves of an untrained model, under another architecture's name."""
    torch.manual_seed(0)
    model = timm.create_model(NAME, num_classes=7, global_pool="avg", **KWARGS)
    torch.nn.init.normal_(model.head.weight)
    args = argparse.Namespace(
        **dict(model="resnet18", model_kwargs=KWARGS | {"num_heads": 1}, num_classes=7),
        **dict(gp="avg", in_chans=None, img_size=20, mean=MEAN, std=STD),
        **dict(interpolation="lanczos", crop_pct=0.7, crop_mode="border"),
    )
    path = tmp_path_factory.mktemp("model") / "last.pth.tar"
    torch.save({"arch": "resnet18", "args": args, "state_dict": model.state_dict()}, path)
    return path


def shifted(image: Image.Image, number: int, by: float) -> Image.Image:
    """The middle square, moved right, down, left or up, in the mean colour of its edge."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = np.asarray(image)[top : top + side, left : left + side]
    edge = np.concatenate([square[0], square[-1], square[:, 0], square[:, -1]])
    found = np.empty_like(square)
    found[:] = edge.mean(axis=0).round()
    step = round(by * side)
    here, there = slice(step, None), slice(None, side - step)
    if number % 4 == 0:
        found[:, here] = square[:, there]
    elif number % 4 == 1:
        found[here] = square[there]
    elif number % 4 == 2:
        found[:, there] = square[:, here]
    else:
        found[there] = square[here]
    return Image.fromarray(found)


def by_hand(folder: Path, resolution: int | str) -> list[tuple[str, int, torch.Tensor]]:
    """Name, shorter side and pixels of each image in the order of their names."""
    found = []
    for number, path in enumerate(sorted(folder.glob("*/*.png"))):
        image = Image.open(path).convert("RGB")
        shape = (resolution, resolution)
        if resolution == "original":
            shape = max(1, image.height // 4) * 4, max(1, image.width // 8) * 8
        transform = create_transform(
            (3, *shape), interpolation="lanczos", mean=MEAN, std=STD, crop_pct=0.6,
            crop_mode="border",
        )  # fmt: skip
        name = f"{path.parent.name}/{path.name}"
        found.append((name, min(image.size), transform(shifted(image, number, 0.25))))
    return found


def test_accuracies_are_those_of_timms_transforms_and_model(data, file, run, tmp_path, monkeypatch):
    seen, of_model = [], loading.Loaded.logits

    def kept(loaded, pixels):
        logits = of_model(loaded, pixels)
        seen.extend(zip(pixels, logits, strict=True))
        return logits

    monkeypatch.setattr(loading.Loaded, "logits", kept)
    found = run(
        *("-c", f"mine={file}", "--model", NAME, "--model-kwargs", "num_heads=4", "--amp"),
        *("--data", data, "--split", "one", "two", "--crop-pct", 0.6, "--moved", 0.25),
        *("--resolutions", 24, "original", 16, "--bins", 20, 16, "--batch-size", 4),
        *("--items", tmp_path / "items.csv"),
    )
    check_items(found, tmp_path / "items.csv")
    tried = [tuple(pixels.shape) for pixels, _ in seen[:2]]
    assert tried == [(3, 24, 24), (3, 16, 16)]  # before any work
    assert all(pixels.count_nonzero() == 0 for pixels, _ in seen[:2])
    del seen[:2]
    model = timm.create_model(
        NAME, num_classes=7, global_pool="avg", dynamic_img_size=True, **KWARGS | {"num_heads": 4}
    )
    model.load_state_dict(torch.load(file, weights_only=False)["state_dict"])
    model.eval()
    scores, items = [], []
    for split in ("one", "two"):
        for resolution in (24, "original", 16):
            each = by_hand(data / split, resolution)
            hits = []
            groups = dict.fromkeys(pixels.shape for _, _, pixels in each)
            order = [i for g in groups for i, one in enumerate(each) if one[2].shape == g]
            for i in order:
                name, side, pixels = each[i]
                theirs, logits = seen.pop(0)
                torch.testing.assert_close(theirs, pixels, atol=1e-5, rtol=0)
                with torch.no_grad(), torch.autocast("cpu", torch.float16):
                    expected = model(pixels[None])[0].float()
                torch.testing.assert_close(logits, expected, atol=0.02, rtol=0)
                assert torch.equal(logits, logits.half().float())  # of mixed precision
                first = logits.argsort(descending=True).tolist()[:5]
                right = CLASSES.index(name[0])
                hits.append((i, name, side, int(first[0] == right), int(right in first)))
            hits.sort()
            for label, low, high in (
                *(("all", 0, 99), ("<=16", 0, 16)),
                *(("17-20", 17, 20), (">20", 21, 99)),
            ):
                inside = [one for one in hits if low <= one[2] <= high]
                for metric, place in (("top1", 3), ("top5", 4)):
                    value = 100 * sum(one[place] for one in inside) / len(inside)
                    about = [split, str(resolution), label, metric]
                    scores.append([*about, str(len(inside)), pytest.approx(value)])
                    items += [[*about, one[1], str(one[place])] for one in inside]
    assert not seen
    columns = ["split", "resolution", "bin", "metric"]
    assert [
        [*(row[name] for name in columns), row["items"], float(row["value"])] for row in found
    ] == scores
    assert [
        [row[name] for name in (*columns, "item", "value")] for row in rows(tmp_path / "items.csv")
    ] == items
    same = ("model", "checkpoint", "moved", "crop_pct", "interpolation", "precision", "how")
    assert {tuple(row[name] for name in same) for row in found} == {
        ("mine", str(file), "0.25", "0.6", "lanczos", "float16", "percent")
    }
    assert {row["dataset"] for row in found} == {str(data / "one"), str(data / "two")}


def loaded(file: Path, **more: object) -> loading.Loaded:
    options = TimmOptions(checkpoint=[str(file)], data=["x"], **{"model": NAME} | more)
    return loading.load(str(file), options, CPU)


def test_what_a_checkpoint_says_of_its_model_holds_where_no_option_says_more(file):
    one = loaded(file, model_kwargs={"num_heads": 4})
    assert (one.name, one.checkpoint, one.train_size, one.amp) == (NAME, str(file), 20, False)
    assert (one.config["crop_pct"], one.config["crop_mode"]) == (0.7, "border")
    assert (one.patch, one.model.training) == ((4, 8), False)
    assert (one.model.num_classes, one.model.global_pool) == (7, "avg")
    assert one.model.blocks[0].attn.num_heads == 4
    content = torch.load(file, weights_only=False)
    content["args"] = vars(content["args"]) | {"in_chans": 1, "crop_pct": None}
    content["args"] |= {"mean": None, "std": None}
    content["state_dict"]["patch_embed.proj.weight"] = torch.ones(32, 1, 4, 8)
    torch.save(content, file.with_name("grey.pth"))
    grey = loaded(file.with_name("grey.pth"), amp=True)  # args are a mapping too
    assert (grey.model.patch_embed.proj.in_channels, grey.amp) == (1, True)
    assert grey.config["crop_pct"] == grey.model.pretrained_cfg["crop_pct"] == 1
    content = {"arch": "resnet18", "state_dict": timm.create_model("resnet18").state_dict()}
    torch.save(content, file.with_name("resnet.pth"))
    other = loaded(file.with_name("resnet.pth"), model=None)  # without args; takes any size
    assert (other.name, other.patch, other.train_size) == ("resnet18", (1, 1), 224)
    logits = other.logits(torch.rand(2, 3, 40, 33))
    assert (logits.shape, logits.dtype) == ((2, 1000), torch.float32)
    assert not torch.equal(logits, logits.half().float())


def test_the_side_of_training_is_tried_where_no_other_is_given(data, file, refused):
    words = ("--model", NAME, "--model-kwargs", "num_heads=4", "--data", data / "one")
    # 20 pixels are no whole patches of 8
    assert "(trained at 20) takes no images of 20 × 20 pixels" in refused("-c", file, *words)


def test_images_are_read_in_batches_by_so_many_processes(data, file):
    options = TimmOptions(checkpoint=["m"], data=["d"], batch_size=5, workers=2)
    folder = images.open_folder(data / "one")
    given = images.loader(folder, [4, 0, 9], (8, 16), loaded(file), options)
    theirs = given.loader  # torch's, in timm's
    assert (theirs.batch_size, theirs.num_workers, theirs.pin_memory) == (5, 2, False)
    assert [given.dataset.folder, *given.dataset.indices] == [folder, 4, 0, 9]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("-c", "-c: "),  # or --checkpoint
        ("--data", "--data: "),
        ("--crop-pct 0", "--crop-pct: "),
        ("--crop-pct 1.01", "--crop-pct: "),
        ("--resolutions 0", "--resolutions: "),
        ("--resolutions whole", "--resolutions: "),
        ("--bins 0", "--bins: "),
        ("--moved -0.1", "--moved: "),
        ("--moved 0.51", "--moved: "),
        ("--batch-size 0", "--batch-size: "),
        ("--workers -1", "--workers: "),
        ("--resolutions original --throughput", "--throughput takes sides in pixels"),
    ],
)
def test_options_out_of_range_are_told(refused, words, named):
    given = [one for one in ("-c m", "--data d") if one.split()[0] not in words.split()]
    assert named.replace("-c:", "--checkpoint:") in refused(
        *" ".join(given).split(), *words.split()
    )


def test_options_at_the_end_of_their_range_are_taken_and_defaults_are_those_of_the_page():
    given = dict(checkpoint=["m"], data=["d"], crop_pct=1, moved=0.5, workers=0, batch_size=1)
    options = TimmOptions(**given, resolutions=[1, "original"], bins=[1])
    assert (options.crop_pct, options.moved, options.resolutions) == (1, 0.5, [1, "original"])
    plain = TimmOptions(checkpoint=["m"], data=["d"])
    assert (plain.batch_size, plain.workers, plain.moved, plain.crop_pct) == (256, 4, 0, None)
    assert (plain.model, plain.model_kwargs, plain.resolutions) == (None, {}, [])
    assert (plain.bins, plain.split, plain.upright, plain.throughput) == ([], [], False, False)


@pytest.mark.parametrize("upright", [False, True])
def test_images_are_turned_as_their_exif_says_where_it_is_asked_for(
    file, tmp_path, monkeypatch, upright
):
    """Of 24 × 16 pixels; from 5 on an orientation makes height of width."""
    random, paths, seen = np.random.default_rng(0), [], []
    (tmp_path / "a").mkdir()
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[images.ORIENTATION] = orientation
        paths.append(tmp_path / "a" / f"{orientation}.png")
        pixels = random.integers(0, 256, (16, 24, 3), np.uint8)
        Image.fromarray(pixels).save(paths[-1], exif=exif)
    folder = images.open_folder(tmp_path)
    turned = [(16, 24)] * 4 + [(24, 16)] * 4
    expected = turned if upright else [(16, 24)] * 8
    assert images.sizes(folder, upright) == expected
    options = TimmOptions(checkpoint=["m"], data=["d"], upright=upright, batch_size=8, workers=0)
    # the crop is chosen when the model is loaded: else it would be the file's, 0.7
    model = loaded(file, model_kwargs={"num_heads": 4}, crop_pct=1)

    def logits(model, pixels):
        seen.extend(pixels)
        return torch.zeros(len(pixels), 7)

    monkeypatch.setattr(loading.Loaded, "logits", logits)
    evaluate.right_answers(model, folder, "original", options)
    assert [tuple(one.shape) for one in seen] == [(3, *one) for one in expected]
    given = images.loader(folder, range(8), (16, 24), model, options).dataset
    given.transform = np.asarray
    for i, path in enumerate(paths):
        image = Image.open(path)
        shown = np.asarray(ImageOps.exif_transpose(image) if upright else image)
        assert np.array_equal(given[i][0], shown)
        own = torch.from_numpy((shown / 255.0 - MEAN) / STD).permute(2, 0, 1).float()
        torch.testing.assert_close(seen[i], own)


def test_an_image_that_pil_refuses_is_named(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    Image.new("RGB", (30, 20)).save(tmp_path / "a" / "large.png")
    folder = images.open_folder(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200)  # 600 are more than twice as many
    with pytest.raises(ValueError, match=r"large.png: .*600 pixels"):
        images.sizes(folder)


def test_speed_is_the_median_of_thirty_forwards_after_five(data, file, run, monkeypatch):
    times, asked = [], []

    def logits(model, pixels):
        asked.append((tuple(pixels.shape), len(times) % 2))  # 1: the clock was begun
        return torch.zeros(len(pixels), 7)

    def clock():
        # the forwards take 0, 1, 2, … 34 s, of any resolution
        at, after = divmod(len(times), 2)
        times.append(sum(range(35)) * (at // 35) + sum(range(at % 35)) + after * (at % 35))
        return times[-1]

    monkeypatch.setattr(loading.Loaded, "logits", logits)
    monkeypatch.setattr(evaluate, "process_time", clock)
    given = ("--model", NAME, "--model-kwargs", "num_heads=4", "--batch-size", 6)
    found = run(
        *("-c", file, "--data", data / "one", *given, "--resolutions", 16, 24, "--throughput")
    )
    speed = [row for row in found if row["metric"] == "throughput"]
    # the median of 5, 6, … 34 is 19.5 s for 6 images
    assert [float(row["value"]) for row in speed] == pytest.approx([6 / 19.5] * 2)
    assert [(row["resolution"], row["items"]) for row in speed] == [("16", "6"), ("24", "6")]
    for side in (16, 24):
        assert asked.count(((6, 3, side, side), 1)) == 35
    assert len(times) == 2 * 2 * 35
    both = run("-c", file, "--data", data / "one", *given, "--resolutions", 16)
    assert {row["metric"] for row in both} == {"top1", "top5"}


def test_a_gpu_is_timed_by_the_clock(file, monkeypatch):
    model, clock = loaded(file, model_kwargs={"num_heads": 4}), iter(range(1000))
    model.device = argparse.Namespace(type="cuda")
    monkeypatch.setattr(evaluate, "perf_counter", lambda: next(clock) / 2)
    monkeypatch.setattr(evaluate, "process_time", lambda: pytest.fail("a core's time"))
    monkeypatch.setattr(torch, "rand", lambda *shape, device: torch.zeros(shape))
    monkeypatch.setattr(loading.Loaded, "logits", lambda loaded, pixels: pixels)
    options = TimmOptions(checkpoint=["m"], data=["d"], batch_size=7)
    assert evaluate.throughput(model, 8, options) == 14


def test_the_first_five_of_fewer_classes_are_all():
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 3.0]])
    found = evaluate.first_five(logits, torch.tensor([2, 1]), "m 8")
    assert found.tolist() == [[0, 1, 0, 0, 0], [0, 1, 0, 0, 0]]
    six = evaluate.first_five(torch.arange(6.0)[None], torch.tensor([0]), "m 8")
    assert six.tolist() == [[0, 0, 0, 0, 0]]
