"""The question that was asked last is the one that is answered."""

import json

import pytest
import yaml
from counting import STUDY, runs

from cape_studies.ask import answer, estimate
from cape_studies.experiments import report, run
from lab_support import refused

ANSWER = {
    "data": "wavs",
    "floor": "few",
    "within": "as in training",
    "beyond": {"count": "beyond"},
}
ASKING = {"answer": ANSWER, "needs": {"wavs": {"what": "sounds"}}}


@pytest.fixture
def asking(cape_run, tmp_path, monkeypatch):
    """cape-run of the counting study, as one of a user's own data, of which nothing is settled."""
    (tmp_path / "words").mkdir(exist_ok=True)
    monkeypatch.setattr(run, "settle", lambda *_: None)
    monkeypatch.setattr(answer, "typed", lambda study, variant: variant)  # count.py has no model
    monkeypatch.setattr(estimate, "STEPS", 2)
    monkeypatch.setattr(estimate, "SECONDS", 0.0)
    monkeypatch.setattr(estimate, "TELLING", {"trainer": {"steps": 9}})
    return lambda *words, **more: cape_run(
        *words, "--data", str(tmp_path / "words"), **{**ASKING, **more}
    )


def shown(tmp_path, capsys):
    """Lines of --status, of the report, and its answer."""
    run.main([str(tmp_path / "counting.yaml"), "--out", str(tmp_path / "out"), "--status"])
    status = capsys.readouterr().out.splitlines()
    report.main([str(tmp_path / "out" / "counting")])
    capsys.readouterr()
    folder = tmp_path / "out" / "counting" / "report"
    return (
        status,
        (folder / "table.md").read_text(),
        json.loads((folder / "answer.json").read_text()),
    )


def test_an_estimate_of_more_seeds_leaves_nothing_that_counts(asking, tmp_path, capsys):
    asking("--seeds", "0", "1", "2", "--estimate")
    assert not (tmp_path / "out" / "counting" / "runs").exists()
    asking("--seeds", "0", "1")
    status, text, found = shown(tmp_path, capsys)
    assert [line.split(": ")[1] for line in status] == ["done"] * 4
    assert found["ranges"]["as in training"]["trainings"] == {"few": 2, "many": 2}
    assert found["ranges"]["as in training"]["means"] == {"many": 5.0, "few": 3.0}
    assert "†" not in text


def test_what_an_older_estimate_or_a_wider_call_began_does_not_count(asking, tmp_path, capsys):
    asking("--seeds", "0", "1", "2")
    for folder in (tmp_path / "out" / "counting" / "runs").glob("*-seed2-*"):
        for path in (folder / "scores.csv", folder / "train.json"):
            path.unlink()
        (folder / "train.json").write_text("{}")
    asking("--seeds", "0", "1")
    status, text, found = shown(tmp_path, capsys)
    assert found["ranges"]["as in training"]["trainings"] == {"few": 2, "many": 2}
    first = text.splitlines()[2]
    assert "This shows the 4 trainings that the last call asked for. The folder has more." in first
    assert "few-seed2" in first
    assert first == found["elsewhere"]
    assert "few-seed2" in status[-1]
    assert not any("few-seed2" in line and "waiting" in line for line in status)


def test_an_estimate_of_other_options_changes_no_report(asking, tmp_path, capsys):
    asking()
    _, before, found = shown(tmp_path, capsys)
    asking("--estimate", options={"steps": 4})
    _, text, later = shown(tmp_path, capsys)
    assert (text, later) == (before, found)  # nor is its cost of those options


def test_what_another_set_of_options_trained_is_named_and_not_shown(asking, tmp_path, capsys):
    asking()
    asking("--variants", "few", options={"steps": 4})
    _, text, found = shown(tmp_path, capsys)
    assert found["ranges"]["as in training"]["means"] == {"few": 4.0}
    first = text.splitlines()[2]
    assert "Of other settings, or of variants that the last call left out: few-seed0" in first


def test_an_unfinished_study_says_so_and_what_to_type(asking, tmp_path, capsys, monkeypatch):
    fails = {"few": {}, "many": {"options": {"fail": True}}}
    monkeypatch.setattr(estimate, "told", lambda *_: "")  # which would fail before any training
    asking("--seeds", "0", "1", fails="it does not work", variants=fails)
    status, text, found = shown(tmp_path, capsys)
    assert "2 of 4 trainings done, the report shows only these; cape-run " in status[-1]
    assert found["unfinished"]["variants_without_any"] == ["many"]
    assert found["unfinished"]["type"].startswith("cape-run ")
    assert "--estimate" not in found["unfinished"]["type"]
    assert "Preliminary: 2 of the 4 trainings that were asked for are not done: many-seed0" in text
    assert "To finish them, type cape-run " in text


def test_after_an_estimate_alone_status_and_report_say_what_to_type(asking, tmp_path, capsys):
    asking("--seeds", "0", "--estimate")
    out = str(tmp_path / "out")
    run.main([str(tmp_path / "counting.yaml"), "--out", out, "--status"])
    (line,) = capsys.readouterr().out.splitlines()
    assert "nothing is trained, it was only estimated; cape-run " in line
    assert "--estimate" not in line
    assert "It was only estimated" in refused(report.main, capsys, tmp_path / "out" / "counting")


def test_a_narrower_call_and_the_wide_one_again_show_all(cape_run, tmp_path):
    cape_run("--seeds", "0", "1")
    cape_run("--variants", "few", "--seeds", "1")
    path = tmp_path / "out" / "counting" / "study.yaml"
    study = yaml.safe_load(path.read_text())
    assert study["runs"] == [runs(tmp_path, "few")[1].name]
    assert len(study["others"]) == 3
    assert STUDY["seeds"] == [0]
    cape_run("--seeds", "0", "1")
    study = yaml.safe_load(path.read_text())
    assert (len(study["runs"]), study["others"], study["seeds"]) == (4, [], [0, 1])
