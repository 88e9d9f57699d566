"""The pictures: what they show, checked on the numbers behind them, and that they are written."""

import csv
import sys

import pytest
import torch

pytest.importorskip("matplotlib")

from cape_plugins import Augmentation, patch_grid, sinusoid_2d
from cape_plugins.evaluation import figure
from cape_plugins.evaluation.timm import curves
from cape_plugins.plot import augmentation, embeddings
from cape_plugins.plot.__main__ import main

SETTINGS = Augmentation(0.5, (1 / 8, 1 / 8), 1.4, mean_normalize=False)
COLUMNS = ("model", "checkpoint", "dataset", "resolution", "extent", "tta", "strategy")


def is_png(path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def write(path, rows) -> None:
    columns = dict.fromkeys([*COLUMNS, "top1", "images_per_second", *(k for r in rows for k in r)])
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for row in rows:
            writer.writerow({**dict.fromkeys(columns, ""), "tta": "0", **row})


def test_the_steps_of_the_augmentation_add_up():
    grid, shifted, jittered, scaled = augmentation.steps(SETTINGS, (8, 8)).values()
    assert torch.equal(grid, patch_grid(8, 8))
    shift = (shifted - grid)[0]
    torch.testing.assert_close(shifted, grid + shift)
    assert 0.2 < shift.abs().min() < shift.abs().max() <= 0.5  # large enough to be seen
    assert 0 < (jittered - shifted).abs().max() <= 1 / 8
    scale = (scaled / jittered).median()
    torch.testing.assert_close(scaled, jittered * scale)
    assert 1.1 < scale <= 1.4


def test_the_embeddings_are_those_of_the_core_at_each_resolution():
    table = embeddings.untrained_table(64, 16, 224, seed=0)
    for size, side in ((160, 10), (224, 14)):
        abspos, sinpos, cape = embeddings.maps(
            table, size, [0, 20, 40], antialias=True, seed=0
        ).values()
        expected = sinusoid_2d(patch_grid(side, side), 64)[:, [0, 20, 40]]
        torch.testing.assert_close(sinpos, expected.T.reshape(3, side, side))
        assert cape.shape == abspos.shape == (3, side, side)
        assert not torch.allclose(cape, sinpos, atol=0.1)
    torch.testing.assert_close(abspos.flatten(1), table.rows[:, [0, 20, 40]].T)


def test_antialiasing_is_that_of_the_table_alone():
    table = embeddings.untrained_table(64, 16, 224, seed=0)
    with_, without = (
        list(embeddings.maps(table, 160, [0, 20], antialias=a, seed=0).values())
        for a in (True, False)
    )
    assert not torch.allclose(with_[0], without[0])
    assert torch.equal(with_[1], without[1])
    assert torch.equal(with_[2], without[2])


def test_a_learned_table_is_drawn_without_its_class_token(tmp_path):
    timm = pytest.importorskip("timm")
    name, kwargs = "vit_tiny_patch16_224", dict(depth=1, num_classes=10)
    model = timm.create_model(name, **kwargs, img_size=64)
    timm.models.save_for_hf(model, str(tmp_path))
    from cape_plugins.evaluation.timm import abspos_table

    table = abspos_table.learned(f"local-dir:{tmp_path}")
    assert (table.grid, table.patch) == ((4, 4), 16)
    assert torch.equal(table.rows, model.pos_embed[0, 1:])
    assert name in table.label
    out = tmp_path / "o.png"
    main(
        [
            *("embeddings", "--checkpoint", f"local-dir:{tmp_path}", "--out", str(out)),
            *("--resolutions", "32", "64", "--every", "50"),
        ]
    )
    assert is_png(out)


@pytest.mark.parametrize("picture", ["embeddings", "augmentation"])
def test_pictures_are_written_once(picture, tmp_path, capsys):
    out = tmp_path / "o.png"
    few = ["--every", "200"] if picture == "embeddings" else ["--grid", "3", "5"]
    main([picture, "--out", str(out), *few])
    assert is_png(out)
    before = out.read_bytes()
    with pytest.raises(SystemExit):
        main([picture, "--out", str(out), *few])
    assert "exists: choose another name or give --overwrite" in capsys.readouterr().err
    assert out.read_bytes() == before
    main([picture, "--out", str(out), "--overwrite", *few])


def rows() -> list[dict[str, str]]:
    return [
        dict(model="vit", checkpoint=f"runs/{variant}-{seed}/last", resolution=str(size))
        | dict(top1=str(top1 + seed), images_per_second=str(10000 / size))
        for variant, top1 in (("cape", 70), ("sinpos", 60))
        for seed in (0, 2)
        for size in (32, 48)
    ]


def test_seeds_of_one_name_are_averaged(tmp_path):
    write(tmp_path / "a.csv", rows())
    (found,) = curves.curves(rows_of(tmp_path), group=r"runs/(\w+)-").values()
    assert list(found) == ["cape", "sinpos"]
    assert found["cape"] == {32: [(32, 70), (32, 72)], 48: [(48, 70), (48, 72)]}
    options = dict(against="throughput", group=r"runs/(\w+)-")
    (against_speed,) = curves.curves(rows_of(tmp_path), **options).values()
    assert against_speed["sinpos"][32] == [(312.5, 60), (312.5, 62)]


def rows_of(folder) -> list[dict[str, str]]:
    return curves.read([folder / "a.csv"])


def test_without_a_group_every_checkpoint_has_its_curve_and_extents_are_told_apart(tmp_path):
    write(
        tmp_path / "a.csv",
        [{**row, "extent": extent} for row in rows() for extent in ("1", "sqrt")]
        + [{**rows()[0], "resolution": "", "strategy": "min"}],  # size bins have no curve
    )
    (found,) = curves.curves(rows_of(tmp_path)).values()
    names = list(found)
    assert len(names) == 8
    assert names[:2] == ["vit (cape-0/last), γ 1", "vit (cape-0/last), γ sqrt"]


RECORDED = dict(
    **dict(model="vit_cape", variant="cape", max_global_shift="0.5", max_local_shift="1/N"),
    **dict(max_global_scale="1.4", model_kwargs="img_size=224", train_size="224", seed="0"),
    **dict(training="1a2b", dataset="imagenet/validation", resolution="224", extent="1", tta="0"),
    **dict(ema="0", crop_pct="0.875", interpolation="bicubic", precision="float32", top1="70"),
    checkpoint="runs/a/last.pth.tar",
)
#: what another row has, and how the two curves are told apart
DIFFERENCES = [
    (dict(max_global_shift="0"), "Δ 0.5", "Δ 0"),
    (dict(max_local_shift="0"), "ε 1/N", "ε 0"),
    (dict(max_global_scale="1"), "λ 1.4", "λ 1"),
    (dict(model_kwargs="depth=4 img_size=224"), "(a/last.pth.tar)", "(b/last.pth.tar)"),
    (dict(train_size="128 160"), "trained at 224", "trained at 128 160"),
    (dict(training="3c4d"), "(a/last.pth.tar)", "(b/last.pth.tar)"),
    (dict(extent="sqrt"), "γ 1", "γ sqrt"),
    (dict(tta="1"), "", "TTA"),
    (dict(ema="1"), "", "EMA"),
    (dict(crop_pct="1"), "crop 0.875", "crop 1"),
    (dict(interpolation="bilinear"), "bicubic", "bilinear"),
    (dict(precision="float16"), "float32", "float16"),
    (dict(seed="0"), "(a/last.pth.tar)", "(b/last.pth.tar)"),  # the same seed: not a seed's range
    (dict(seed=""), "(a/last.pth.tar)", "(b/last.pth.tar)"),
    (dict(checkpoint="runs/b/best.pth.tar"), "(a/last.pth.tar)", "(b/best.pth.tar)"),
]


def test_checkpoints_that_differ_in_seed_alone_share_a_curve(tmp_path):
    other = {**RECORDED, "checkpoint": "runs/b/last.pth.tar", "seed": "1", "top1": "72"}
    write(tmp_path / "a.csv", [RECORDED, other])
    assert curves.curves(rows_of(tmp_path)) == {
        "imagenet/validation": {"vit_cape": {224: [(224, 70), (224, 72)]}}
    }


@pytest.mark.parametrize(("other", "mine", "its"), DIFFERENCES)
def test_other_conditions_are_another_curve_whose_name_says_so(other, mine, its, tmp_path):
    rest = {"checkpoint": "runs/b/last.pth.tar", "seed": "1", "top1": "72"}
    write(tmp_path / "a.csv", [RECORDED, {**RECORDED, **rest, **other}])
    (found,) = curves.curves(rows_of(tmp_path)).values()
    assert [len(points) for curve in found.values() for points in curve.values()] == [1, 1]
    for name, part in zip(found, (mine, its), strict=True):
        glue = " " if part.startswith("(") else ", "
        assert name == (f"vit_cape{glue}{part}" if part else "vit_cape")


def test_a_group_averages_no_other_conditions(tmp_path):
    other = {**RECORDED, "checkpoint": "runs/b/last.pth.tar", "abspos_antialias": "0", "tta": "1"}
    write(tmp_path / "a.csv", [{**RECORDED, "abspos_antialias": "1"}, other])
    (found,) = curves.curves(rows_of(tmp_path), group="runs").values()
    assert list(found) == ["runs, antialiased", "runs, TTA, not antialiased"]


def test_each_data_set_is_a_panel_even_if_only_the_path_before_differs(tmp_path, monkeypatch):
    sets = ["imagenet/validation", "v2-a/validation"]
    rows = [{**RECORDED, "dataset": path, "resolution": r} for path in sets for r in ("160", "224")]
    write(tmp_path / "a.csv", rows)
    assert list(curves.curves(rows_of(tmp_path))) == sets
    drawn = []
    monkeypatch.setattr(figure, "save", lambda picture, out: drawn.append(picture))
    main(["curves", str(tmp_path / "a.csv"), "--out", str(tmp_path / "o.png")])
    assert [axis.get_title() for axis in drawn[0].axes] == sets
    (legend,) = drawn[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["vit_cape"]


@pytest.mark.parametrize("against", ["resolution", "throughput"])
def test_curves_are_drawn(against, tmp_path):
    write(tmp_path / "a.csv", rows())
    main(
        [
            *("curves", str(tmp_path / "a.csv"), "--against", against, "--group", r"runs/(\w+)-"),
            *("--trained-at", "32", "--out", str(tmp_path / "o.png")),
        ]
    )
    assert is_png(tmp_path / "o.png")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["embeddings", "--resolutions", "100"], "100 is not divisible by the patch size 16"),
        (["embeddings", "--resolutions", "100"], "nearest sizes that are: 96 and 112"),
        (["embeddings", "--every", "0"], "every must be ≥ 1, got 0"),
        (["embeddings", "--dim", "63"], "dim must be even"),
        (["embeddings", "--checkpoint", "none.pth"], "no checkpoint file none.pth"),
        (["augmentation", "--grid", "0"], "--grid takes N or H W, each ≥ 1"),
        (["augmentation", "--max-global-scale", "0.5"], "max_global_scale must be"),
        (["curves", "none.csv"], "none.csv cannot be read"),
        (["curves", __file__], "has no column 'model'"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(arguments, message, tmp_path, capsys):
    if "none.pth" in arguments:
        pytest.importorskip("timm")
    out = tmp_path / "o.png"
    with pytest.raises(SystemExit) as exit_:
        main([*arguments, "--out", str(out)])
    text = capsys.readouterr().err.strip()
    assert exit_.value.code == 2
    assert message in text
    assert len(text.splitlines()) == 1
    assert not out.exists()


def test_bad_groups_and_endings_are_named(tmp_path, capsys):
    write(tmp_path / "a.csv", rows())
    for options, message in (
        (["--group", "("], "is no regular expression"),
        (["--group", "mamba"], "finds nothing in runs/cape-0/last"),
        (["--metric", "top5"], "top5"),
        (["--out", str(tmp_path / "o.doc")], "no ending that matplotlib draws"),
    ):
        with pytest.raises(SystemExit):
            main(["curves", str(tmp_path / "a.csv"), "--out", str(tmp_path / "o.png"), *options])
        assert message in capsys.readouterr().err


def test_a_missing_matplotlib_names_the_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit):
        main(["augmentation", "--out", str(tmp_path / "o.png")])
    assert "pip install 'cape-plugins[plot]'" in capsys.readouterr().err
