"""Commands in process groups of their own, each with the locks of the folders that it uses.

A command inherits the locks that its cape-run holds, and keeps them until it ends, even if cape-run
is killed. So the next cape-run waits for it, and two never write into one folder. (Libraries of
locks have none that a child inherits.)
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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import yaml
from tqdm import tqdm

SECONDS_TO_END = 10.0  # a command has them after SIGTERM
LINES = 5  # of a failed command's log are shown
TAIL = 20_000  # bytes of a log that are looked at

_starting = threading.Lock()
_running: set[subprocess.Popen[str]] = set()
_ending = threading.Event()


class Failed(RuntimeError):
    """A step failed. ``why`` are lines, the last of which says it; ``log`` has more."""

    def __init__(self, why: Sequence[str], log: Path) -> None:
        self.why, self.log = [*why], log
        super().__init__("\n".join([*why, str(log)]))

    @property
    def line(self) -> str:
        """It in a line."""
        return f"{self.why[-1]} ({self.log})"

    def saying(self, before: str = "", then: str = "") -> "Failed":
        """The same, with more words in its last line."""
        return Failed([*self.why[:-1], f"{before}{self.why[-1]}{then}"], self.log)


@contextmanager
def locked(path: Path) -> Iterator[IO[str]]:
    """Hold a file's lock, and give the file, for :func:`call`. Who must wait for others says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    own = f"process {os.getpid()} on {socket.gethostname()}"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who, _, command = file.read().partition("\t")
            who = "another run of this command" if who == own else f"{who}, or what it started"
            what = path.parent if path.name == ".lock" else path.with_suffix("")
            say(f"waiting for {who}: {command}, which uses {what}")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        print(own, command, sep="\t", end="", file=file, flush=True)
        yield file


def is_locked(path: Path) -> bool:
    """Whether somebody holds a file's lock."""
    with suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def say(line: str) -> None:
    """Print above a terminal's bar, in one write, as runs print at the same time."""
    tqdm.write(f"{line}\n", file=sys.stdout, end="")
    sys.stdout.flush()


def start(command: Sequence[str], gpus: int, **about: Any) -> subprocess.Popen[str]:
    """Start a command in a process group of its own, so that Ctrl-C reaches only cape-run.

    On the CPU it has one thread, which suits small models side by side, or ``OMP_NUM_THREADS``.
    """
    own = {} if gpus else {"OMP_NUM_THREADS": "1"}
    env = {**own, **os.environ, "PYTHONUNBUFFERED": "1"}
    about |= {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "text": True}
    about["process_group"] = 0  # Python 3.11's
    return subprocess.Popen(command, env=env, **about)


def call(command: Sequence[str], log: Path, locks: Sequence[IO[str]], gpus: int = 0) -> float:
    """Run a command to its end and return the seconds that it took.

    Args:
        command: in words.
        log: file that its output is added to.
        locks: of :func:`locked`; the command inherits them.
        gpus: number of GPUs; 0: the CPU.

    Raises:
        Failed: the command failed, or a signal ended it; says its last lines.
        SystemExit: this process must end.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with _starting, log.open("a") as file:
        if _ending.is_set():
            raise SystemExit("interrupted")
        about = f"# {time.strftime('%F %T %z')}, {socket.gethostname()}\n$ {shlex.join(command)}"
        print(about, file=file, flush=True)
        process = start(command, gpus, stdout=file, pass_fds=[one.fileno() for one in locks])
        _running.add(process)
    try:
        code = process.wait()
    except BaseException:  # a signal to a job of SLURM
        _end([process])
        raise
    finally:
        _running.discard(process)
    if _ending.is_set():  # a trainer may end with status 0 when it is asked to
        raise SystemExit("interrupted")
    if code:
        shown = [line.rstrip()[:300] for line in last_lines(log)[-LINES:]]
        number = -code if code < 0 else code - 128  # a shell's, or torchrun's
        if number in {one.value for one in signal.Signals}:
            memory = ", perhaps for memory" if number == signal.SIGKILL else ""
            raise Failed([*shown, f"killed by {signal.Signals(number).name}{memory}"], log)
        raise Failed([f"exit status {code}", *shown], log)
    return time.monotonic() - began


def end() -> None:
    """End what :func:`call` started in other threads; nothing starts any more."""
    with _starting:
        _ending.set()
        running = [*_running]
    _end(running)


def _end(running: Iterable[subprocess.Popen[str]]) -> None:
    """By SIGTERM, and by SIGKILL what is left of them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        limit = time.monotonic() + SECONDS_TO_END
        for process in running:
            with suppress(ProcessLookupError):  # all of the group have ended
                os.killpg(process.pid, number)
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0, limit - time.monotonic()))


def last_lines(log: Path) -> list[str]:
    """The lines that the last command of a log wrote, those that say something, of the log's last
    bytes; each state of a progress bar is a line.

    Raises:
        OSError: there is no such file.
    """
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL))
        text = file.read().decode(errors="replace")
    # what comes first is the command itself, or half a line
    return [line for line in text.rpartition("\n$ ")[2].splitlines()[1:] if line.strip()]


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
    part.write_text(content, encoding="utf-8")
    os.replace(part, path)
