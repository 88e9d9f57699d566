"""``cape-run`` from its command line to scores."""

import json
import shutil

import pytest
import yaml

pytest.importorskip("exca")

from counting import HERE, STUDY, begins, runs, scores

from cape_studies.experiments import plan, run, steps


@pytest.fixture
def cape_run(tmp_path, capsys, monkeypatch):
    """Writes the study and runs it; returns what was printed. The results are in tmp_path."""
    monkeypatch.setattr(steps, "SECONDS_TO_HEAR", 0.0)

    def call(*arguments, fails=None, **changes):
        for mark in (plan.data_mark, plan.script_mark, plan.code_mark):
            mark.cache_clear()
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


def count(**options):
    """The study's evaluation with more options."""
    one = STUDY["evaluations"]["count"]
    return {"count": {**one, "options": {**one["options"], **options}}}


def test_a_sweep_leaves_scores_items_metrics_settings_and_a_record(cape_run, tmp_path):
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
    changed = count(add=1)
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


def test_what_was_deleted_is_done_anew(cape_run, tmp_path):
    cape_run("--variants", "few")
    (folder,) = runs(tmp_path, "few")
    (folder / "scores.csv").unlink()
    cape_run("--variants", "few")
    assert begins(folder) == [0]
    assert scores(folder)["short"]["value"] == "3.0"
    shutil.rmtree(folder)
    cape_run("--variants", "few")
    assert begins(folder) == [0]  # of a new log
    assert json.loads((folder / "record.json").read_text())["train"]["interrupted"] == 0


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


# --- what has changed is seen


@pytest.mark.parametrize(
    "change",
    [
        lambda data: (data / "a.txt").write_text("bbb"),  # of the same size
        lambda data: (data / "not_in_files.bin").write_text("x"),
        lambda data: (data / "train" / "class" / "1.jpg").write_text("y"),
        lambda data: (data / "train" / "class" / "1.jpg").unlink(),
    ],
)
@pytest.mark.parametrize("small", [2**20, 0])
def test_changed_data_are_a_new_run(cape_run, tmp_path, monkeypatch, change, small):
    monkeypatch.setattr(plan, "SMALL", small)
    data = tmp_path / "data"
    (data / "train" / "class").mkdir(parents=True)
    (data / "a.txt").write_text("aaa")
    (data / "train" / "class" / "1.jpg").write_text("x")
    (data / "train" / "up").symlink_to(data)
    words = ["--variants", "few", "--data", str(data)]
    need = {"what": "words", "files": ["a.txt"]}
    about = {"needs": {"words": need}, "options": {"steps": 2, "read-not": "{words}"}}
    cape_run(*words, **about)
    cape_run(*words, **about)
    assert len(runs(tmp_path, "few")) == 1
    change(data)
    cape_run(*words, **about)
    assert len(runs(tmp_path, "few")) == 2
    shutil.move(data, tmp_path / "moved")
    cape_run(*words[:-1], str(tmp_path / "moved"), **about)
    assert len(runs(tmp_path, "few")) == 2


def test_changed_code_is_a_new_run(cape_run, tmp_path, monkeypatch):
    trainer, helper = tmp_path / "trainer.py", tmp_path / "helper.py"
    trainer.write_text("import helper\n" + (HERE / "count.py").read_text())
    helper.write_text("x = 1\n")
    cape_run("--variants", "few", trainer=str(trainer))
    helper.write_text("x = 2\n")
    cape_run("--variants", "few", trainer=str(trainer))
    assert len(runs(tmp_path, "few")) == 2
    (tmp_path / "unrelated.py").write_text("x = 3\n")
    cape_run("--variants", "few", trainer=str(trainer))
    assert len(runs(tmp_path, "few")) == 2

    plugin = shutil.copytree(plan.PLUGIN, tmp_path / "plugin")
    monkeypatch.setattr(plan, "PLUGIN", plugin)
    with (plugin / "timm" / "positions.py").open("a") as file:
        file.write("# a fix\n")
    cape_run("--variants", "few", trainer=str(trainer))
    assert len(runs(tmp_path, "few")) == 3
    with (plugin / "fairseq" / "config.py").open("a") as file:
        file.write("# of another host\n")
    cape_run("--variants", "few", trainer=str(trainer))
    assert len(runs(tmp_path, "few")) == 3


# --- refusals


@pytest.mark.parametrize("name", ["study.yaml", "runs/few/record.json"])
def test_a_file_that_cannot_be_read_is_named(cape_run, tmp_path, name):
    cape_run("--variants", "few")
    (folder,) = runs(tmp_path, "few")
    path = tmp_path / "out" / "counting" / name.replace("runs/few", f"runs/{folder.name}")
    path.write_text(": [")
    more = {"evaluations": count(add=1)}  # something to do
    fails = "failed: " if "record" in name else 2  # a run's own is not everyone's
    said = cape_run("--variants", "few", fails=fails, **more)
    assert f"{path} cannot be read" in said


def test_a_deleted_checkpoint_is_told_where_an_evaluation_needs_it(cape_run, tmp_path):
    cape_run("--variants", "few")
    (folder,) = runs(tmp_path, "few")
    shutil.rmtree(folder / "train")
    cape_run("--variants", "few")  # nothing to do
    told = f"{folder / 'train'} is deleted: without {folder} it is trained anew"
    cape_run("--variants", "few", fails=told, evaluations=count(add=1))
    shutil.rmtree(folder)
    cape_run("--variants", "few", evaluations=count(add=1))
    assert scores(folder)["short"]["value"] == "4.0"


def test_a_missing_score_is_kept(cape_run, tmp_path):
    cape_run("--variants", "few", evaluations=count(nan=True))
    assert [row["value"] for row in scores(runs(tmp_path, "few")[0]).values()] == ["", "6.0"]


@pytest.mark.parametrize("out", ["/proc/out", "/dev/null", "/dev/null/out"])
def test_a_folder_that_cannot_be_written_is_told(cape_run, out):
    said = cape_run("--out", out, fails=2)
    assert f"--out {out} cannot be written: " in said


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        (["--variants", "none"], {}, "--variants: no 'none'; there is few, many"),
        (["--gpus", "64"], {}, "--gpus 64: there are"),
        (["--nodes", "2"], {}, "--nodes needs --cluster slurm"),
        ([], {"disk_gb": 1e9}, "GB free, the runs take about"),
        ([], {"trainer": "nowhere.py"}, "nowhere.py does not exist"),
        (["--data", "x=."], {}, "--data (changes stand before it): no 'x'"),
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


def test_dry_run_prints_the_commands_and_does_nothing(cape_run, tmp_path):
    said = cape_run("--dry-run")
    assert said.count("# train ") == 2
    assert f"{HERE / 'count.py'} --steps 5 --seed 0 --out" in said
    assert said.count("# evaluate count") == 2
    assert not (tmp_path / "out").exists()


def test_list_shows_every_study_with_its_cost(capsys):
    run.main(["--list"])
    said = capsys.readouterr().out
    assert "cifar10 (timm): CIFAR-10, trained at 32²" in said
    assert "a CPU core a training" in said
    assert max(map(len, said.splitlines())) <= 100
