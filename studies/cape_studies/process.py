"""Commands that outlive nothing: each holds a lock, is ended by signals, and is called once.

A command inherits the lock that its cape-run holds, and keeps it until it ends, even if cape-run is
killed. So the next cape-run waits for it, and two never write into one folder. (Libraries of locks
have none that a child inherits.)
"""

import fcntl
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil
import yaml

SECONDS_TO_END = 10.0  # a command has them after SIGTERM
SECONDS_TO_HEAR = 1.0  # to receive the signal that ended a trainer, perhaps with status 0
LINES = 5  # of a failed command's log are shown
FULL = 2**16  # with fewer free bytes the disk is full


class Failed(RuntimeError):
    """A command ended with a status other than 0; ``status`` has it."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class Used(NamedTuple):
    """What a command took: seconds, and the most memory that a process had, in megabytes."""

    seconds: float
    memory_mb: float


_starting = threading.Lock()
_started: set[int] = set()  # groups of processes
_ending = threading.Event()


@contextmanager
def locked(path: Path) -> Iterator[IO[str]]:
    """Hold a file's lock, which waits for those who hold it; gives the file, for :func:`call`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _note(file)
        yield file


def _note(file: IO[str], *groups: int) -> None:
    """Say in a lock who holds it, for :func:`cancel`: this process, and what it started."""
    file.seek(0)
    file.truncate()
    print(socket.gethostname(), os.getpid(), *groups, file=file, flush=True)


def held(path: Path) -> bool:
    """Whether anything holds a file's lock."""
    with suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def cancel(path: Path) -> int:
    """Ask those of this machine that hold a lock to end; returns their number.

    cape-run comes first, as to it a trainer that somebody else ended may seem to be done.
    """
    if not held(path):
        return 0
    host, *pids = path.read_text().split()
    ended = 0
    noted = path.stat().st_mtime + 1.0
    for i, pid in enumerate(map(int, pids if host == socket.gethostname() else ())):
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if psutil.Process(pid).create_time() <= noted:  # else its number has a new owner
                (os.killpg if i else os.kill)(pid, signal.SIGTERM)
                ended += 1
    return ended


def environment(gpus: int) -> dict[str, str]:
    """The environment of a command. Its output is not buffered. On the CPU it has one thread, which
    suits small models side by side, or the user's ``OMP_NUM_THREADS``."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    threads = threads if threads.isdecimal() else "1"  # OpenMP allows lists too
    own = {} if gpus else {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    return {**os.environ, "PYTHONUNBUFFERED": "1", **own}


def call(command: Sequence[str], log: Path, lock: IO[str], gpus: int = 0) -> Used:
    """Run a command in a process group of its own, so that Ctrl-C reaches only cape-run.

    Args:
        command: in words.
        log: file that its output is added to.
        lock: of :func:`locked`; the command inherits it.
        gpus: number of GPUs; 0: the CPU.

    Raises:
        Failed: the command failed; says its last lines.
        OSError: so it did, and the disk is full.
        SystemExit: a signal ended it, or this process must end.
    """
    if threading.current_thread() is threading.main_thread():  # a job of SLURM
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("SIGTERM"))
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with _starting, log.open("a") as file:
        if _ending.is_set():
            raise SystemExit("interrupted")
        about = f"# {time.strftime('%F %T %z')}, {socket.gethostname()}\n$ {shlex.join(command)}"
        print(about, file=file, flush=True)
        process = subprocess.Popen(  # type: ignore[call-overload]  # Python 3.11's process_group
            command,
            env=environment(gpus),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            pass_fds=[lock.fileno()],
            process_group=0,
        )
        _started.add(process.pid)
    _note(lock, process.pid)
    try:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        _ending.wait(SECONDS_TO_HEAR)  # SLURM's signal may reach the trainer first
    except BaseException as signalled:  # of a job of SLURM; submitit's own, before a requeue
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        _ending.set()
        _end([process.pid], lambda: _reaped(process.pid))
        raise SystemExit(f"interrupted: {signalled}") from signalled
    finally:
        _started.discard(process.pid)
        _note(lock)
    code = process.returncode
    if code < 0 or _ending.is_set():  # a trainer may end with status 0 when it is asked to
        raise SystemExit(f"{command[0]} was ended by signal {-code if code < 0 else 'SIGTERM'}")
    if code:
        said = "\n".join(last_lines(log))
        if shutil.disk_usage(log.parent).free < FULL or "No space left on device" in said:
            raise OSError(f"the disk of {log.parent} is full")
        raise Failed(f"exit status {code}:\n{said}\n({log})", code)
    return Used(seconds, megabytes(used.ru_maxrss))


def megabytes(maximum: int) -> float:
    """Of ``ru_maxrss``, which macOS tells in bytes and Linux in kilobytes."""
    return maximum / (2**20 if sys.platform == "darwin" else 2**10)


def end() -> None:
    """End what :func:`call` started in other threads; nothing starts any more."""
    with _starting:
        _ending.set()
        groups = set(_started)
    _end(groups, lambda: not groups & _started)


def _end(groups: Collection[int], ended: Callable[[], bool]) -> None:
    """By SIGTERM, then by SIGKILL."""
    for number, seconds in ((signal.SIGTERM, SECONDS_TO_END), (signal.SIGKILL, 1.0)):
        for group in groups:  # and the processes that it started
            with suppress(ProcessLookupError):
                os.killpg(group, number)
        limit = time.monotonic() + seconds
        while not ended() and time.monotonic() < limit:
            time.sleep(0.05)


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def last_lines(log: Path) -> list[str]:
    """The last lines of a log that say something: a bar's last state counts, Hydra's hint not."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 8192))
        text = file.read().decode(errors="replace").replace("\r", "\n")
    said = [line.rstrip()[:300] for line in text.splitlines() if "HYDRA_FULL_ERROR=1" not in line]
    return [line for line in said if line.strip()][-LINES:]


def remove(*paths: Path) -> None:
    """Remove files, links and folders, those that exist."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def write(path: Path, content: str | dict[str, Any]) -> None:
    """Replace a file in one move, so nobody reads half of it; a mapping becomes YAML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, str):
        content = str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        part.write_text(content, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)  # of a full disk
