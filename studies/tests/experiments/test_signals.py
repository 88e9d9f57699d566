"""``cape-run`` ended by signals, and side by side.

Nothing here depends on how fast anything runs: trainers wait at their third step for a file.
"""

import os
import signal
import subprocess
import sys
import time

import pytest
import yaml
from counting import HERE, STUDY, at_its_gate, begins, runs, score

from cape_studies import report
from lab_support import refused

CAPE_RUN = """
import signal
from cape_studies.run import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # what tests in the background inherit
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # is ignored
main()
"""
PREPARED = {"numbers": {"script": str(HERE / "count.py"), "options": {"out": "{out}", "steps": 6}}}
PATIENCE = 120  # seconds that a loaded machine may take for anything
sessions = []


KILLS = [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.release)]


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Of a test that fails."""
    yield
    while sessions:
        for pid in alive(sessions.pop()):
            os.kill(pid, signal.SIGKILL)


def start(tmp_path, *arguments, name="counting", gate="COUNT_GATE", said="said", **changes):
    """cape-run as the first process of a session; what it says goes to the file ``said``."""
    content = {**STUDY, "options": {"steps": 12}, **changes}
    (tmp_path / "new.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "new.yaml").replace(tmp_path / "counting.yaml")  # another session may read it
    words = [str(tmp_path / f"{name}.yaml"), "--out", str(tmp_path / "out"), *arguments]
    program = [sys.executable, "-c", CAPE_RUN]
    env = {**os.environ, gate: str(tmp_path / "gate")}
    with (tmp_path / said).open("w") as file:
        more = {"env": env, "stdout": file, "stderr": file, "start_new_session": True}
        sessions.append(subprocess.Popen([*program, *words], **more))
    return sessions[-1]


def held(tmp_path, *arguments, **changes):
    """The same, when the trainer of its first run waits at its third step."""
    session = start(tmp_path, *arguments, **changes)
    wait_for(lambda: at_its_gate(tmp_path / "out", "COUNT_GATE"))
    return session


def logs(tmp_path):
    return [path.read_text() for path in (tmp_path / "out").glob("runs/*/train.log")]


def said(tmp_path):
    return (tmp_path / "said").read_text()


def status(session):
    return session.wait(PATIENCE)


def wait_for(what):
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.02)


def alive(session):
    """Processes of a session."""
    command = ["ps", "-s", str(session.pid), "-o", "stat=,pid="]
    words = subprocess.run(command, capture_output=True, text=True).stdout.split()
    return [int(pid) for state, pid in zip(words[::2], words[1::2], strict=True) if state[0] != "Z"]


@pytest.mark.parametrize("number", KILLS)
def test_a_sweep_that_is_killed_goes_on_from_the_hosts_checkpoint(tmp_path, capsys, number):
    first = held(tmp_path, "run=[few]")
    words = [str(tmp_path / "counting.yaml"), "--out", str(tmp_path / "out"), "run=[few]"]
    (folder,) = runs(tmp_path, "few")
    at = f"few seed 0 (step 3 of 12, loss 0.333; {folder / 'train.log'})"
    assert f"Running: {at}" in refused(report.main, capsys, *words)
    for pid in alive(first) if number == signal.SIGKILL else [first.pid]:
        os.kill(pid, number)
    status(first)
    wait_for(lambda: not alive(first))
    assert f"Interrupted: {at}" in refused(report.main, capsys, *words)
    assert status(start(tmp_path, "run=[few]")) == 0
    assert begins(folder) == [0, 3]
    assert score(folder) == "12"
    report.main(words)
    text = (tmp_path / "out" / "counting" / "report" / "table.md").read_text()
    assert "went on from a checkpoint: counting few seed 0." in text


@pytest.mark.parametrize("number", KILLS)
def test_a_test_that_is_killed_shows_no_number_and_is_done_again(tmp_path, capsys, number):
    first = start(tmp_path, "run=[few]", gate="TEST_GATE")
    wait_for(lambda: at_its_gate(tmp_path / "out", "TEST_GATE"))
    for pid in alive(first) if number == signal.SIGKILL else [first.pid]:
        os.kill(pid, number)
    status(first)
    words = [str(tmp_path / "counting.yaml"), "--out", str(tmp_path / "out"), "run=[few]"]
    line = refused(report.main, capsys, *words)
    assert "Interrupted: few seed 0 (trained, in its tests; " in line
    assert status(start(tmp_path, "run=[few]")) == 0
    (folder,) = runs(tmp_path, "few")
    assert (begins(folder), score(folder)) == ([0], "12")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_study_and_a_line_says_how_to_go_on(tmp_path, number):
    (tmp_path / "out of it").symlink_to(tmp_path / "out")
    (tmp_path / "out").mkdir()
    words = ["seeds=[0,1]", "--jobs", "1", "--out", str(tmp_path / "out of it")]
    session = held(tmp_path, *words)
    os.killpg(session.pid, number)  # the terminal's Ctrl-C reaches the group in front
    assert status(session) == 130
    assert not alive(session)
    (log,) = logs(tmp_path)  # the other three runs have not begun
    assert log.endswith("asked to end\n")
    assert "Traceback" not in said(tmp_path)
    assert said(tmp_path).count("the same command goes on") == 1


def test_fresh_loses_nothing_when_it_is_interrupted_and_replaces_when_it_is_done(tmp_path):
    (tmp_path / "gate").touch()
    assert status(start(tmp_path, "run=[few]")) == 0
    (folder,) = runs(tmp_path, "few")
    (tmp_path / "gate").unlink()
    session = start(tmp_path, "run=[few]", "--fresh", said="second")
    wait_for(lambda: (folder / ".fresh" / "train" / "count").exists())
    os.killpg(session.pid, signal.SIGINT)  # while it trains
    assert status(session) == 130
    report.main([str(tmp_path / "counting.yaml"), "--out", str(tmp_path / "out"), "run=[few]"])
    assert (begins(folder), score(folder)) == ([0], "12")
    (tmp_path / "gate").touch()
    assert status(start(tmp_path, "run=[few]", "--fresh", said="third")) == 0
    assert score(folder) == "12"
    assert begins(folder)[0] == 0
    assert len(begins(folder)) == 2  # the fresh training went on from its third step
    assert not (folder / ".fresh").exists()


JOB = """
import signal, sys
from pathlib import Path
from cape_studies import process
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(-1))  # as submitit's, before a requeue
polite = "trap 'exit 0' TERM; echo ready $$; while :; do sleep 0.1; done"
log = Path(sys.argv[1])
with process.locked(log.with_name("lock")) as lock:
    process.call(["sh", "-c", polite], log, [lock])
