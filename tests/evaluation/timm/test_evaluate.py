"""cape-timm-eval on scikit-learn's digits; small models, saved as timm's train.py saves them."""

import argparse
import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

timm = pytest.importorskip("timm")
digits = pytest.importorskip("sklearn.datasets").load_digits()

from timm.data import create_transform  # noqa: E402
from timm.utils import CheckpointSaver, ModelEmaV3  # noqa: E402

import cape_plugins.timm  # noqa: E402, F401 - registers, also where autoload is switched off
from cape_plugins.evaluation.output import columns  # noqa: E402
from cape_plugins.evaluation.timm import abspos_table, loading, results  # noqa: E402
from cape_plugins.evaluation.timm import curves as plot_curves  # noqa: E402
from cape_plugins.evaluation.timm.evaluate import extent_modules, main  # noqa: E402
from cape_plugins.evaluation.timm.loading import Source  # noqa: E402
from cape_plugins.timm.attention import use_logn  # noqa: E402

CAPE, ABSPOS = "vit_tiny_patch4_cape_32", "vit_tiny_patch16_224"
SMALL = dict(depth=1, embed_dim=32, num_heads=2)
KWARGS = {CAPE: {**SMALL, "img_size": 16}, ABSPOS: {**SMALL, "img_size": 16, "patch_size": 4}}
IMAGES = 120


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """The last digits of the set as PNGs of 24 × 24 pixels in class folders."""
    root = tmp_path_factory.mktemp("digits")
    for i in range(IMAGES):
        folder = root / "validation" / str(digits.target[-1 - i])
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (digits.images[-1 - i] * 15).astype("uint8")
        Image.fromarray(pixels).resize((24, 24)).save(folder / f"{i}.png")
    return root


