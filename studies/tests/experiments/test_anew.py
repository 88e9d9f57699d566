"""No result is older than its inputs: what a call shows is what the study of that call makes.

What a step makes lies under its key, a run's folder is written anew by every call, and what has
changed or is missing is made again.
"""

import json
import shutil

import pytest
import yaml
from counting import HERE, STUDY, begins, count, runs, scores

from cape_studies.experiments import folders, plan, report, run, steps


def short(folder):
    """The score that a run shows."""
    return scores(folder)["short"]["value"]


def evaluated(folder):
    """How often evaluations ran."""
    return sum(log.read_text().count("\n$ ") for log in folder.glob("evaluations/*.log"))


def test_what_is_done_is_not_done_again_and_a_new_recipe_is_a_new_run(cape_run, tmp_path):
    cape_run("--variants", "few")
    (first,) = runs(tmp_path, "few")
    cape_run("--variants", "few")
    assert (begins(first), evaluated(first)) == ([0], 1)
    recipe = tmp_path / "recipe.yaml"
    for content in ("lr: 1", "lr: 2"):
        recipe.write_text(content)
        cape_run("--variants", "few", recipe=str(recipe))
    assert len(runs(tmp_path, "few")) == 3
    study = yaml.safe_load((tmp_path / "out" / "counting" / "study.yaml").read_text())
    assert len(study["runs"]) == 1  # those of other settings are not the study's any more


def test_an_evaluation_changed_and_changed_back_shows_its_own_numbers(cape_run, tmp_path, capsys):
    cape_run()
    (few,), (many,) = runs(tmp_path, "few"), runs(tmp_path, "many")
    cape_run("--variants", "few", evaluations=count(add=1))
    assert (short(few), begins(few)) == ("4.0", [0])
    run.main([str(tmp_path / "counting.yaml"), "--out", str(tmp_path / "out"), "--status"])
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"counting/runs/{few.name}: done"
    assert f"Not asked for by the last call: {many.name} (never begun)." in second  # nor evaluated
    cape_run("--variants", "few")
    assert (short(few), short(many), evaluated(few)) == ("3.0", "5.0", 2)
    assert (few / "items-count.csv").read_text().split()[1] == "short,count,1,3,1"
    assert json.loads((few / "record.json").read_text())["evaluate-count"]["command"][-2:] != ["1"]


def test_a_script_edited_and_reverted_shows_its_own_numbers(cape_run, tmp_path):
    script, text = tmp_path / "score.py", (HERE / "count.py").read_text()
    one = {"count": {**count()["count"], "script": str(script)}}
    found = []
    for edited in (text, text.replace("score = ", "score = 100 + "), text):
        script.write_text(edited)
        cape_run("--variants", "few", evaluations=one)
        found.append(short(runs(tmp_path, "few")[0]))
    assert found == ["3.0", "103.0", "3.0"]


def test_an_evaluation_that_ends_without_its_scores_has_failed(cape_run, tmp_path):
    cape_run("--variants", "few")
    said = "ended without error, and without "
    for _ in range(2):
        cape_run("--variants", "few", fails=said, evaluations=count(silent=True))
    (folder,) = runs(tmp_path, "few")
    assert not (folder / "scores.csv").exists()
    assert folders.state(folder).startswith(f"failed: {said}")
    assert "few-seed0" in cape_run("--variants", "few", evaluations=count())
    assert short(folder) == "3.0"


def test_a_training_or_a_preparation_that_leaves_nothing_has_failed(cape_run, tmp_path):
    one = {"count": {**count()["count"], "options": {"read": "{checkpoint}", "csv": "{csv}"}}}
    said = cape_run("--variants", "few", fails="last.pth.tar", evaluations=one)
    assert "failed: ended without error, and without " in said
    step = {"script": str(HERE / "count.py"), "options": {"silent": True, "out": "{out}"}}
    cape_run("--variants", "few", fails="and without ", prepare={"data": step})


@pytest.mark.parametrize(
    "changes",
    [
        {"report": {**STUDY["report"], "trained_on": ["long"]}},
        {"variants": {"few": {"trained_on": ["long"]}}},
    ],
)
def test_what_was_seen_in_training_is_what_the_study_says_now(cape_run, tmp_path, changes):
    cape_run("--variants", "few")
    cape_run("--variants", "few", **changes)
    found = scores(runs(tmp_path, "few")[0])
    assert [found[name]["trained_on"] for name in ("short", "long")] == ["False", "True"]


