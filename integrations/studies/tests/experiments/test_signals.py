"""``cape-run`` ended by signals, watched and cancelled from elsewhere, and side by side."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml

pytest.importorskip("exca")

from counting import STUDY, begins, runs, scores

from cape_studies.experiments import run, steps


def fork(function, *arguments):
    """Calls it in a child process; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        function(*arguments)
        code = 0
    finally:
        os._exit(code)


def status(pid):
    """Wait for the end of a child."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# --- sweeps in sessions of their own, ended by signals or side by side

PAUSE = 0.15  # seconds a step


def start(tmp_path, *arguments, **changes):
    """cape-run as the first process of a session; returns its pid."""
    content = {**STUDY, "options": {"steps": 12, "pause": PAUSE}, **changes}
    (tmp_path / "new.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "new.yaml").replace(tmp_path / "counting.yaml")  # another session may read it
    words = [str(tmp_path / "counting.yaml"), "--out", str(tmp_path / "out"), *arguments]

    def session():
        os.setsid()
        os.dup2(os.open(tmp_path / "said", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
        sys.stderr = os.fdopen(2, "w")
        run.main(words)

    return fork(session)


def wait_for(what):
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.02)


def counted(tmp_path):
    found = list((tmp_path / "out").glob("counting/runs/*/train/count"))
    return int(found[0].read_text()) if found else 0


def alive(session, but="\0"):
    """Processes of a session whose command line does not have a word."""
    command = ["ps", "-ww", "-s", str(session), "-o", "pid=,stat=,args="]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    found = [line.split(maxsplit=2) for line in lines]
    return [int(pid) for pid, state, args in found if state[0] != "Z" and but not in args]


def kill(session, number=signal.SIGKILL, but="\0"):
    """End them; waits for their end."""
    for pid in alive(session, but):
        os.kill(pid, number)
    status(session)
    wait_for(lambda: not alive(session, but))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_sweep_that_is_killed_goes_on_from_the_hosts_checkpoint(tmp_path, number):
    first = start(tmp_path, "--variants", "few")
    wait_for(lambda: counted(tmp_path) >= 3)
    kill(first, number)
    reached = counted(tmp_path)
    assert reached < 12
    assert status(start(tmp_path, "--variants", "few")) == 0
    (folder,) = runs(tmp_path, "few")
    assert begins(folder) == [0, reached]
    assert scores(folder)["short"]["value"] == "12.0"
    record = json.loads((folder / "record.json").read_text())["train"]
    assert record["interrupted"] == 1
    assert record["seconds"] > 12 * PAUSE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_study_at_once_and_a_line_says_how_to_go_on(tmp_path, number):
    long = {"steps": 100, "pause": PAUSE}  # the first of four runs is not done before the signal
    session = start(tmp_path, "--seeds", "0", "1", "--jobs", "1", options=long)
    wait_for(lambda: counted(tmp_path) >= 2)
    began = time.monotonic()
    os.killpg(session, number)  # the terminal's Ctrl-C reaches the group in front
    assert status(session) == 130
    assert time.monotonic() - began < 5
    assert not alive(session)
    assert len(list((tmp_path / "out").glob("counting/runs/*/train.log"))) == 1
    said = (tmp_path / "said").read_text()
    assert said.count("\n") == 1
    assert "the same command goes on" in said


def test_status_and_cancel_from_another_terminal(tmp_path, capsys):
    words = [str(tmp_path / "counting.yaml"), "--out", str(tmp_path / "out")]
    session = start(tmp_path)
    wait_for(lambda: counted(tmp_path) >= 2)
    run.main([*words, "--status"])
    few, many = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"counting/runs/few-seed0-\w+: running train: step \d+/12 loss=.*", few)
    assert re.fullmatch(r"counting/runs/many-seed0-\w+: waiting", many)
    run.main([*words, "--cancel"])
    assert status(session) == 130
    assert not alive(session)
    said = capsys.readouterr().out
    assert re.match("[12] processes and 0 jobs of SLURM ended", said)
    assert ": interrupted\n" in said


def test_cancel_ends_a_trainer_that_outlived_its_job_and_jobs_of_slurm(
    tmp_path, capsys, monkeypatch
):
    session = start(tmp_path, "--variants", "few")
    wait_for(lambda: counted(tmp_path) >= 2)
    kill(session, but="count.py --")
    (tmp_path / "scancel").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/cancelled\n')
    (tmp_path / "scancel").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (runs(tmp_path, "few")[0] / ".slurm").write_text("123_4")
    run.main([str(tmp_path / "counting.yaml"), "--out", str(tmp_path / "out"), "--cancel"])
    assert not alive(session)
    assert capsys.readouterr().out.startswith("1 processes and 1 jobs of SLURM ended")
    assert (tmp_path / "cancelled").read_text() == "123_4\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_job_of_slurm_ends_its_trainer(tmp_path, number):
    def job():
        os.setsid()
        signal.signal(signal.SIGUSR2, lambda *_: sys.exit(-1))  # as submitit's, before a requeue
        steps.call(["sleep", "60"], tmp_path / "log")

    session = fork(job)
    wait_for(lambda: len(alive(session)) == 2)
    os.kill(session, number)
    assert status(session) == 1
    assert not alive(session)


def test_a_trainer_that_outlived_its_job_is_waited_for(tmp_path):
    first = start(tmp_path, "--variants", "few")
    wait_for(lambda: counted(tmp_path) >= 2)
    kill(first, but="count.py --")
    assert status(start(tmp_path, "--variants", "few")) == 0
    (folder,) = runs(tmp_path, "few")
    assert begins(folder) == [0, 12]  # the second found all counted


def test_two_sweeps_at_once_train_once(tmp_path):
    both = [start(tmp_path, "--variants", "few", options={"steps": 4}) for _ in range(2)]
    assert [status(one) for one in both] == [0, 0]
    (folder,) = runs(tmp_path, "few")
    assert begins(folder) == [0]
    assert scores(folder)["short"]["value"] == "4.0"


def test_two_sweeps_at_once_list_the_runs_of_both(tmp_path):
    shorter = {"options": {"steps": 6, "pause": PAUSE}}
    first = start(tmp_path, "--variants", "few", "--seeds", "7", **shorter)
    wait_for(lambda: (tmp_path / "out" / "counting" / "study.yaml").exists())
    second = start(tmp_path, "--variants", "many", "--seeds", "8", **shorter)
    assert [status(first), status(second)] == [0, 0]
    study = yaml.safe_load((tmp_path / "out" / "counting" / "study.yaml").read_text())
    both = [*runs(tmp_path, "few"), *runs(tmp_path, "many")]
    assert study["runs"] == [folder.name for folder in both]
