"""cape-timm-eval on scikit-learn's digits: what it finds is what a plain loop finds."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from lab_support import check_items, rows

timm = pytest.importorskip("timm")

from timm.data import create_transform  # noqa: E402
from timm.utils import natural_key  # noqa: E402
from torchvision import transforms  # noqa: E402

from cape_studies.data.images import moved  # noqa: E402
from cape_studies.evaluate.timm import evaluate, loading  # noqa: E402
from cape_studies.evaluate.timm.options import TimmOptions  # noqa: E402

CPU = torch.device("cpu")
SMALL = dict(depth=1, embed_dim=32, num_heads=2)
both = pytest.mark.parametrize("checkpoint", ["cape", "abspos"], indirect=True)


@pytest.fixture
def checkpoint(request):
    return request.getfixturevalue(request.param)


def load(path: Path | str, model: str | None = None, **kwargs) -> torch.nn.Module:
    options = TimmOptions(checkpoint=[str(path)], model=model, model_kwargs=kwargs, data=["x"])
    return loading.load(str(path), options, CPU).model


def by_hand(model, data: Path, *sizes: int, crop_pct: float = 1, log=False) -> list[int]:
    """[images, top-1, top-5] with timm's transforms."""
    paths = sorted(data.glob("*/*.png"))
    images = [Image.open(path).convert("RGB") for path in paths]
    each = []
    for size in sizes:
        transform = create_transform(
            size, crop_pct=crop_pct, interpolation="bicubic", mean=(0.5,) * 3, std=(0.5,) * 3
        )
        with torch.no_grad():
            each.append(model(torch.stack([transform(image) for image in images])))
    logits = sum(x.log_softmax(-1) for x in each) if log else sum(each) / len(each)
    targets = torch.tensor([int(path.parent.name) for path in paths])[:, None]
    right = logits.argsort(dim=-1, descending=True) == targets
    return [len(paths), *(int(right[:, :top].sum()) for top in (1, 5))]


def counted(rows: list[dict[str, str]]) -> list[list[int]]:
    """The same of each condition of a CSV, whose two rows follow one another."""
    found = []
    for one, five in zip(rows[::2], rows[1::2], strict=True):
        assert (one["metric"], five["metric"], one["how"]) == ("top1", "top5", "percent")
        images = int(one["items"])
        right = (round(float(row["value"]) * images / 100) for row in (one, five))
        found.append([images, *right])
    return found


@both
def test_accuracy_is_that_of_a_plain_loop_over_timms_transforms(checkpoint, data, run):
    sizes = (12, 16, 24)
    rows = run("-c", checkpoint, "--data", data, "--resolutions", *sizes, "--crop-pct", 0.875)
    assert [int(row["resolution"]) for row in rows[::2]] == [12, 16, 24]
    model = load(checkpoint)
    assert counted(rows) == [by_hand(model, data, size, crop_pct=0.875) for size in sizes]
    assert 20 < float(rows[2]["value"]) < 100  # it has learned, so the counts mean something


@both
def test_plain_state_dicts_and_safetensors_give_the_same_model(checkpoint, tmp_path):
    expected = load(checkpoint)
    args = torch.load(checkpoint, weights_only=False)["args"]
    name, kwargs = args.model, {**args.model_kwargs, "num_classes": 10}
    torch.save(expected.state_dict(), tmp_path / "plain.pth")
    timm.models.save_for_hf(expected, str(tmp_path / "hub"), safe_serialization=True)
    x = torch.randn(2, 3, 24, 32, generator=torch.Generator().manual_seed(0))
    for file in ("plain.pth", "hub/model.safetensors"):
        found = load(tmp_path / file, name, **kwargs)
        torch.testing.assert_close(found(x), expected(x))


