"""Does the steps of a study: each once, by one process at a time.

A command inherits the lock of its log and holds it until it ends, even if its cape-run was killed.
So the next cape-run waits for it. If a signal ended a step, the next cape-run goes on with it.
"""

import errno
import fcntl
import json
import os
import platform
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

import yaml

from cape_studies.experiments import hosts
from cape_studies.experiments.plan import Run, Step

SECONDS_TO_END = 10  # a trainer has them after SIGTERM
SECONDS_TO_HEAR = 1.0  # to receive the signal that ended a trainer, perhaps with status 0
FULL = 2**16  # with fewer free bytes the disk is full


def make(step: Step, run: Run | None = None) -> None:
    """Do a step if it is not done, and write its record.

    Seconds in the record include those of interrupted attempts.

    Args:
        step: to do.
        run: the one that the step belongs to; None for a preparation.

    Raises:
        RuntimeError: the step failed, or ended without its outputs.
        ValueError: its record or an output cannot be read.
        SystemExit: a signal ended it, or this process must end.
    """
    if step.done():
        return
    step.path.parent.mkdir(parents=True, exist_ok=True)
    with locked(step.log) as log:  # waits for another cape-run, or for a command that outlived one
        if step.done():
            return
        record, began = step.record(), time.time()
        if not step.resumes or record.get("inputs", step.inputs) != step.inputs:
            remove(step.path, *step.outputs)
        if "began" not in record:
            record = {"interrupted": 0, "seconds": 0.0}
        else:  # killed: it lived until the log's last line
            record["interrupted"] += 1
            record["seconds"] += max(0.0, step.log.stat().st_mtime - record["began"])
        command = step.command()
        record |= {"command": command, "inputs": step.inputs, "here": _here(run) if run else {}}
        write(step.record_path, {**record, "began": began})
        ended = call(command, step.log, log, gpus=run.setting.machine.gpus if run else 0)
        if step.outputs[0].exists():
            step.finish()
        if missing := [path for path in step.outputs if not path.exists()]:
            raise RuntimeError(f"ended without error, and without {missing[0]} ({step.log})")
        record["seconds"] = round(record["seconds"] + ended - began, 3)
        record.pop("began", None)
        write(step.record_path, {**record, "ended": ended})


def _here(run: Run) -> dict[str, Any]:
    """The facts about code and machine in a record."""
    git = "git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"
    cpu, gpus = Path("/proc/cpuinfo"), run.setting.machine.gpus
    names = re.findall(r"model name\s*: (.*)", cpu.read_text() if cpu.exists() else "")
    processor = names[0] if names else platform.processor()
    gpu = hosts.PYTHON, "-c", "import torch; print(torch.cuda.get_device_name())"
    return {
        "versions": run.settings["versions"],
        "python": platform.python_version(),
        "git_commit": _said(*git) or None,
        "machine": {"host": socket.gethostname(), "processor": processor, "cores": os.cpu_count()},
        "device": f"{gpus} x {_said(*gpu)}" if gpus else "cpu",
        "threads": None if gpus else int(environment(gpus)["OMP_NUM_THREADS"]),
    }


@cache
def _said(*command: str) -> str:
    """The output of a command. It is a process of its own so that it frees a GPU's memory."""
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


_starting = threading.Lock()
_started: set[subprocess.Popen[bytes]] = set()
_ending = threading.Event()


def environment(gpus: int) -> dict[str, str]:
    """The environment of a command. Its output is not buffered. On the CPU it has one thread, which
    suits small models side by side, or the user's ``OMP_NUM_THREADS``."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    threads = threads if threads.isdecimal() else "1"  # OpenMP allows lists too
    own = {} if gpus else {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    return {**os.environ, "PYTHONUNBUFFERED": "1", **own}


def call(command: list[str], path: Path, log: IO[str], gpus: int = 0) -> float:
    """Run a command in a process group of its own, so that Ctrl-C reaches only cape-run.

    Args:
        command: in words.
        path: of the log, to which its output is added.
        log: the log, open for appending; the command inherits its lock.
        gpus: number of GPUs; 0: the CPU.

    Returns:
        the time of its end.

    Raises:
        RuntimeError: the command failed.
        SystemExit: a signal ended it, or this process must end.
    """
    if threading.current_thread() is threading.main_thread():  # a job of SLURM
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("SIGTERM"))
    with _starting:
        if _ending.is_set():
            raise SystemExit("interrupted")
        about = f"# {time.strftime('%F %T %z')}, {socket.gethostname()}\n$ {shlex.join(command)}"
        print(about, file=log, flush=True)
        process = subprocess.Popen(  # type: ignore[call-overload]  # Python 3.11's process_group
            command,
            env=environment(gpus),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        _started.add(process)
    try:
        code, ended = process.wait(), time.time()
        _ending.wait(SECONDS_TO_HEAR)  # SLURM's signal may reach the trainer first
    except BaseException as signalled:  # of a job of SLURM; submitit's own, before a requeue
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        end()
        raise SystemExit(f"interrupted: {signalled}") from signalled
    finally:
        _started.discard(process)
    if code < 0 or _ending.is_set():  # a trainer may end with status 0 when it is asked to
        raise SystemExit(f"{command[0]} was ended by signal {-code if code < 0 else 'SIGTERM'}")
    if code:
        if full(path.parent):  # then its last line may be lost
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path.parent))
        raise RuntimeError(f"exit status {code}, {last_line(path)[:300]} ({path})")
    return ended


def end() -> None:
    """End what :func:`call` started, by SIGTERM, then by SIGKILL; nothing starts any more."""
    with _starting:
        _ending.set()
        there = list(_started)
    for process in there:
        process.terminate()
    limit = time.monotonic() + SECONDS_TO_END
    for process in there:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, limit - time.monotonic()))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and the processes that it started


@contextmanager
def locked(path: Path) -> Iterator[IO[str]]:
    """Hold a file's lock; gives the file, open for appending; a command can inherit the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def held(path: Path) -> bool:
    """Whether anything holds a file's lock."""
    with suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def last_line(log: Path) -> str:
    """The last line of a log that says something: a bar's last state counts, Hydra's hint not."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").replace("\r", "\n").splitlines()
    told = (line.strip() for line in reversed(lines) if "HYDRA_FULL_ERROR=1" not in line)
    return next(filter(None, told), "")


def full(folder: Path) -> bool:
    """Whether a folder's disk is full."""
    return shutil.disk_usage(folder).free < FULL


def remove(*paths: Path) -> None:
    """Remove files, links and folders, those that exist."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def write(path: Path, content: str | dict[str, Any]) -> None:
    """Replace a file in one move, so nobody reads half of it; mappings become JSON or YAML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        content = json.dumps(content, indent=2) + "\n"
    elif path.suffix == ".yaml":
        content = str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    part = _part(path)
    try:
        part.write_text(str(content), encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)  # of a full disk


def link(path: Path, target: Path) -> None:
    """Make or replace a relative link at ``path``: both places can move together."""
    part = _part(path)
    part.symlink_to(os.path.relpath(target, path.parent))
    os.replace(part, path)


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