def train(name: str) -> tuple[torch.nn.Module, ModelEmaV3]:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=10, **KWARGS[name])
    ema = ModelEmaV3(model, decay=0.9)
    images = torch.tensor(digits.images[:1200], dtype=torch.float32)[:, None] / 8 - 1
    images = F.interpolate(images, size=16).expand(-1, 3, -1, -1)
    targets = torch.tensor(digits.target[:1200])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(150):
        batch = torch.arange(step * 40, step * 40 + 40) % 1200
        F.cross_entropy(model(images[batch]), targets[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.update(model, step)
    return model.eval(), ema


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    """Files of timm's own CheckpointSaver, as train.py calls it."""
    paths = {}
    for name in (CAPE, ABSPOS):
        folder = tmp_path_factory.mktemp(name)
        model, ema = train(name)
        args = argparse.Namespace(model=name, model_kwargs=KWARGS[name], num_classes=10)
        args.img_size, args.input_size, args.gp, args.in_chans = 16, None, None, None
        args.mean, args.std, args.crop_pct, args.interpolation = (0.5,) * 3, (0.5,) * 3, None, ""
        saver = CheckpointSaver(
            *(model, torch.optim.SGD(model.parameters(), lr=0.1), args, ema),
            checkpoint_dir=str(folder),
        )
        saver.save_checkpoint(0, metric=1.0)
        paths[name] = folder / "last.pth.tar"
    return paths


def run(*arguments: object, out: Path) -> list[dict[str, str]]:
    main([*map(str, arguments), "--csv", str(out), "--workers", "0"])
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def by_hand(model, data: Path, *sizes: int, crop_pct: float = 0.875, log=False) -> list[int]:
    """[images, top-1, top-5] of a plain loop over the files, one at a time."""
    transforms = [
        create_transform(
            size, crop_pct=crop_pct, interpolation="bicubic", mean=(0.5,) * 3, std=(0.5,) * 3
        )
        for size in sizes
    ]
    count = [0, 0, 0]
    for path in sorted((data / "validation").glob("*/*.png")):
        image = Image.open(path).convert("RGB")
        with torch.no_grad():
            logits = [model(transform(image)[None])[0] for transform in transforms]
        logits = sum(x.log_softmax(-1) for x in logits) if log else sum(logits) / len(logits)
        rank = logits.argsort(descending=True).tolist().index(int(path.parent.name))
        count = [count[0] + 1, count[1] + (rank < 1), count[2] + (rank < 5)]
    return count


def counted(row: dict[str, str]) -> list[int]:
    images = int(row["images"])
    return [images, *(round(float(row[key]) * images / 100) for key in ("top1", "top5"))]


@pytest.mark.parametrize("name", [CAPE, ABSPOS])
def test_accuracy_is_that_of_a_plain_loop_over_timms_transforms(name, data, checkpoints, tmp_path):
    rows = run(
        *("-c", checkpoints[name], "--data", data, "--resolutions", 12, 16, 24),
        *("--crop-pct", 0.875),
        out=tmp_path / "o.csv",
    )
    model = loading.load(Source(str(checkpoints[name]))).model
    assert [int(row["resolution"]) for row in rows] == [12, 16, 24]
    for row in rows:
        assert counted(row) == by_hand(model, data, int(row["resolution"]))
    assert 20 < float(rows[1]["top1"]) < 100  # it has learned, so the counts mean something


def test_tta_averages_logits_over_three_sizes(data, checkpoints, tmp_path):
    (row,) = run(
        *("-c", checkpoints[CAPE], "--data", data, "--tta", "--tta-step", 8),
        *("--resolutions", 16, "--crop-pct", 0.875),
        out=tmp_path / "o.csv",
    )
    model = loading.load(Source(str(checkpoints[CAPE]))).model
    assert row["tta"] == "1"
    assert counted(row) == by_hand(model, data, 8, 16, 24)
    assert counted(row) == by_hand(model, data, 8, 16, 24, log=True)  # as the authors do it
    assert counted(row) != by_hand(model, data, 16)


def test_the_ratio_of_extent_is_that_of_each_size_of_tta(data, checkpoints, tmp_path):
    (row,) = run(
        *("-c", checkpoints[CAPE], "--data", data, "--tta", "--tta-step", 8),
        *("--resolutions", 16, "--crop-pct", 0.875, "--extent", "ratio"),
        out=tmp_path / "o.csv",
    )
    models = [
        loading.load(Source(str(checkpoints[CAPE]), model_kwargs={"extent": extent})).model
        for extent in (0.5, 1.0, 1.5)
    ]

    def by_size(images: torch.Tensor) -> torch.Tensor:
        return models[images.shape[-1] // 8 - 1](images)

    assert counted(row) == by_hand(by_size, data, 8, 16, 24)
    assert row["gamma"] == ""  # it has no one value


def test_extent_follows_the_rules_of_table_6(data, checkpoints, tmp_path):
    rows = run(
        *("-c", checkpoints[CAPE], "--data", data, "--resolutions", 24),
        *("--extent", "1", "ratio", "sqrt", "0.25", "--crop-pct", 1.0),
        out=tmp_path / "o.csv",
    )
    assert [row["extent"] for row in rows] == ["1", "ratio", "sqrt", "0.25"]
    assert [float(row["gamma"]) for row in rows] == [1.0, 1.5, 1.224745, 0.25]
    for row in rows:
        gamma = {"ratio": 1.5, "sqrt": 1.5**0.5}.get(row["extent"]) or float(row["extent"])
        model = loading.load(Source(str(checkpoints[CAPE]), model_kwargs={"extent": gamma})).model
        assert counted(row) == by_hand(model, data, 24, crop_pct=1.0)


def test_extent_leaves_models_without_coordinates_as_they_are(data, checkpoints, tmp_path, caplog):
    rows = run(
        *("-c", checkpoints[ABSPOS], "--data", data, "--extent", "1", "ratio"),
        out=tmp_path / "o.csv",
    )
    assert [row["extent"] for row in rows] == [""]
    assert "--extent has no effect" in caplog.text


@pytest.mark.parametrize("name", [CAPE, ABSPOS])
def test_attention_logn_stands_beside_the_model_as_trained(name, data, checkpoints, tmp_path):
    rows = run(
        *("-c", checkpoints[name], "--data", data, "--resolutions", 24, "--crop-pct", 0.875),
        *("--attention-logn", 0, 3),
        out=tmp_path / "o.csv",
    )
    assert [row["attention_logn"] for row in rows] == ["0", "3"]
    model = loading.load(Source(str(checkpoints[name]))).model
    assert counted(rows[0]) == by_hand(model, data, 24)
    use_logn(model, 3)
    assert counted(rows[1]) == by_hand(model, data, 24)
    assert counted(rows[0]) != counted(rows[1])


def test_alibi_has_an_extent_as_sinusoids_have():
    model = timm.create_model("vit_tiny_patch4_alibi_32", **SMALL)
    loaded = loading.Loaded(model, "vit_tiny_patch4_alibi_32", "", 32, {})
    assert extent_modules(loaded) == [model.position]
    loaded.model = timm.create_model("vit_tiny_patch4_nopos_32", **SMALL)
    assert extent_modules(loaded) == []


def test_ema_weights_are_taken_when_asked_for(checkpoints):
    plain = loading.load(Source(str(checkpoints[CAPE]))).model
    ema = loading.load(Source(str(checkpoints[CAPE]), use_ema=True)).model
    saved = torch.load(checkpoints[CAPE], weights_only=False)
    for model, key in ((plain, "state_dict"), (ema, "state_dict_ema")):
        torch.testing.assert_close(model.state_dict(), saved[key], rtol=0, atol=0)
    assert not torch.equal(plain.head.weight, ema.head.weight)


@pytest.mark.parametrize("name", [CAPE, ABSPOS])
def test_plain_state_dicts_safetensors_and_local_dir_give_the_same_model(
    name, checkpoints, tmp_path
):
    expected = loading.load(Source(str(checkpoints[name]))).model
    torch.save(expected.state_dict(), tmp_path / "plain.pth")
    timm.models.save_for_hf(expected, str(tmp_path / "hub"), safe_serialization=True)
    no_size = {key: value for key, value in KWARGS[name].items() if key != "img_size"}
    x = torch.randn(2, 3, 24, 32, generator=torch.Generator().manual_seed(0))
    for source in (
        Source(str(tmp_path / "plain.pth"), name, no_size),  # abspos: the table tells the size
        Source(str(tmp_path / "hub" / "model.safetensors"), name, no_size),
        Source(f"local-dir:{tmp_path / 'hub'}"),
    ):
        loaded = loading.load(source)
        assert loaded.name == name
        torch.testing.assert_close(loaded.model(x), expected(x))


def test_the_option_reaches_the_table_of_abspos_and_nothing_else(data, checkpoints, tmp_path):
    paths = [checkpoints[ABSPOS], checkpoints[CAPE]]
    options = ["-c", *paths, "--data", data, "--resolutions", 8, 24, "--crop-pct", 0.875]
    rows = run(*options, "--no-abspos-antialias", out=tmp_path / "o.csv")
    abspos, cape = (loading.load(Source(str(path))).model for path in paths)
    abspos_table.without_antialias(abspos)
    expected = [by_hand(model, data, size) for model in (abspos, cape) for size in (8, 24)]
    assert [counted(row) for row in rows] == expected


def test_several_models_and_folders_make_one_csv_and_one_markdown_table(
    data, checkpoints, tmp_path, capsys
):
    main(
        [
            *("-c", *map(str, checkpoints.values()), "--data", str(data), str(data / "validation")),
            *("--resolutions", "16", "24", "--workers", "0", "--out", str(tmp_path / "o")),
        ]
    )
    rows = list(csv.DictReader((tmp_path / "o.csv").open()))
    assert [row["model"] for row in rows] == [CAPE] * 4 + [ABSPOS] * 4
    assert list(rows[0]) == columns(results.Row)
    table = (tmp_path / "o.md").read_text()
    assert len(table.splitlines()) == 2 + 8
    assert table in capsys.readouterr().out
    assert "images_per_second" not in table  # empty throughout


def items_of(path: Path) -> dict[tuple[str, str], dict[str, int]]:
    """(resolution, metric) → image → 1 if it is right."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            assert row["weight"] == "1"
            found.setdefault((row["resolution"], row["metric"]), {})[row["item"]] = int(
                row["value"]
            )
    return found


def test_items_add_up_to_the_accuracies(data, checkpoints, tmp_path):
    options = ["-c", checkpoints[CAPE], "--data", data, "--resolutions", 12, 24]
    rows = run(*options, "--items", tmp_path / "items.csv", out=tmp_path / "o.csv")
    found = items_of(tmp_path / "items.csv")
    assert set(found) == {(size, metric) for size in ("12", "24") for metric in ("top1", "top5")}
    files = {f"{path.parent.name}/{path.name}" for path in data.glob("validation/*/*.png")}
    for row in rows:
        for metric in ("top1", "top5"):
            right = found[row["resolution"], metric]
            assert set(right) == files
            assert 100 * sum(right.values()) / len(right) == pytest.approx(float(row[metric]))
    assert sorted(tmp_path.iterdir()) == [tmp_path / "items.csv", tmp_path / "o.csv"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--throughput"], "--items are images: give --data DIR"),
        (["--data", "there", "-c", "a", "b"], "--items are those of one model, got 2"),
        (["--data", "there", "--resume", "--csv", "a.csv"], "--items knows nothing of earlier"),
    ],
)
def test_items_that_would_not_be_those_of_the_rows_are_refused(options, message, capsys):
    assert message in error_of(capsys, "-c", "a", *options, "--items", "items.csv")


def test_two_processes_count_what_one_counts(data, checkpoints, tmp_path):
    options = ["-c", checkpoints[CAPE], "--data", data, "--resolutions", "12", "24"]
    options += ["--batch-size", "7"]  # 18 batches, so neither images nor batches are even
    one = run(*options, "--items", tmp_path / "one-items.csv", out=tmp_path / "one.csv")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += ["-m", "cape_plugins.evaluation.timm", *map(str, options), "--workers", "0"]
    command += ["--device", "cpu", "--csv", str(tmp_path / "two.csv")]
    command += ["--items", str(tmp_path / "two-items.csv")]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=120)
    two = list(csv.DictReader((tmp_path / "two.csv").open()))
    for row in (*one, *two):
        del row["seconds"]
    assert two == one
    assert two[0]["images"] == str(IMAGES)
    assert items_of(tmp_path / "two-items.csv") == items_of(tmp_path / "one-items.csv")


def test_bfloat16_autocast_stays_close(data, checkpoints, tmp_path):
    options = ["-c", checkpoints[CAPE], "--data", data, "--resolutions", 16]
    (full,) = run(*options, out=tmp_path / "full.csv")
    (half,) = run(*options, "--amp", "--amp-dtype", "bfloat16", out=tmp_path / "half.csv")
    assert abs(float(full["top1"]) - float(half["top1"])) < 5


def test_throughput_stands_beside_the_accuracy_and_is_drawn(data, checkpoints, tmp_path):
    pytest.importorskip("matplotlib")
    main(
        [
            *("-c", str(checkpoints[CAPE]), "--data", str(data), "--resolutions", "16", "32"),
            *("--throughput", "--runs", "2", "--max-batch", "3", "--workers", "0"),
            *("--out", str(tmp_path / "o")),
        ]
    )
    rows = list(csv.DictReader((tmp_path / "o.csv").open()))
    assert [row["batch_size"] for row in rows] == ["3", "3"]
    assert all(float(row["images_per_second"]) > 0 and row["top1"] for row in rows)
    assert (tmp_path / "o.png").read_bytes()[:4] == b"\x89PNG"


def test_throughput_needs_no_images(checkpoints, tmp_path):
    (row,) = run(
        "-c", checkpoints[CAPE], "--throughput", "--runs", 1, "--max-batch", 2, out=tmp_path / "o"
    )
    assert (row["resolution"], row["batch_size"], row["top1"]) == ("16", "2", "")


def test_every_condition_is_a_column(data, checkpoints, tmp_path):
    options = ["--data", data, "--crop-pct", 0.9, "--tta", "--tta-step", 8, "--use-ema"]
    options += ["--interpolation", "bilinear", "--no-abspos-antialias", "--amp"]
    cape, abspos = run(
        *("-c", checkpoints[CAPE], checkpoints[ABSPOS], *options, "--amp-dtype", "bfloat16"),
        out=tmp_path / "o.csv",
    )
    for row in (cape, abspos):
        assert row["dataset"] == str(data / "validation")
        assert (row["ema"], row["tta"], row["tta_step"]) == ("1", "1", "8")
        assert (row["crop_pct"], row["interpolation"]) == ("0.9", "bilinear")
        assert (row["mean"], row["std"], row["precision"]) == (*["0.5 0.5 0.5"] * 2, "bfloat16")
        assert row["train_size"] == "16"
        assert len(row["training"]) == 8
    assert (cape["variant"], abspos["variant"]) == ("cape", "abspos")
    assert (cape["abspos_antialias"], abspos["abspos_antialias"]) == ("", "0")
    shifts = ("max_global_shift", "max_local_shift", "max_global_scale")
    assert [cape[name] for name in shifts] == ["0.5", "1/N", "1.4"]
    assert [abspos[name] for name in shifts] == [""] * 3
    assert cape["model_kwargs"] == "depth=1 embed_dim=32 img_size=16 num_heads=2"


def with_args(path: Path, out: Path, **changed: object) -> Path:
    """A copy of a checkpoint, other arguments in its record of the training."""
    content = torch.load(path, weights_only=False)
    vars(content["args"]).update(changed)
    torch.save(content, out)
    return out


@pytest.mark.parametrize(
    ("changed", "curves"),
    [
        (dict(seed=1), 1),
        (dict(seed=1, output="elsewhere", workers=9, data_dir="/data"), 1),
        (dict(seed=1, epochs=5), 2),
        (dict(seed=1, initial_checkpoint="a.pth.tar"), 2),
        (dict(seed=1, train_img_sizes=[16, 24]), 2),
        (dict(seed=1, model_kwargs={**KWARGS[CAPE], "max_global_scale": 1.0}), 2),
        (dict(seed=0), 2),
    ],
)
def test_the_record_tells_seeds_from_other_trainings(changed, curves, data, checkpoints, tmp_path):
    for name, more in (("a", dict(seed=0)), ("b", changed)):
        (tmp_path / name).mkdir()
        with_args(checkpoints[CAPE], tmp_path / name / "last.pth.tar", **more)
    paths = [tmp_path / name / "last.pth.tar" for name in "ab"]
    run("-c", *paths, "--data", data, out=tmp_path / "o.csv")
    (found,) = plot_curves.curves(plot_curves.read([tmp_path / "o.csv"])).values()
    assert len(found) == curves


def test_lines_of_the_terminal_name_the_checkpoint_and_its_options(
    data, checkpoints, tmp_path, capsys
):
    options = ["--data", data, "--resolutions", 16, "--tta", "--tta-step", 8, "--extent", "sqrt"]
    options += ["--use-ema", "--model-kwargs", "max_global_scale=1.0", "--other-positions"]
    run("-c", checkpoints[CAPE], *options, out=tmp_path / "o.csv")
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith(
        f"{checkpoints[CAPE]} · {CAPE} · cape · Δ 0.5 · ε 1/N · λ 1 · "
        "depth=1 embed_dim=32 img_size=16 max_global_scale=1.0 num_heads=2 · EMA · "
        f"{data / 'validation'} · 16 px · γ sqrt · TTA · top-1 "
    )


def test_a_class_map_tells_which_output_a_folder_is(data, checkpoints, tmp_path):
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    for digit, word in enumerate(words):
        (tmp_path / "data" / word).mkdir(parents=True)
        for path in (data / "validation" / str(digit)).iterdir():
            (tmp_path / "data" / word / path.name).symlink_to(path)
    (tmp_path / "map.txt").write_text("\n".join(words) + "\n")
    named = run(
        *("-c", checkpoints[CAPE], "--data", tmp_path / "data"),
        *("--class-map", tmp_path / "map.txt"),
        out=tmp_path / "named.csv",
    )
    numbered = run("-c", checkpoints[CAPE], "--data", data, out=tmp_path / "numbered.csv")
    assert counted(named[0]) == counted(numbered[0])


def error_of(capsys, *arguments: object) -> str:
    with pytest.raises(SystemExit) as exit_:
        main([*map(str, arguments), "--workers", "0"])
    assert exit_.value.code == 2
    text = capsys.readouterr().err.strip()
    assert len(text.splitlines()) == 1
    return text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resolutions", "18"], "18 is not divisible by the patches"),
        (["--resolutions", "18"], "the nearest sizes that are: 16 and 20"),
        (["--resolutions", "16", "--tta"], "--tta at resolution 16 would need images of -16"),
        (["--resolutions", "0"], "--resolutions must be ≥ 1"),
        (["--attention-logn", "1"], "--attention-logn takes tokens of a training sample, ≥ 2, or"),
        (["--attention-logn", "9", "9"], "--attention-logn has 9 twice"),
        (["--extent", "half"], "--extent takes ratio, sqrt or a number > 0, got 'half'"),
        (["--extent", "ratio", "--size-bins"], "with --size-bins give numbers"),
        (["--model", "vit_tinny"], "unknown model 'vit_tinny'"),
        (["--model", "vit_tiny_patch16_cape_224"], "does not fit vit_tiny_patch16_cape_224"),
        (["--model-kwargs", "num_classes=7"], "head.weight is (10, 32) in the file and (7, 32)"),
        (["--model-kwargs", "dept=2"], "dept"),
        (["--crop-pct", "1.5"], "--crop-pct must be in (0, 1]"),
        (["--split", "test"], "has no split 'test', it has validation"),
        (["--model", "a", "b"], "--model has 2 names for 1 checkpoints"),
        (["--class-map", "none.txt"], "none.txt"),
        (["--csv", "no/such/folder.csv"], "no such folder: no/such"),
    ],
)
def test_bad_input_is_one_line_before_any_work(options, message, data, checkpoints, capsys):
    assert message in error_of(capsys, "-c", checkpoints[CAPE], "--data", data, *options)


def test_bad_files_are_one_line(data, checkpoints, tmp_path, capsys):
    assert "no checkpoint file nowhere.pth" in error_of(capsys, "-c", "nowhere.pth", "--data", data)
    (tmp_path / "text.pth").write_text("not a checkpoint")
    error = error_of(capsys, "-c", tmp_path / "text.pth", "--data", data)
    assert "cannot be read as a checkpoint" in error
    weights = loading.load(Source(str(checkpoints[CAPE]))).model.state_dict()
    torch.save(weights, tmp_path / "plain.pth")
    error = error_of(capsys, "-c", tmp_path / "plain.pth", "--data", data)
    assert "does not say which model it is: give --model" in error
    error = error_of(
        capsys, "-c", tmp_path / "plain.pth", "--model", CAPE, "--use-ema", "--data", data
    )
    assert "holds no EMA weights" in error
    error = error_of(capsys, "-c", checkpoints[CAPE], "--data", tmp_path / "nothing")
    assert "no such folder of images" in error


def test_a_missing_class_folder_stops_the_run_unless_allowed(data, checkpoints, tmp_path, capsys):
    for name in "0123567":
        (tmp_path / name).symlink_to(data / "validation" / name)
    (tmp_path / "8").mkdir()  # empty
    error = error_of(capsys, "-c", checkpoints[CAPE], "--data", tmp_path)
    assert "3 of 10 class folders are missing or empty: 4, 8, 9" in error
    (row,) = run(
        *("-c", checkpoints[CAPE], "--data", tmp_path, "--allow-missing-classes"),
        out=tmp_path / "o.csv",
    )
    assert 0 < int(row["images"]) < IMAGES


def test_nothing_is_overwritten_unless_asked(data, checkpoints, tmp_path, capsys):
    out = tmp_path / "o.csv"
    out.write_text("precious")
    options = ["-c", checkpoints[CAPE], "--data", data, "--csv", out]
    assert "exists: choose another name or give --overwrite" in error_of(capsys, *options)
    assert out.read_text() == "precious"
    assert len(run(*options, "--overwrite", out=out)) == 1


def test_a_refused_run_leaves_no_file(data, checkpoints, tmp_path, capsys):
    out = tmp_path / "o.csv"
    error_of(capsys, "-c", checkpoints[CAPE], "--data", data, "--resolutions", 18, "--csv", out)
    assert not out.exists()


def test_an_unreadable_image_is_named_rather_than_replaced(data, checkpoints, tmp_path, capsys):
    for folder in (data / "validation").iterdir():
        (tmp_path / folder.name).mkdir()
        (tmp_path / folder.name / "a.png").write_bytes(next(folder.iterdir()).read_bytes())
    (tmp_path / "3" / "a.png").write_bytes(b"no image")
    error = error_of(capsys, "-c", checkpoints[CAPE], "--data", tmp_path)
    assert f"{tmp_path}/3/a.png cannot be read" in error


def test_importing_timm_does_not_import_the_evaluation():
    code = (
        "import sys, timm, cape_plugins.timm; "
        "print([name for name in sys.modules if 'evaluation' in name or 'plot' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "cape_plugins" not in done.stdout
