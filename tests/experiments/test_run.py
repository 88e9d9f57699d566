"""``cape-run`` from its command line to scores, with jobs of submitit's local executor."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

pytest.importorskip("exca")

from cape_plugins.experiments import run

HERE = Path(__file__).parent
READ = {"read": "{trained}", "csv": "{csv}", "items": "{items}"}
STUDY = {
    "title": "counting",
    "host": "timm",
    "protocol": "none",
    "cost": "nothing",
    "disk_gb": 0.001,
    "trainer": str(HERE / "count.py"),
    "options": {"steps": 3},
    "variants": {"few": {}, "many": {"options": {"steps": 5}}},
    "seeds": [0],
    "evaluations": {
        "count": {
            "script": str(HERE / "count.py"),
            "options": READ,
            "metrics": {"count": "higher"},
        }
    },
    "report": {
        "baseline": "few",
        "evaluation": "count",
        "metric": "count",
        "x_label": "x",
        "y_label": "y",
        "title": "counting",
        "trained_on": ["short"],
    },
}


@pytest.fixture
def cape_run(tmp_path, capsys):
    """Writes the study and runs it; returns what was printed. The results are in tmp_path."""

    def call(*arguments, fails=None, **changes):
        (tmp_path / "counting.yaml").write_text(yaml.safe_dump({**STUDY, **changes}))
        words = [str(tmp_path / "counting.yaml"), "--out", str(tmp_path / "out"), *arguments]
        if fails is None:
            run.main(words)
        else:
            with pytest.raises(SystemExit) as end:
                run.main(words)
            assert end.value.code == fails or fails in str(end.value.code)
        out, err = capsys.readouterr()
        return out + err

    return call


def runs(tmp_path, variant):
    return sorted((tmp_path / "out" / "counting" / "runs").glob(f"{variant}-seed*"))


def scores(folder):
    with (folder / "scores.csv").open() as file:
        return {row["condition"]: row for row in csv.DictReader(file)}


def begins(folder):
    """Where each start of the trainer began to count."""
    lines = (folder / "train.log").read_text().splitlines()
    return [int(line.split()[-1]) for line in lines if line.startswith("begins at")]


def test_a_sweep_leaves_scores_items_metrics_settings_and_a_record(cape_run, tmp_path):
    cape_run("--jobs", "2", "--seeds", "0", "1")
    assert [len(runs(tmp_path, variant)) for variant in ("few", "many")] == [2, 2]
    folder = runs(tmp_path, "many")[0]
    found = scores(folder)
    assert [found[c]["value"] for c in ("short", "long")] == ["5.0", "10.0"]
    assert [found[c]["trained_on"] for c in ("short", "long")] == ["True", "False"]
    about = ("study", "host", "variant", "seed", "evaluation", "metric", "higher_is_better")
    expected = ["counting", "timm", "many", "0", "count", "count", "True"]
    assert [found["short"][name] for name in about] == expected
    assert (folder / "items-count.csv").read_text().startswith("condition,metric,value")
    assert (folder / "metrics.csv").read_text().splitlines()[1] == "1,0,loss,1.0"
    settings = yaml.safe_load((folder / "settings.yaml").read_text())
    assert settings["options"] == {"steps": 5}
    record = json.loads((folder / "record.json").read_text())
    assert record["train"]["command"][1] == str(HERE / "count.py")
    assert record["train"]["seconds"] > 0
    assert {"versions", "git_commit", "machine", "device", "python"} <= record.keys()
    study = yaml.safe_load((tmp_path / "out" / "counting" / "study.yaml").read_text())
    assert sorted(study["runs"]) == sorted(p.name for p in (folder.parent).iterdir())
    assert study["seeds"] == [0, 1]


def test_what_is_done_is_not_done_again_and_what_has_changed_is_a_new_run(cape_run, tmp_path):
    cape_run("--variants", "few")
    (first,) = runs(tmp_path, "few")
    written = (first / "train.log").stat().st_mtime_ns, (first / "scores.csv").stat().st_mtime_ns
    cape_run("--variants", "few")
    again = (first / "train.log").stat().st_mtime_ns, (first / "scores.csv").stat().st_mtime_ns
    assert again == written

    # the evaluation alone
    changed = {"count": {**STUDY["evaluations"]["count"], "options": {**READ, "add": 1}}}
    cape_run("--variants", "few", evaluations=changed)
    assert scores(first)["short"]["value"] == "4.0"
    assert (first / "train.log").stat().st_mtime_ns == written[0]

    recipe = tmp_path / "recipe.yaml"
    for content in ("lr: 1", "lr: 2"):
        recipe.write_text(content)
        cape_run("--variants", "few", recipe=str(recipe))
    assert len(runs(tmp_path, "few")) == 3
    study = yaml.safe_load((tmp_path / "out" / "counting" / "study.yaml").read_text())
    assert len(study["runs"]) == 1  # those of other settings are not the study's any more


def test_what_was_deleted_is_done_anew_and_force_does_all_anew(cape_run, tmp_path):
    cape_run("--variants", "few")
    (folder,) = runs(tmp_path, "few")
    (folder / "scores.csv").unlink()
    cape_run("--variants", "few")
    assert begins(folder) == [0]
    assert scores(folder)["short"]["value"] == "3.0"
    cape_run("--variants", "few", "--force")
    assert begins(folder) == [0]  # of a new log
    assert json.loads((folder / "record.json").read_text())["train"]["interrupted"] == 0


def test_a_failure_is_told_with_its_reason_and_tried_again_when_asked(cape_run, tmp_path):
    options = {"steps": 3, "fail": True}
    said = cape_run("--variants", "few", fails="it does not work", options=options)
    assert "counting few seed 0: failed" in said
    (folder,) = runs(tmp_path, "few")
    (folder / "train" / "mended").touch()
    cape_run("--variants", "few", fails="--retry tries again", options=options)
    assert begins(folder) == [0]
    cape_run("--variants", "few", "--retry", options=options)
    assert begins(folder) == [0, 0]
    assert scores(folder)["short"]["value"] == "3.0"


def test_variants_that_train_alike_train_once_and_one_may_start_from_another(cape_run, tmp_path):
    twin = {"evaluate": {"count": {"add": 7}}}
    after = {"after": "few", "options": {"start": "{after}", "steps": 2}}
    cape_run("--jobs", "2", variants={"after": after, "few": {}, "twin": twin})
    (few,), (same,), (later,) = (runs(tmp_path, name) for name in ("few", "twin", "after"))
    trained = [folder for folder in (few, same) if not (folder / "train").is_symlink()]
    assert len(trained) == 1
    assert scores(same)["short"]["value"] == "10.0"
    assert begins(later) == [3]
    assert scores(later)["short"]["value"] == "5.0"


def start(tmp_path, *arguments, **changes):
    """cape-run in a session of its own; its steps take their time."""
    content = {**STUDY, "options": {"steps": 12, "pause": 0.5}, **changes}
    (tmp_path / "counting.yaml").write_text(yaml.safe_dump(content))
    code = "from cape_plugins.experiments.run import main; main()"
    words = [str(tmp_path / "counting.yaml"), "--out", str(tmp_path / "out"), *arguments]
    output = (tmp_path / "printed").open("a")
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], start_new_session=True, stdout=output, stderr=output
    )


def wait_for(what, seconds=120):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.1)


def counted(tmp_path):
    found = list((tmp_path / "out").glob("counting/runs/*/train/count"))
    return int(found[0].read_text()) if found else 0


def processes(group, but=()):
    """Pids of a session, without those whose command line has a word."""
    found = subprocess.run(["ps", "-ww", "-s", str(group), "-o", "pid=,args="], capture_output=True)
    lines = [line.split(maxsplit=1) for line in found.stdout.decode().splitlines()]
    return [int(pid) for pid, args in lines if not any(word in args for word in but)]


def kill(pids, number=signal.SIGKILL):
    for pid in pids:
        os.kill(pid, number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_sweep_that_is_killed_goes_on_from_the_hosts_checkpoint(tmp_path, number):
    first = start(tmp_path, "--variants", "few")
    wait_for(lambda: counted(tmp_path) >= 3)
    kill(processes(first.pid), number)
    first.wait()
    wait_for(lambda: not processes(first.pid))
    reached = counted(tmp_path)
    assert reached < 12
    assert start(tmp_path, "--variants", "few").wait() == 0
    (folder,) = runs(tmp_path, "few")
    assert begins(folder) == [0, reached]
    assert scores(folder)["short"]["value"] == "12.0"
    record = json.loads((folder / "record.json").read_text())["train"]
    assert record["interrupted"] == 1
    assert record["seconds"] > 12 * 0.5


def test_a_trainer_that_outlived_its_job_is_waited_for(tmp_path):
    first = start(tmp_path, "--variants", "few")
    wait_for(lambda: counted(tmp_path) >= 2)
    kill(processes(first.pid, but=["count.py --"]))
    first.wait()
    assert start(tmp_path, "--variants", "few").wait() == 0
    (folder,) = runs(tmp_path, "few")
    assert begins(folder) == [0, 12]  # the second found all counted


def test_two_sweeps_at_once_train_once(tmp_path):
    both = [start(tmp_path, "--variants", "few", options={"steps": 4}) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]
    (folder,) = runs(tmp_path, "few")
    assert begins(folder) == [0]
    assert scores(folder)["short"]["value"] == "4.0"


def test_two_sweeps_at_once_list_the_runs_of_both(tmp_path):
    shorter = {"options": {"steps": 6, "pause": 0.5}}
    first = start(tmp_path, "--variants", "few", "--seeds", "7", **shorter)
    wait_for(lambda: (tmp_path / "out" / "counting" / "study.yaml").exists())
    second = start(tmp_path, "--variants", "many", "--seeds", "8", **shorter)
    assert [first.wait(), second.wait()] == [0, 0]
    study = yaml.safe_load((tmp_path / "out" / "counting" / "study.yaml").read_text())
    both = [*runs(tmp_path, "few"), *runs(tmp_path, "many")]
    assert study["runs"] == [folder.name for folder in both]


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        (["--variants", "none"], {}, "--variants: no 'none'; there is few, many"),
        (["--gpus", "64"], {}, "--gpus 64: there are"),
        (["--nodes", "2"], {}, "--nodes needs --cluster slurm"),
        ([], {"disk_gb": 1e9}, "GB free, the runs take about"),
        ([], {"trainer": "nowhere.py"}, "nowhere.py does not exist"),
        (["--data", "x=."], {}, "--data: no 'x'"),
        ([], {"options": {"steps": "{csv}"}}, "there is no 'csv' at that step"),
        ([], {"trainer": None}, "no train.py of timm"),
        (
            [],
            {"needs": {"photos": {"what": "photos", "source": "me", "layout": "*.jpg"}}},
            "give --data photos=DIR: photos (me), laid out as *.jpg",
        ),
    ],
)
def test_bad_input_ends_in_one_line_before_anything_starts(
    cape_run, tmp_path, monkeypatch, arguments, changes, message
):
    pytest.importorskip("timm")
    monkeypatch.delenv("TIMM_SCRIPTS", raising=False)
    said = cape_run(*arguments, fails=2, **changes)
    assert said.startswith("cape-run: error: ")
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_data_of_another_layout_is_refused(cape_run, tmp_path):
    need = {"what": "photos", "source": "me", "layout": "*.jpg", "files": ["*.jpg"]}
    said = cape_run("--data", str(tmp_path), fails=2, needs={"photos": need})
    assert f"{tmp_path} has no *.jpg: photos is photos (me), laid out as *.jpg" in said


def test_a_folder_of_other_settings_is_not_written_to(cape_run, tmp_path):
    cape_run("--variants", "few")
    (folder,) = runs(tmp_path, "few")
    path = folder / "settings.yaml"
    path.write_text(path.read_text().replace("steps: 3", "steps: 4"))
    said = cape_run("--variants", "few", fails=2)
    assert f"{folder} holds a run of other settings" in said


def test_dry_run_prints_the_commands_and_does_nothing(cape_run, tmp_path):
    said = cape_run("--dry-run")
    assert said.count("# train ") == 2
    assert f"{HERE / 'count.py'} --steps 5 --seed 0 --out" in said
    assert said.count("# evaluate count") == 2
    assert not (tmp_path / "out").exists()


def test_list_shows_every_study_with_its_cost(capsys):
    run.main(["--list"])
    said = capsys.readouterr().out
    assert "| cifar10 " in said
    assert "a CPU core a training" in said
