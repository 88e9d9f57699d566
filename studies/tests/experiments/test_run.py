"""``cape-run`` from its command line to scores."""

import json

import pytest
import yaml
from counting import HERE, begins, runs, scores

from cape_studies.experiments import run, steps


def test_a_sweep_leaves_scores_items_settings_and_a_record(cape_run, tmp_path):
    cape_run("--seeds", "0", "1")
    assert [len(runs(tmp_path, variant)) for variant in ("few", "many")] == [2, 2]
    folder = runs(tmp_path, "many")[0]
    found = scores(folder)
    assert [found[c]["value"] for c in ("short", "long")] == ["5.0", "10.0"]
    assert [found[c]["trained_on"] for c in ("short", "long")] == ["True", "False"]
    about = ("study", "host", "variant", "seed", "evaluation", "metric", "higher_is_better")
    expected = ["counting", "timm", "many", "0", "count", "count", "True"]
    assert [found["short"][name] for name in about] == expected
    assert (folder / "items-count.csv").read_text().split()[1] == "short,count,1,5,1"
    settings = yaml.safe_load((folder / "settings.yaml").read_text())
    assert settings["options"] == {"steps": 5}
    record = json.loads((folder / "record.json").read_text())
    assert record["train"]["command"][1] == str(HERE / "count.py")
    assert record["train"]["seconds"] > 0
    assert {"versions", "git_commit", "machine", "device", "python"} <= record.keys()
    study = yaml.safe_load((tmp_path / "out" / "counting" / "study.yaml").read_text())
    assert sorted(study["runs"]) == sorted(p.name for p in (folder.parent).iterdir())
    assert study["seeds"] == [0, 1]


def test_a_failure_is_told_with_its_reason_and_tried_again_by_the_same_command(cape_run, tmp_path):
    options = {"steps": 3, "fail": True}
    said = cape_run("--variants", "few", fails="it does not work", options=options)
    assert "counting few seed 0: failed: exit status 1, it does not work (" in said
    (folder,) = runs(tmp_path, "few")
    (folder / "train" / "mended").touch()
    said = cape_run("--variants", "few", options=options)
    assert "counting few seed 0: done" in said
    assert begins(folder) == [0, 0]
    assert scores(folder)["short"]["value"] == "3.0"


def test_of_what_hydra_prints_the_error_is_told(tmp_path):
    log = tmp_path / "train.log"
    hint = "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"
    log.write_text(f"Traceback\nFileNotFoundError: no dict.en.txt\n\n{hint}")
    assert steps.last_line(log) == "FileNotFoundError: no dict.en.txt"


# --- refusals


def test_a_study_yaml_that_cannot_be_read_is_named(cape_run, tmp_path):
    cape_run("--variants", "few")
    path = tmp_path / "out" / "counting" / "study.yaml"
    path.write_text(": [")
    assert f"{path} cannot be read" in cape_run("--variants", "few", fails=2)


@pytest.mark.parametrize("out", ["/proc/out", "/dev/null", "/dev/null/out"])
def test_a_folder_that_cannot_be_written_is_told(cape_run, out):
    said = cape_run("--out", out, fails=2)
    assert f"--out {out} cannot be written: " in said


PHOTOS = {"photos": {"what": "photos", "source": "me", "layout": "*.jpg", "files": ["*.jpg"]}}


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        (["--variants", "none"], {}, "--variants: no 'none'; there is few, many"),
        (["--gpus", "64"], {}, "--gpus 64: there are"),
        ([], {"disk_gb": 1e9}, "GB free, the runs take about"),
        ([], {"trainer": "nowhere.py"}, "nowhere.py cannot be read: "),
        (["--data", "x=."], {}, "--data (changes stand before it): no 'x'"),
        ([], {"options": {"steps": "{csv}"}}, "there is no 'csv' at that step"),
        ([], {"trainer": None}, "no train.py of timm"),
        ([], {"needs": PHOTOS}, "give --data photos=DIR: photos (me), laid out as *.jpg"),
        (["--data", str(HERE)], {"needs": PHOTOS}, f"{HERE} has no *.jpg: photos is photos (me)"),
    ],
)
def test_bad_input_ends_in_one_line_before_anything_starts(
    cape_run, tmp_path, monkeypatch, arguments, changes, message
):
    monkeypatch.delenv("TIMM_SCRIPTS", raising=False)
    said = cape_run(*arguments, fails=2, **changes)
    assert said.startswith("cape-run: error: ")
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_list_shows_every_study_with_its_cost(capsys):
    run.main(["--list"])
    said = capsys.readouterr().out
    assert "cifar10 (timm): CIFAR-10, trained at 32²" in said
    assert "a CPU core a training" in said
    assert max(map(len, said.splitlines())) <= 100
