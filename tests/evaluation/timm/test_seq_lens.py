"""cape-timm-eval --seq-lens: each image at its own aspect ratio, as timm's NaFlex loader has it."""

import csv
from pathlib import Path

import pytest
import torch
from PIL import Image

timm = pytest.importorskip("timm")

from timm.data import create_transform  # noqa: E402

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off
from cape_plugins.evaluation.timm import loading, testset  # noqa: E402
from cape_plugins.evaluation.timm.evaluate import main  # noqa: E402
from cape_plugins.evaluation.timm.loading import Source  # noqa: E402

SMALL = dict(depth=1, embed_dim=32, num_heads=2, num_classes=10)
SIZES = [(24, 24), (24, 40), (50, 20), (33, 90), (120, 64)]
HALF = (0.5,) * 3


@pytest.fixture
def data(tmp_path) -> Path:
    """Forty images of five sizes in ten class folders."""
    generator = torch.Generator().manual_seed(0)
    for i in range(40):
        path = tmp_path / "data" / str(i % 10) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(256, (*SIZES[i % 5], 3), generator=generator).to(torch.uint8)
        Image.fromarray(pixels.numpy()).save(path)
    return tmp_path / "data"


def model(name: str, path: Path, **kwargs) -> torch.nn.Module:
    torch.manual_seed(0)
    made = timm.create_model(name, **SMALL, **kwargs).eval()
    torch.save(made.state_dict(), path)
    return made


def run(path: Path, name: str, data: Path, *options: object) -> list[dict[str, str]]:
    kwargs = [f"{key}={value}" for key, value in SMALL.items()]
    main(
        [
            *("-c", str(path), "--model", name, "--data", str(data), "--csv", f"{path}.csv"),
            *("--mean", "0.5", "--std", "0.5", "--workers", "0", "--device", "cpu"),
            *map(str, options[1:]),
            *("--model-kwargs", *kwargs, *map(str, options[0])),
        ]
    )
    with Path(f"{path}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("length", [6, 25, 64])
def test_an_image_is_what_timms_naflex_transform_makes_of_it(length):
    timms = create_transform(
        (3, 32, 32), naflex=True, patch_size=8, max_seq_len=length, interpolation="bicubic"
    )
    for height, width in SIZES:
        pixels = torch.randint(256, (height, width, 3), dtype=torch.uint8).numpy()
        image = Image.fromarray(pixels)
        view = testset.view_of_length((height, width), length, (8, 8))
        mine = testset.prepare(image, view, "bicubic")
        assert mine.shape[1] * mine.shape[2] <= 64 * length
        expected = timms(image)
        for channel, (mean, std) in enumerate(
            zip((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), strict=True)
        ):
            ours = (mine[channel] / 255 - mean) / std
            torch.testing.assert_close(ours, expected[channel], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("naflexvit_tiny_patch16_cape_gap", dict(patch_size=8)), ("vit_tiny_patch8_cape_64", dict())],
)
def test_counts_are_those_of_a_plain_loop_over_timms_transform(name, kwargs, data, tmp_path):
    made = model(name, tmp_path / "m.pth", **kwargs)
    given = [f"{key}={value}" for key, value in kwargs.items()]
    rows = run(tmp_path / "m.pth", name, data, given, "--seq-lens", 9, 30)
    assert [(row["seq_len"], row["resolution"]) for row in rows] == [("9", ""), ("30", "")]
    for row in rows:
        transform = create_transform(
            *((3, 32, 32),),
            naflex=True,
            patch_size=8,
            max_seq_len=int(row["seq_len"]),
            interpolation="bicubic",
            mean=HALF,
            std=HALF,
        )
        right = [0, 0]
        for path in data.glob("*/*.png"):
            with torch.no_grad():
                order = made(transform(Image.open(path))[None])[0].argsort(descending=True)
            rank = order.tolist().index(int(path.parent.name))
            right = [right[0] + (rank < 1), right[1] + (rank < 5)]
        assert [round(float(row[key]) * 0.4) for key in ("top1", "top5")] == right
        assert row["images"] == "40"


def test_a_vits_checkpoint_is_evaluated_with_use_naflex(data, tmp_path):
    name = "vit_tiny_patch8_cape_64"
    made = model(name, tmp_path / "m.pth")
    assert made.cls_pos_embed is not None
    options = ["--resolutions", 24, 40, "--seq-lens", 20, "--overwrite"]
    plain = run(tmp_path / "m.pth", name, data, [], *options)
    naflex = run(tmp_path / "m.pth", name, data, ["use_naflex=True"], *options)
    for row in (*plain, *naflex):
        del row["seconds"]
    kept = ("seq_len", "resolution", "top1", "top5", "images")
    assert [[row[key] for key in kept] for row in plain] == [
        [row[key] for key in kept] for row in naflex
    ]
    assert len(naflex) == 3
    sizes = [
        loading.load(Source(str(tmp_path / "m.pth"), name, {**SMALL, "img_size": 40, **kwargs}))
        for kwargs in ({}, {"use_naflex": True})
    ]
    assert [loaded.train_size for loaded in sizes] == [40, 40]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vit_tiny_patch8_cape_64", ["--seq-lens", "0"], "--seq-lens must be ≥ 1"),
        ("vit_tiny_patch8_cape_64", ["--seq-lens", "99999"], "--seq-lens must be ≤ 16384"),
        ("vit_tiny_patch8_cape_64", ["--seq-lens", "9", "--tta"], "goes with none of --tta"),
        (
            "vit_tiny_patch8_cape_64",
            ["--seq-lens", "9", "--extent", "ratio"],
            "with --seq-lens give numbers",
        ),
    ],
)
def test_what_does_not_go_with_sequence_lengths_is_refused(
    name, options, message, data, tmp_path, capsys
):
    model(name, tmp_path / "m.pth")
    with pytest.raises(SystemExit):
        run(tmp_path / "m.pth", name, data, [], *options)
    assert message in capsys.readouterr().err