def test_what_was_deleted_is_done_anew(cape_run, tmp_path):
    cape_run("--variants", "few")
    (folder,) = runs(tmp_path, "few")

    (folder / "scores.csv").unlink()
    cape_run("--variants", "few")
    assert (short(folder), begins(folder), evaluated(folder)) == ("3.0", [0], 1)

    shutil.rmtree(folder / "evaluations")
    cape_run("--variants", "few")
    assert (short(folder), begins(folder), evaluated(folder)) == ("3.0", [0], 1)

    shutil.rmtree(folder / "train")  # and its scores are those of the new training
    cape_run("--variants", "few", evaluations=count(add=1))
    assert (short(folder), begins(folder)) == ("4.0", [0, 0])
    ran = evaluated(folder)
    cape_run("--variants", "few")
    assert (short(folder), evaluated(folder)) == ("3.0", ran + 1)

    (folder / "train.json").write_text("half a rec")
    cape_run("--variants", "few")
    assert begins(folder) == [0, 0, 3]

    shutil.rmtree(folder)
    cape_run("--variants", "few")
    assert begins(folder) == [0]  # of a new log
    assert json.loads((folder / "record.json").read_text())["train"]["interrupted"] == 0


def test_what_was_prepared_and_deleted_is_prepared_anew(cape_run, tmp_path):
    step = {"script": str(HERE / "count.py"), "options": {"steps": 2, "out": "{out}"}}
    for _ in range(2):
        cape_run("--variants", "few", prepare={"data": step})
    (folder,) = (tmp_path / "out" / "prepared").glob("data-??????????")
    log = folder.with_name(f"{folder.name}.log")
    assert log.read_text().count("begins at") == 1
    shutil.rmtree(folder)
    cape_run("--variants", "few", prepare={"data": step})
    assert log.read_text().count("begins at") == 2


def test_variants_that_train_alike_train_once_and_one_may_start_from_another(cape_run, tmp_path):
    twin = {"evaluate": {"count": {"add": 7}}}
    after = {"after": "few", "options": {"start": "{after}", "steps": 2}}
    study = {"variants": {"after": after, "few": {}, "twin": twin}}
    cape_run("--jobs", "2", **study)
    (few,), (same,), (later,) = (runs(tmp_path, name) for name in ("few", "twin", "after"))
    first, other = (few, same) if (same / "train").is_symlink() else (same, few)
    assert (other / "train").is_symlink()
    assert (short(same), begins(later), short(later)) == ("10.0", [3], "5.0")

    shutil.rmtree(first)  # the one that is left trains for both, and what starts from it anew
    cape_run("--variants", "after", other.name.split("-")[0], **study)
    assert not (other / "train").is_symlink()
    assert (begins(other), begins(later)) == ([0], [3, 3])
    cape_run(**study)
    assert (short(few), short(same), begins(first)) == ("3.0", "10.0", [0])


def test_a_chain_of_trainings_is_trained_from_its_first(cape_run, tmp_path):
    more = {"options": {"start": "{after}", "steps": 2}}
    chain = {"one": {}, "two": {"after": "one", **more}, "three": {"after": "two", **more}}
    cape_run("--variants", "three", variants=chain, report={})
    assert short(runs(tmp_path, "three")[0]) == "7.0"


def test_a_full_disk_is_told(cape_run, tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "full", lambda folder: True)
    write = steps.write

    def no_space(path, content):
        if path.name == "failed":
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(steps, "write", no_space)
    said = cape_run("--variants", "few", fails="No space left", options={"fail": True})
    assert said.startswith("counting few seed 0: ")
    assert "failed: [Errno 28] No space left on device: " in said
    assert folders.state(runs(tmp_path, "few")[0]) == "interrupted, and the disk is full"


# --- sets


def test_a_set_is_reported_with_what_there_is_and_what_is_missing_is_named(
    cape_run, tmp_path, capsys
):
    for name, title in (("first", "The first"), ("second", "The second")):
        options = {"steps": 3, "fail": name == "second"}
        content = {**STUDY, "title": title, "options": options}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "both.yaml").write_text("studies: [first, second]")
    with pytest.raises(SystemExit):
        run.main([str(tmp_path / "both.yaml"), "--out", str(tmp_path / "out")])
    report.main([str(tmp_path / "out" / "both")])
    text = (tmp_path / "out" / "both" / "report" / "table.md").read_text()
    assert "## The first" in text
    assert "second has no scores yet" in text


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
    plugin = shutil.copytree(plan.PLUGIN, tmp_path / "plugin")
    monkeypatch.setattr(plan, "PLUGIN", plugin)
    cape_run("--variants", "few", trainer=str(trainer))
    for changed, expected in (
        (helper, 2),
        (tmp_path / "unrelated.py", 2),
        (plugin / "timm" / "positions.py", 3),
        (plugin / "fairseq" / "config.py", 3),  # of another host
    ):
        with changed.open("a") as file:
            file.write("# changed\n")
        cape_run("--variants", "few", trainer=str(trainer))
        assert len(runs(tmp_path, "few")) == expected
