"""The study on CIFAR-10, without its trainings: commands, bad input, what is done twice, report."""

import csv
import json
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

STUDY = Path(__file__).resolve().parents[2] / "integrations" / "timm" / "study_cifar10.py"
SIZES = (24, 32, 96)


@pytest.fixture
def study_cifar10(monkeypatch):
    """The script as a module."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("tabulate")
    monkeypatch.syspath_prepend(str(STUDY.parent))
    spec = spec_from_file_location("study_cifar10", STUDY)
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def call_main(module, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["study_cifar10.py", *map(str, arguments)])
    module.main()


def write_images(folder, classes, images):
    for name in range(classes):
        (folder / f"class{name}").mkdir(parents=True)
        for index in range(images):
            (folder / f"class{name}" / f"{index:04}.jpg").write_bytes(b"jpeg")


def write_result(out, variant, sizes, seed, top1, tested_as=None):
    """A finished run with the accuracies at SIZES."""
    folder = out / "runs" / f"{sizes}-{variant}-seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trained.json").write_text(json.dumps({"seconds": 600.0, "command": []}))
    with (folder / f"tested-{tested_as or variant}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "resolution", "top1", "images"])
        writer.writerows(
            ("vit", size, value, 4000) for size, value in zip(SIZES, top1, strict=True)
        )


def test_every_training_command_is_one_that_train_py_takes(study_cifar10, tmp_path):
    scripts = os.environ.get("TIMM_SCRIPTS")
    if not scripts:
        pytest.skip("TIMM_SCRIPTS does not name a folder with timm's train.py")
    spec = spec_from_file_location("timm_train_script", Path(scripts) / "train.py")
    train = module_from_spec(spec)
    spec.loader.exec_module(train)
    study = study_cifar10.load_study(study_cifar10.CONFIGS / "cifar10_study.yaml")
    for sizes, pixels in study["train_img_sizes"].items():
        for variant, settings in study["variants"].items():
            run = study_cifar10.Run(variant, sizes, 1, tmp_path / "run")
            command = study_cifar10.train_command(run, study, Path(scripts), tmp_path)
            parsed = train.parser.parse_args(command[4:])  # behind --config FILE
            assert parsed.model == settings["model"]
            assert parsed.seed == 1
            assert (parsed.train_img_sizes or [parsed.img_size]) == pixels
            expected = {**study["model_kwargs"], **settings.get("model_kwargs", {})}
            assert parsed.model_kwargs == expected
    longer = study_cifar10.train_command(run, {**study, "epochs": 20}, Path(scripts), tmp_path)
    assert train.parser.parse_args(longer[4:]).epochs == 20


def test_images_are_the_first_of_each_class(study_cifar10, tmp_path):
    write_images(tmp_path / "train", classes=10, images=3)
    study_cifar10.link_images(tmp_path / "train", tmp_path / "out", 2)
    study_cifar10.link_images(tmp_path / "train", tmp_path / "out", 2)  # again: nothing breaks
    links = sorted((tmp_path / "out").glob("*/*.jpg"))
    assert [link.name for link in links] == ["0000.jpg", "0001.jpg"] * 10
    assert all(link.read_bytes() == b"jpeg" for link in links)


@pytest.mark.parametrize(
    ("classes", "images", "message"),
    [(9, 3, "ten class folders, found 9"), (10, 1, "holds 1 images, 2 are needed")],
)
def test_missing_images_are_named(study_cifar10, tmp_path, classes, images, message):
    write_images(tmp_path / "train", classes, images)
    with pytest.raises(SystemExit, match=message):
        study_cifar10.link_images(tmp_path / "train", tmp_path / "out", 2)


def test_training_without_the_scripts_says_what_to_set(study_cifar10, monkeypatch, tmp_path):
    monkeypatch.delenv("TIMM_SCRIPTS", raising=False)
    with pytest.raises(SystemExit, match="TIMM_SCRIPTS must name a folder"):
        call_main(study_cifar10, monkeypatch, "train", "--data", tmp_path, "--out", tmp_path)


def test_an_unknown_variant_is_refused_with_the_known_ones(study_cifar10, monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match=r"--variants takes cape, sinpos, .*, got rotary"):
        call_main(study_cifar10, monkeypatch, "report", "--out", tmp_path, "--variants", "rotary")


def test_a_report_of_nothing_says_what_to_run_first(study_cifar10, monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match="run train and evaluate first"):
        call_main(study_cifar10, monkeypatch, "report", "--out", tmp_path)


def test_what_has_been_tested_is_not_tested_again(study_cifar10, monkeypatch, tmp_path, capsys):
    write_result(tmp_path, "cape", "fixed", 0, (50, 60, 40))
    call_main(study_cifar10, monkeypatch, "evaluate", "--out", tmp_path)
    assert "0 to do" in capsys.readouterr().out


def test_report_gives_mean_and_half_the_range_over_seeds(
    study_cifar10, monkeypatch, tmp_path, capsys
):
    write_result(tmp_path, "cape", "fixed", 0, (50.0, 60.0, 40.0))
    write_result(tmp_path, "cape", "fixed", 1, (52.0, 61.0, 40.0))
    write_result(tmp_path, "rope", "fixed", 0, (49.0, 63.0, 30.0))
    write_result(tmp_path, "rope", "fixed", 0, (51.0, 63.0, 35.0), tested_as="rope_rescaled")
    write_result(tmp_path, "cape", "mixed", 0, (55.0, 59.0, 44.0))
    call_main(study_cifar10, monkeypatch, "report", "--out", tmp_path)
    text = capsys.readouterr().out
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert ["cape", "2", "51.0 ± 1.0", "60.5 ± 0.5", "40.0 ± 0.0"] in lines
    assert ["rope", "1", "49.0", "63.0", "30.0"] in lines
    assert ["rope_rescaled", "1", "51.0", "63.0", "35.0"] in lines
    assert ["cape", "1", "55.0", "59.0", "44.0"] in lines
    assert ["top-1 (%)", "seeds", "24", "**32**", "96"] in lines
    assert (tmp_path / "results.md").read_text().strip() == text.strip()
    assert (tmp_path / "results.png").stat().st_size > 10_000
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5 * len(SIZES)
    assert rows[0]["top1"] == "50.0"
    assert rows[0]["images"] == "4000"