def test_the_averaged_weights_of_train_py_are_tested_where_it_kept_them(cape, tmp_path, data, run):
    content = torch.load(cape, weights_only=False)
    average = {name: value.clone() for name, value in content["state_dict"].items()}
    average["head.weight"] += 0.5 * torch.randn(10, 32, generator=torch.Generator().manual_seed(0))
    torch.save({**content, "state_dict": average}, tmp_path / "alone.pth.tar")
    content["state_dict_ema"] = {f"module.{name}": value for name, value in average.items()}
    torch.save(content, tmp_path / "both.pth.tar")  # ModelEma's names; ModelEmaV3 has no prefix
    found, alone, trained = (
        run("-c", f"x={path}", "--data", data, "--items", tmp_path / "i.csv")
        for path in (tmp_path / "both.pth.tar", tmp_path / "alone.pth.tar", cape)
    )
    assert counted(found) == counted(alone) != counted(trained)
    theirs = load(cape)
    timm.models.load_checkpoint(theirs, str(tmp_path / "both.pth.tar"), weights_only=False)
    torch.testing.assert_close(load(tmp_path / "both.pth.tar").state_dict(), theirs.state_dict())


def test_several_models_and_folders_make_one_csv_and_one_table(
    cape, abspos, data, run, capsys, tmp_path
):
    (tmp_path / "again").symlink_to(data)
    options = ("--data", data, tmp_path / "again", "--resolutions", 16, 24, "--crop-pct", 1)
    rows = run("-c", f"ours={cape}", abspos, *options, "--amp")
    assert [row["model"] for row in rows] == ["ours"] * 8 + ["vit_tiny_patch16_224"] * 8
    about = "model checkpoint dataset split resolution bin moved crop_pct"
    about += " interpolation precision metric value how items weight"
    assert list(rows[0]) == about.split()
    assert (rows[0]["checkpoint"], rows[0]["precision"]) == (str(cape), "float16")
    assert {(row["dataset"], row["split"]) for row in rows} == {
        (str(data), "validation"),
        (str(tmp_path / "again"), "again"),
    }
    head, *lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 16
    # the others do not change
    assert head.split() == [*about.split()[:5], "metric", "value"]


def test_several_splits_in_one_call_give_the_rows_of_several_calls(cape, data, tmp_path, run):
    for i, path in enumerate(sorted(data.glob("*/*.png"))):
        for split in ("0", "corner") if i % 3 else ("0",):
            link = tmp_path / "moved" / split / path.parent.name / path.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)

    def tested(*splits: str) -> tuple[list, list]:
        options = ("--resolutions", 12, 24, "--items", tmp_path / "i.csv")
        given = run("-c", cape, "--data", tmp_path / "moved", *options, "--split", *splits)
        return given, rows(tmp_path / "i.csv")

    both, (first, firsts), (second, seconds) = tested("0", "corner"), tested("0"), tested("corner")
    assert both == (first + second, firsts + seconds)
    shown = [(row["split"], row["items"]) for row in both[0][::2]]
    assert shown == [("0", "120")] * 2 + [("corner", "80")] * 2


def test_images_are_tested_moved_by_a_part_of_their_side(cape, data, run, tmp_path):
    for number, path in enumerate(
        sorted(data.glob("*/*.png"), key=lambda one: natural_key(str(one)))
    ):
        right, down = ((0.25, 0), (0, 0.25), (-0.25, 0), (0, -0.25))[number % 4]
        place = tmp_path / "moved" / path.parent.name / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            moved(image.convert("RGB"), right, down).save(place)
    row, _ = run("-c", cape, "--data", data, "--moved", 0.25)
    assert row["moved"] == "0.25"
    by_hand, _ = run("-c", cape, "--data", tmp_path / "moved")
    plain, _ = run("-c", cape, "--data", data)
    assert row["value"] == by_hand["value"] != plain["value"]


def test_items_add_up_to_the_accuracies_with_batches_of_any_size(cape, data, run, tmp_path):
    options = ["-c", cape, "--data", data, "--resolutions", 12, 24]
    scores = run(*options, "--items", tmp_path / "i.csv", "--batch-size", 7)
    check_items(scores, tmp_path / "i.csv")
    files = {f"{path.parent.name}/{path.name}" for path in data.glob("*/*.png")}
    assert {item["item"] for item in rows(tmp_path / "i.csv")} == files
    assert sorted(tmp_path.iterdir()) == [tmp_path / "i.csv", tmp_path / "o.csv"]
    assert run(*options) == scores


# --- by own size, and speed


