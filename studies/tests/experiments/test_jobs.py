"""A folder is named after what was asked, so no report shows what was not asked for.

What is done is not done again, what failed or was deleted is, and what changed is told.
"""

import shutil

import pytest
import yaml
from counting import HERE, STUDY, begins, count, runs, score

from cape_studies import report

FEW = "run=[few]"


def test_what_is_done_is_not_done_again(cape_run, cape_report, tmp_path):
    cape_run("seeds=[0,1]", "--jobs", "2")
    said = cape_run("seeds=[0,1]")
    assert said.count("done already") == 4
    said = cape_run("seeds=[1,2]", "--dry-run")
    assert (said.count(": done\n"), said.count("# evaluate")) == (4, 4)  # of seed 1 alone
    assert [begins(folder) for folder in runs(tmp_path, "few")] == [[0], [0]]
    assert cape_report("seeds=[0,1]") == {
        ("few", 0): "3.0", ("many", 0): "5.0", ("few", 1): "3.0", ("many", 1): "5.0",
    }  # fmt: skip


@pytest.mark.parametrize("what", ["option", "evaluation"])
def test_what_is_changed_and_changed_back_shows_its_own_numbers(
    cape_run, cape_report, tmp_path, what
):
    found = []
    for add in (0, 1, 0):
        words = [FEW, *([f"options.steps={3 + add}"] if what == "option" else [])]
        changes = {"evaluations": count(add=add)} if what == "evaluation" else {}
        cape_run(*words, **changes)
        found.append(cape_report(*words, **changes)["few", 0])
    assert found == ["3.0", "4.0", "3.0"]
    trained = 2 if what == "option" else 1
    assert [begins(folder) for folder in runs(tmp_path, "few")] == [[0]] * trained


def test_a_narrower_call_and_a_wider_one_show_what_they_ask_for(cape_run, cape_report, tmp_path):
    cape_run("seeds=[0,1]")
    assert set(cape_report("seeds=[1]", "run=[many]")) == {("many", 1)}
    assert set(cape_report("seeds=[0,1,2]")) == {
        (name, seed) for name in ("few", "many") for seed in (0, 1)
    }
    text = (tmp_path / "out" / "counting" / "report" / "table.md").read_text()
    assert "Shown are 4 of 6 runs. Not begun: few seed 2, many seed 2. To go on: " in text
    assert "cape-run" in text
    assert "'seeds=[0,1,2]'" in text


def test_the_page_has_the_commands_of_a_quick_run_and_another_baseline(
    cape_run, cape_report, tmp_path
):
    quick = {"quick": {"options": {"steps": 1}}}
    cape_run("--quick", **quick)
    assert cape_report("--quick", "report.baseline=many", **quick)["few", 0] == "1.0"
    folder = tmp_path / "out" / "counting" / "report"
    text, page = ((folder / name).read_text() for name in ("table.md", "index.html"))
    assert text.startswith("## QUICK RUN, its numbers say nothing: counting")
    assert "difference from many" in text
    assert f"{HERE / 'count.py'} --steps 1" in page
    assert "torch: " in page


def test_nothing_to_report_says_what_to_type(command):
    said = command(report.main, FEW, fails=2)
    assert "counting has no scores yet: cape-run " in said
    assert "Not begun: few seed 0" in said


def test_the_same_training_in_another_study_is_the_same_folder(cape_run, cape_report, tmp_path):
    cape_run(FEW)
    other = {"variants": {"one": {}, "twin": {"evaluate": {"count": {"add": 7}}}}, "report": {}}
    cape_run("--jobs", "2", name="other", **other)
    assert cape_report(name="other", **other) == {("one", 0): "3.0", ("twin", 0): "10.0"}
    (folder,) = (tmp_path / "out" / "runs").iterdir()
    assert begins(folder) == [0]
    assert cape_report(FEW) == {("few", 0): "3.0"}


def test_a_chain_of_trainings_is_trained_from_its_first(cape_run, cape_report, tmp_path):
    more = {"options": {"start": "{after}", "steps": 2}}
    chain = {"one": {}, "two": {"after": "one", **more}, "three": {"after": "two", **more}}
    chain = {"variants": chain, "report": {}}
    cape_run("run=[three]", **chain)
    assert cape_report("run=[three]", **chain) == {("three", 0): "7.0"}