"""


def test_a_job_of_slurm_ends_its_trainer(tmp_path):
    log = tmp_path / "log"
    job = subprocess.Popen([sys.executable, "-c", JOB, log], start_new_session=True)
    sessions.append(job)
    wait_for(lambda: log.exists() and "\nready " in log.read_text())
    job.send_signal(signal.SIGUSR2)
    assert status(job) == 255
    wait_for(lambda: not alive(job))  # nor a sleep of the trainer's


def test_a_trainer_that_outlived_its_job_is_waited_for_and_ctrl_c_ends_that(tmp_path):
    first = held(tmp_path, "run=[few]")
    first.kill()
    status(first)
    second = start(tmp_path, "run=[few]")
    wait_for(lambda: "counting few seed 0: " in said(tmp_path))
    second.send_signal(signal.SIGINT)
    assert status(second) == 130
    third = start(tmp_path, "run=[few]")
    wait_for(lambda: "counting few seed 0: " in said(tmp_path))
    (tmp_path / "gate").touch()
    assert status(third) == 0
    (folder,) = runs(tmp_path, "few")
    assert begins(folder) == [0, 12]  # the third found all counted


def test_two_calls_at_once_train_once_and_both_are_done(tmp_path):
    first = held(tmp_path, "run=[few]")
    (tmp_path / "both.yaml").write_text("studies: [counting]")
    second = start(tmp_path, "run=[few]", name="both")
    wait_for(lambda: f"waiting for process {first.pid} on " in said(tmp_path))
    (tmp_path / "gate").touch()
    assert [status(first), status(second)] == [0, 0]
    (folder,) = runs(tmp_path, "few")
    assert (begins(folder), score(folder)) == ([0], "12")


def prepared(tmp_path):
    """What preparations have said."""
    logs = (tmp_path / "out" / "prepared").glob("*.log")
    return "".join(path.read_text() for path in logs)


def preparing(tmp_path):
    """cape-run in a new folder, whose first step waits in the middle."""
    session = start(tmp_path, "run=[few]", prepare=PREPARED)
    wait_for(lambda: "\nstep 3/" in prepared(tmp_path))
    return session


@pytest.mark.release
def test_a_preparation_that_outlived_cape_run_does_not_mix_with_a_new_one(tmp_path):
    first = preparing(tmp_path)
    first.kill()
    status(first)
    second = start(tmp_path, "run=[few]", prepare=PREPARED)
    wait_for(lambda: "preparing " in said(tmp_path))
    time.sleep(1)
    assert prepared(tmp_path).count("begins at") == 1
    (tmp_path / "gate").touch()
    assert status(second) == 0
    assert prepared(tmp_path).count("begins at 0\n") == 2  # it is made anew, from nothing
    assert not alive(first)
    assert prepared(tmp_path).endswith("step 6/6 loss=0.167\n")