@pytest.fixture
def two_sizes(data, tmp_path) -> Path:
    """A third of the images at 16 × 24 pixels, the others as they are, 24 × 24."""
    folder = tmp_path / "two"
    for number, path in enumerate(sorted(data.glob("*/*.png"))):
        place = folder / path.parent.name / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            (image if number % 3 else image.resize((24, 16))).save(place)
    return folder


def right_of(model, folder: Path, transform) -> dict[str, int]:
    """File → 1 if its class comes first, one image at a time."""
    found = {}
    for path in folder.glob("*/*.png"):
        with Image.open(path) as image, torch.no_grad():
            logits = model(transform(image.convert("RGB"))[None])
        found[f"{path.parent.name}/{path.name}"] = int(logits.argmax() == int(path.parent.name))
    return found


OWN = ("--crop-pct", 1, "--resolutions")


@both
def test_accuracy_by_own_size_is_that_of_each_bins_images_alone(checkpoint, two_sizes, run):
    given = run("-c", checkpoint, "--data", two_sizes, *OWN, 12, "--bins", 16, 20)
    transform = create_transform(
        12, crop_pct=1, interpolation="bicubic", mean=(0.5,) * 3, std=(0.5,) * 3
    )
    right = right_of(load(checkpoint), two_sizes, transform)
    small = {name for name in right if Image.open(two_sizes / name).size == (24, 16)}
    assert len(small) == 40
    groups = {"all": {*right}, "<=16": small, ">20": {*right} - small}  # 17-20 has none
    found = {row["bin"]: row for row in given if row["metric"] == "top1"}
    assert found.keys() == groups.keys()
    for label, names in groups.items():
        accuracy = 100 * sum(right[name] for name in names) / len(names)
        assert float(found[label]["value"]) == pytest.approx(accuracy)
        assert found[label]["items"] == str(len(names))
    assert len({row["value"] for row in found.values()}) > 1


@both
def test_at_its_original_size_an_image_is_not_resized(checkpoint, two_sizes, run, tmp_path):
    items = tmp_path / "items.csv"
    given = run("-c", checkpoint, "--data", two_sizes, *OWN, "original", 12, "--items", items)
    assert [row["resolution"] for row in given[::2]] == ["original", "12"]
    whole = transforms.Compose([transforms.ToTensor(), transforms.Normalize(0.5, 0.5)])
    right = right_of(load(checkpoint), two_sizes, whole)
    found = {
        row["item"]: int(row["value"])
        for row in rows(items)
        if (row["resolution"], row["metric"]) == ("original", "top1")
    }
    assert found == right
    assert given[0]["value"] != given[2]["value"]


def test_an_original_size_is_cut_to_whole_patches(cape, data, run, tmp_path):
    for path in data.glob("*/*.png"):
        place = tmp_path / "odd" / path.parent.name / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            image.resize((27, 26)).save(place)
    given = ("-c", cape, "--data", tmp_path / "odd", *OWN)
    own, by_side = (run(*given, one)[0]["value"] for one in ("original", 24))
    assert own == by_side


def test_throughput_is_that_of_the_forward_at_each_resolution(cape, data, run, monkeypatch):
    asked, clock = [], iter(range(10**6))

    def logits(loaded, pixels):
        asked.append(tuple(pixels.shape))
        return torch.zeros(len(pixels), 10)

    monkeypatch.setattr(loading.Loaded, "logits", logits)
    # a forward takes a quarter of a second
    monkeypatch.setattr(evaluate, "process_time", lambda: next(clock) / 4)
    given = ("--resolutions", 12, 24, "--batch-size", 6, "--throughput")
    found = run("-c", cape, "--data", data, *given)[2::3]
    columns = ("resolution", "metric", "value", "how", "items")
    assert [[one[name] for name in columns] for one in found] == [
        ["12", "throughput", "24.0", "number", "6"],
        ["24", "throughput", "24.0", "number", "6"],
    ]
    assert asked.count((6, 3, 12, 12)) == asked.count((6, 3, 24, 24)) >= 30


def test_more_pixels_are_fewer_images_per_second(cape, data, run):
    options = ("--resolutions", 8, 96, "--batch-size", 8, "--throughput")
    given = run("-c", cape, "--data", data, *options)
    small, large = (float(row["value"]) for row in given if row["metric"] == "throughput")
    assert small > 3 * large > 0
