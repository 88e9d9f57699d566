"""What a report's page says of runs that are missing or were interrupted."""

import yaml
from counting import STUDY, runs


def page(tmp_path, name="counting"):
    return (tmp_path / "out" / name / "report" / "index.html").read_text("utf-8")


def test_a_study_of_a_set_that_has_no_scores_yet_is_named(cape_run, cape_report, tmp_path):
    cape_run()
    (tmp_path / "later.yaml").write_text(yaml.safe_dump({**STUDY, "seeds": [9]}))
    cape_report(name="both", studies=["counting", "later"])
    said = page(tmp_path, "both")
    assert "later has no scores yet" in said
    assert "counting has no scores yet" not in said


def test_a_training_that_was_interrupted_is_named(cape_run, cape_report, tmp_path):
    cape_run()
    cape_report()
    assert "interrupted" not in page(tmp_path)
    (folder,) = runs(tmp_path, "many")
    about = folder / "config.yaml"
    config = yaml.safe_load(about.read_text("utf-8"))
    config["trained"] += config["trained"]  # it was begun twice
    about.write_text(yaml.safe_dump(config))
    cape_report()
    assert "interrupted and went on from a checkpoint: counting many seed 0." in page(tmp_path)