def test_fresh_trains_and_tests_again_and_nothing_else(cape_run, tmp_path):
    step = {"script": str(HERE / "count.py"), "options": {"steps": 2, "out": "{out}"}}
    cape_run(prepare={"data": step})
    cape_run(FEW, "--fresh", prepare={"data": step})
    (few,), (many,) = runs(tmp_path, "few"), runs(tmp_path, "many")
    (log,) = (tmp_path / "out" / "prepared").glob("data-*.log")
    assert (begins(few), begins(many)) == ([0], [0])  # of a new log
    assert few.stat().st_ctime > many.stat().st_ctime
    assert log.read_text().count("begins at 0") == 1


def test_what_was_deleted_is_done_anew(cape_run, tmp_path):
    cape_run(FEW)
    (folder,) = runs(tmp_path, "few")
    (test,) = folder.glob("count-*")
    shutil.rmtree(folder / "train")  # that frees the disk, and scores stay
    cape_run(FEW)
    assert (score(folder), begins(folder)) == ("3", [0])
    shutil.rmtree(test)
    cape_run(FEW)
    assert (score(folder), begins(folder)) == ("3", [0, 0])
    shutil.rmtree(test)
    cape_run(FEW)
    assert (score(folder), begins(folder)) == ("3", [0, 0])
    (folder / "trained.yaml").unlink()
    shutil.rmtree(test)
    cape_run(FEW)  # it is not known to be done, so the trainer looks
    assert (score(folder), begins(folder)) == ("3", [0, 0, 3])


def test_a_training_or_a_preparation_done_anew_has_all_its_tests_done_anew(cape_run, tmp_path):
    (one,) = count().values()
    step = {"script": str(HERE / "count.py"), "options": {"steps": 2, "out": "{out}"}}
    both = {"evaluations": {"one": one, "other": one}, "prepare": {"data": step}}
    cape_run(FEW, **both)
    (folder,) = runs(tmp_path, "few")
    (test,) = folder.glob("other-*")
    shutil.rmtree(test)
    shutil.rmtree(folder / "train")
    cape_run(FEW, **both)
    assert len([*folder.glob("*/scores.csv")]) == 2
    (made,) = (tmp_path / "out" / "prepared").glob("data-??????????")
    log = made.with_name(f"{made.name}.log")
    assert log.read_text().count("begins at") == 1
    shutil.rmtree(made)
    shutil.rmtree(folder)
    cape_run(FEW, **both)
    assert log.read_text().count("begins at") == 2


def test_a_changed_script_is_told_and_fresh_trains_with_it(cape_run, cape_report, tmp_path):
    trainer = tmp_path / "mine.py"
    trainer.write_text((HERE / "count.py").read_text())
    cape_run(FEW, trainer=str(trainer))
    with trainer.open("a") as file:
        file.write("# changed\n")
    cape_report(FEW, trainer=str(trainer))
    text = (tmp_path / "out" / "counting" / "report" / "table.md").read_text()
    assert "script mine.py was " in text
    cape_run(FEW, "--fresh", trainer=str(trainer))
    cape_report(FEW, trainer=str(trainer))
    text = (tmp_path / "out" / "counting" / "report" / "table.md").read_text()
    assert "now it is" not in text


def test_a_config_holds_what_was_asked_and_where_it_ran(cape_run, tmp_path):
    cape_run(FEW)
    (folder,) = runs(tmp_path, "few")
    about = yaml.safe_load((folder / "config.yaml").read_text())
    assert (about["variant"], about["seed"], about["options"]) == ("few", 0, {"steps": 3})
    assert {"machine", "began", "command"} <= about["trained"][0].keys()
    assert {"cape-plugins", "commit", "torch", "timm"} <= about["trained"][0]["versions"].keys()


# --- facts: what the data decide

FACTS = {
    "epochs": None,
    "prepare": {
        "numbers": {
            "script": str(HERE / "count.py"),
            "options": {"facts": "{out}", "steps": "${options.steps}"},
        }
    },
    "options": {"steps": "${facts:steps}"},
    "report": {**STUDY["report"], "trained_on": ["${facts:word}"]},
    "variants": {"few": {}},
}


