"""A user's data that change: no number of what lay there once stands for what lies there now."""

import hashlib
import os
import shutil
import threading
import time

import pytest
from counting import HERE, STUDY, at_its_gate, begins, runs

from cape_studies import contents

GATES = "FACTS_GATE", "COUNT_GATE", "TEST_GATE"  # in a preparation, a training, a test
#: the steps of a training are the sum of what the files of class a hold
WORDS = {
    "needs": {"words": {"what": "words", "files": ["a/*"]}},
    "prepare": {
        "numbers": {
            "script": str(HERE / "count.py"),
            "options": {"facts": "{out}", "words": "{words}"},
        }
    },
    "options": {"steps": "${facts:steps}"},
    "report": {**STUDY["report"], "trained_on": ["${facts:word}"]},
    "variants": {"few": {}},
}


@pytest.fixture
def data(tmp_path):
    """Two classes: a, which is a link, holds 2 and 3; b holds 4."""
    folder = tmp_path / "data"
    for path, text in (("one/x.txt", "2"), ("one/y.txt", "3"), ("data/b/z.txt", "4")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (folder / "a").symlink_to(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    (tmp_path / "other" / "x.txt").write_text("7")
    return folder


def another_link(data):
    (data / "a").unlink()
    (data / "a").symlink_to(data.parent / "other")


def link_back(data):
    (data / "a").unlink()
    (data / "a").symlink_to(data.parent / "one")


def written(data):
    """Of equal size, and then as it was, also in its time."""
    at = (data / "a" / "x.txt").stat().st_mtime_ns
    (data.parent / "at").write_text(str(at))
    (data / "a" / "x.txt").write_text("9")
    os.utime(data / "a" / "x.txt", ns=(at, at + 1))


def written_back(data):
    at = int((data.parent / "at").read_text())
    (data / "a" / "x.txt").write_text("2")
    os.utime(data / "a" / "x.txt", ns=(at, at))


#: what changes, what takes it back, and the steps between
CHANGES = {
    "another label": (
        lambda data: (data / "b" / "z.txt").rename(data / "a" / "z.txt"),
        lambda data: (data / "a" / "z.txt").rename(data / "b" / "z.txt"),
        "9.0",
    ),
    "another link": (another_link, link_back, "10.0"),
    "equal size": (written, written_back, "12.0"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_data_are_other_runs_and_going_back_finds_the_first(
    cape_run, cape_report, data, tmp_path, change
):
    words, (there, back, steps) = ["--data", str(data)], CHANGES[change]
    cape_run(*words, **WORDS)
    assert cape_report(*words, **WORDS) == {("few", 0): "5.0"}
    there(data)
    cape_run(*words, **WORDS)
    assert cape_report(*words, **WORDS) == {("few", 0): steps}
    back(data)
    assert "few seed 0: done already" in cape_run(*words, **WORDS)
    assert cape_report(*words, **WORDS) == {("few", 0): "5.0"}
    assert [begins(folder) for folder in runs(tmp_path, "few")] == [[0], [0]]


def test_data_that_are_named_without_a_preparation_count_too(cape_run, cape_report, data, tmp_path):
    study = {key: WORDS[key] for key in ("needs", "variants")}
    study["options"] = {"steps": 2, "read-not": "{words}"}
    for change in (lambda data: None, written):
        change(data)
        cape_run("--data", str(data), **study)
    assert len(runs(tmp_path, "few")) == 2


def meanwhile(data, tmp_path, gate, change):
    """Change data when a step is in its middle."""

    def act():
        while not at_its_gate(tmp_path / "out", gate):
            time.sleep(0.02)
        change(data)
        (tmp_path / "gate").touch()

    other = threading.Thread(target=act)
    other.start()
    return other


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(
    "change",
    [
        "another label",
        *(pytest.param(one, marks=pytest.mark.release) for one in ("another link", "equal size")),
    ],
)
def test_what_is_made_while_data_change_counts_for_nothing(
    cape_run, cape_report, data, tmp_path, monkeypatch, gate, change
):
    there, back, _ = CHANGES[change]
    monkeypatch.setenv(gate, str(tmp_path / "gate"))
    words = ["--data", str(data)]
    other = meanwhile(data, tmp_path, gate, there)
    said = cape_run(*words, fails=f"{data} changed meanwhile", **WORDS)
    other.join()
    assert not [*(tmp_path / "out").glob("runs/*/*/scores.csv")]
    assert "few seed 0: done" not in said
    back(data)
    cape_run(*words, **WORDS)
    assert cape_report(*words, **WORDS) == {("few", 0): "5.0"}
    (folder,) = runs(tmp_path, "few")
    assert begins(folder) == ([0, 0] if gate == "COUNT_GATE" else [0])


# --- what is no change


@pytest.mark.parametrize("gate", ["FACTS_GATE", "TEST_GATE"])
def test_links_rights_and_times_of_writing_are_no_change_of_data(
    cape_run, cape_report, data, tmp_path, monkeypatch, gate
):
    monkeypatch.setenv(gate, str(tmp_path / "gate"))

    def touched(data):
        os.link(data / "b" / "z.txt", data.parent / "backup.txt")
        (data / "b" / "z.txt").chmod(0o600)
        for path in data.glob("*/*"):
            path.touch()

    other = meanwhile(data, tmp_path, gate, touched)
    cape_run("--data", str(data), **WORDS)
    other.join()
    assert "few seed 0: done already" in cape_run("--data", str(data), **WORDS)
    assert cape_report("--data", str(data), **WORDS) == {("few", 0): "5.0"}


def test_data_that_are_moved_or_copied_are_the_same_data(cape_run, data, tmp_path):
    """More trainings are then made of them, by what was prepared before."""
    cape_run("--data", str(data), **WORDS)
    data.rename(tmp_path / "moved")
    assert "few seed 0: done already" in cape_run("--data", str(tmp_path / "moved"), **WORDS)
    shutil.copytree(tmp_path / "moved", tmp_path / "copy")
    shutil.rmtree(tmp_path / "moved")
    said = cape_run("--data", str(tmp_path / "copy"), "seeds=[0,1]", **WORDS)
    assert "few seed 0: done already" in said
    assert "preparing" not in said
    assert [begins(folder) for folder in runs(tmp_path, "few")] == [[0], [0]]


def test_finished_trainings_of_other_data_are_told(cape_run, data):
    assert "other data" not in cape_run("--data", str(data), **WORDS)
    written(data)
    said = cape_run("--data", str(data), **WORDS)
    assert f"1 finished trainings are of other data, what was in {data} then" in said


def test_a_second_look_reads_no_file_but_those_that_changed(data, tmp_path, monkeypatch):
    for path in data.glob("*/*"):  # settled: written long ago
        os.utime(path)
    monkeypatch.setattr(contents, "SETTLED_NS", -1)
    first = contents.digest(data, tmp_path / "kept")
    read = []
    whole = hashlib.file_digest
    monkeypatch.setattr(
        hashlib, "file_digest", lambda f, kind: read.append(f.name) or whole(f, kind)
    )
    assert contents.digest(data, tmp_path / "kept") == first
    assert not read
    written(data)
    assert contents.digest(data, tmp_path / "kept") != first
    assert read == [str(data / "a" / "x.txt")]
    assert contents.digest(data) == contents.digest(data, tmp_path / "kept")


def test_hidden_files_are_no_data_and_links_in_a_circle_and_to_nowhere_are_read(cape_run, data):
    (data / "b" / "up").symlink_to(data)
    (data / "b" / "nowhere").symlink_to(data / "gone")
    words = ["--data", str(data)]
    assert "few seed 0: done" in cape_run(*words, **WORDS)
    (data / ".DS_Store").write_text("a Mac was here")
    assert "done already" in cape_run(*words, **WORDS)


ANSWER = {"answer": {"floor": "few", "within": "as in training", "beyond": {}}, "host": "espnet"}


def test_a_dry_run_looks_at_a_users_data_for_its_numbers_and_writes_nothing(
    cape_run, data, tmp_path
):
    said = cape_run("--dry-run", "--data", str(data), **WORDS, **ANSWER)
    assert "count.py --steps 5 " in said
    assert not (tmp_path / "out").exists()
    folder = said.split("# train ")[1].split()[0]
    cape_run("--data", str(data), **WORDS, **ANSWER)
    assert [str(one) for one in runs(tmp_path, "few")] == [folder]


def test_a_study_of_a_users_data_ends_with_its_answer(cape_run, data, tmp_path):
    said = cape_run("--data", str(data), **WORDS, **ANSWER)
    assert "As in training: few " in said
    assert said.splitlines()[-1] == str(tmp_path / "out" / "counting" / "report" / "index.html")