def test_what_is_left_open_is_chosen_by_the_preparation_and_what_is_given_reaches_it(
    cape_run, cape_report, tmp_path
):
    cape_run(**FACTS)
    assert cape_report(**FACTS) == {("few", 0): "4.0"}
    cape_run("options.steps=6", **FACTS)
    assert cape_report("options.steps=6", **FACTS) == {("few", 0): "6.0"}
    assert cape_report(**FACTS) == {("few", 0): "4.0"}
    said = cape_run("--dry-run", "options.steps=7", **FACTS)
    assert "--steps 7" in said
    assert "--steps '<steps>'" in cape_run("--dry-run", "--out", str(tmp_path / "new"), **FACTS)


CHOSEN = {
    **FACTS,
    "prepare": {
        "numbers": {
            "script": str(HERE / "count.py"),
            "options": {"facts": "{out}"},
            "facts": {"_target_": "counting.chosen", "steps": "${options.steps}"},
        }
    },
}


def test_what_follows_from_the_data_and_a_choice_is_no_other_preparation(
    cape_run, cape_report, tmp_path
):
    for words, steps in ([], "4.0"), (["options.steps=6"], "6.0"):
        cape_run(*words, **CHOSEN)
        assert cape_report(*words, **CHOSEN) == {("few", 0): steps}
    assert len([*(tmp_path / "out" / "prepared").glob("numbers-??????????")]) == 1


# --- failures


def test_a_trainer_that_was_killed_is_told_by_its_signal(cape_run):
    said = cape_run(
        FEW, fails="few seed 0: killed by SIGKILL", options={"steps": 3, "killed": True}
    )
    assert "step 1/3" in said  # its last lines, above


def test_a_checkpoint_that_cannot_be_read_is_named_with_the_folder_to_remove(cape_run, tmp_path):
    cape_run(FEW)
    (folder,) = runs(tmp_path, "few")
    (test,) = folder.glob("count-*")
    shutil.rmtree(test)
    (folder / "trained.yaml").unlink()
    (folder / "train" / "count").write_text("half a numb")
    cape_run(FEW, fails=f"is damaged, remove {folder / 'train'}")
    shutil.rmtree(folder / "train")
    cape_run(FEW)
    assert score(folder) == "3"


def test_a_failure_is_told_with_its_last_lines_and_its_log_and_tried_again(cape_run, tmp_path):
    options = {"steps": 3, "fail": True}
    said = cape_run(FEW, fails="few seed 0", options=options)
    (folder,) = runs(tmp_path, "few")
    assert "it does not work" in said
    assert str(folder / "train.log") in said
    (folder / "train" / "mended").touch()
    assert "counting few seed 0: done" in cape_run(FEW, options=options)
    assert (begins(folder), score(folder)) == ([0, 0], "3")


def test_a_script_that_fails_in_the_middle_has_no_scores(cape_run, tmp_path):
    half = count(half=True)
    cape_run(FEW, fails="few seed 0: evaluation count: no more (", evaluations=half)
    (folder,) = runs(tmp_path, "few")
    assert not [*folder.glob("*/scores.csv")]
    assert "no more" in (folder / "test.log").read_text()


def test_a_training_or_a_preparation_that_leaves_nothing_has_failed(cape_run, tmp_path):
    cape_run(FEW, fails="and without ", checkpoint="model.pth")
    step = {"script": str(HERE / "count.py"), "options": {"silent": True, "out": "{out}"}}
    cape_run(FEW, fails="and without ", prepare={"data": step})


def test_a_training_that_failed_has_no_row_and_the_report_says_why(cape_run, cape_report, tmp_path):
    options = {"steps": 3, "fail": True, "when": 1}
    cape_run(FEW, "seeds=[0,1]", fails="few seed 1: it does not work (", options=options)
    assert cape_report(FEW, "seeds=[0,1]", options=options) == {("few", 0): "3.0"}
    text = (tmp_path / "out" / "counting" / "report" / "table.md").read_text()
    assert "Failed: few seed 1 (it does not work (" in text
