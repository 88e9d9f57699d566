"""The steps of a study as exca's: each is done once for its key, by one process at a time.

A run is one job, of training and evaluations, which are cached one by one. What a signal ended is
not cached: the next ``cape-run`` goes on from the host's checkpoint.
"""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import submitit
import yaml
from exca.steps import Step
from exca.steps.backends import Backend

from cape_studies.experiments import hosts, scores
from cape_studies.experiments.plan import Preparation, Run
from cape_studies.experiments.study import merge, one_line, places_in, read_yaml

SECONDS_TO_END = 10  # that a trainer has after SIGTERM
SECONDS_TO_HEAR = 1.0  # the signal that has ended a trainer, perhaps with status 0


class Prepare(Step):
    """Makes a folder that the runs share; the item is a :class:`Preparation`."""

    def item_uid(self, value: Preparation) -> str:
        """See exca."""
        return value.key

    def _run(self, step: Preparation) -> str:
        shutil.rmtree(step.folder, ignore_errors=True)  # what an interrupted one left
        step.folder.parent.mkdir(parents=True, exist_ok=True)
        call(step.command, step.folder.with_name(f"{step.folder.name}.log"))
        return str(step.folder)


class Train(Step):
    """Trains, or goes on; the item is a :class:`Run`. Gives its folder, relative to ``out``."""

    def item_uid(self, value: Run) -> str:
        """See exca."""
        return value.key

    def _run(self, run: Run) -> str:
        about = {"study": run.study.name, "variant": run.variant, **run.settings}
        write(run.folder / "settings.yaml", about)
        log = work(run, "train", lambda: run.train_command).read_text(errors="replace")
        found = hosts.measured(run.study, merge(run.settings["recipe"], run.options), log)
        metrics = pd.DataFrame(found, columns=["step", "epoch", "name", "value"])
        metrics = metrics.drop_duplicates(["step", "epoch", "name"], keep="last")
        write(run.folder / "metrics.csv", metrics.sort_values("step").to_csv(index=False))
        return str(run.folder.relative_to(run.setting.out))


class Evaluate(Step):
    """One evaluation; the item is the run and its name. Gives tidy rows."""

    def item_uid(self, value: tuple[Run, str]) -> str:
        """See exca."""
        return value[0].evaluation_keys[value[1]]

    def _run(self, value: tuple[Run, str]) -> list[dict[str, Any]]:
        (run, name), host = value, value[0].study.host
        one = run.evaluations[name]
        if one.command == "training":
            return scores.tidy(one, host, run.folder / "metrics.csv")
        whole = one.script is not None and "checkpoint" not in places_in(one.options)
        folder = (run.folder / "train").resolve()  # of another run, if that has trained it
        needed = folder / ("" if whole else run.checkpoint)
        if not needed.exists():
            raise RuntimeError(f"{needed} is deleted: without {folder.parent} it is trained anew")
        work(run, f"evaluate-{name}", lambda: run.evaluation_command(name))
        raw = run.csv(name, "items-raw")
        if raw.exists():
            write(run.csv(name, "items"), scores.items(one, host, raw).to_csv(index=False))
            raw.unlink()
        return scores.tidy(one, host, run.csv(name))


class Whole(Step):
    """A run's training and evaluations, in one job; writes its ``scores.csv``."""

    def item_uid(self, value: Run) -> str:
        """See exca."""
        return "-".join([value.folder.name, *value.evaluation_keys.values()])

    def _run(self, run: Run) -> str:
        failed = run.folder / "failed"
        failed.unlink(missing_ok=True)
        try:
            table = self._scores(run)
        except Exception as error:
            write(failed, one_line(error))
            raise
        write(run.folder / "scores.csv", table.to_csv(index=False))
        return run.folder.name

    def _scores(self, run: Run) -> pd.DataFrame:
        assert self.infra is not None
        inside = self.infra.derive("Cached")
        for each in (run.start, run):
            if each is not None:
                share(each, Train(infra=inside).run(each))
        study = run.study
        about = {"study": study.name, "host": study.host, "variant": run.variant, "seed": run.seed}
        table = pd.DataFrame(
            {**about, **row, "evaluation": name}
            for name in run.evaluations
            for row in Evaluate(infra=inside).run((run, name))
        )
        own = study.variants[run.variant].trained_on
        seen = study.report.trained_on if own is None else own
        table["trained_on"] = table["condition"].isin(seen)
        return table[scores.TIDY]


def share(run: Run, trained: str) -> None:
    """Point a run's folder to the same training in another's: another study's or variant's."""
    other = run.setting.out / trained
    if other == run.folder:
        return
    run.folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "train.log", "metrics.csv", "settings.yaml"):
        with suppress(FileExistsError):
            (run.folder / name).symlink_to(os.path.relpath(other / name, run.folder))
    if not (run.folder / "record.json").exists():
        write(run.folder / "record.json", {**read_record(other), "trained_in": trained})


def forget(run: Run, infra: Backend) -> None:
    """Take out of the cache what of a run has been deleted since."""
    train = Train(infra=infra).lookup(run)
    found = [(Whole(infra=infra).lookup(run), run.folder / "scores.csv")]
    if train.status == "success":
        found.append((train, run.setting.out / train.result()))
    for name, one in run.evaluations.items():
        file = run.folder if one.command == "training" else run.csv(name)
        found.append((Evaluate(infra=infra).lookup((run, name)), file))
    for entry, path in found:
        if entry.status == "success" and not path.exists():
            entry.clear_cache()


def work(run: Run, step: str, command: Callable[[], list[str]]) -> Path:
    """Run a step's command, alone in the run's folder, and note it in record.json.

    Seconds are those of interrupted attempts too. The command is made when it starts: what to go
    on from may come until then. Gives the log, which is named after the step.

    Raises:
        RuntimeError, SystemExit: see :func:`call`.
    """
    with locked(run.folder / ".lock") as lock:  # waits for a trainer that outlived its job
        log, began = run.folder / f"{step}.log", time.time()
        record = {**read_record(run.folder), **_here(run)}
        one = record.get(step) or {"interrupted": 0, "seconds": 0.0}
        if "began" in one and log.exists():  # killed: it lived until the log's last line
            one["interrupted"] += 1
            one["seconds"] += max(0.0, log.stat().st_mtime - one["began"])
        record[step] = one | {"command": command(), "began": began}
        write(run.folder / "record.json", record)
        ended = call(record[step]["command"], log, run, lock)
        seconds = one["seconds"] + ended - record[step].pop("began")
        record[step]["seconds"] = round(seconds, 3)
        write(run.folder / "record.json", record)
    return log


def _here(run: Run) -> dict[str, Any]:
    """What a record says about code and machine."""
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
    }


@cache
def _said(*command: str) -> str:
    """What a command prints; a process of its own gives the memory of a GPU back."""
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


_starting = threading.Lock()
_started: set[subprocess.Popen[bytes]] = set()
_ending = threading.Event()


def call(command: list[str], log: Path, run: Run | None = None, lock: int | None = None) -> float:
    """Run a command; its whole output is added to the log. Gives the time of its end.

    It is the first of a group of processes, so that Ctrl-C reaches cape-run alone. For a run on the
    CPU it gets one thread, as small models side by side want; it shares the run's lock.

    Raises:
        RuntimeError: it failed.
        SystemExit: a signal ended it, or this process is to end.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if run is None or not run.setting.machine.gpus:
        environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if any(hosts.HEAD in word for word in command):
        head = submitit.JobEnvironment().hostnames[0]
        command = [word.replace(hosts.HEAD, head) for word in command]
    if threading.current_thread() is threading.main_thread():  # a job of SLURM
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("SIGTERM"))
    with _starting, log.open("a") as file:
        if _ending.is_set():
            raise SystemExit("interrupted")
        about = f"# {time.strftime('%F %T %z')}, {socket.gethostname()}\n$ {shlex.join(command)}"
        print(about, file=file, flush=True)
        process = subprocess.Popen(  # type: ignore[call-overload]  # Python 3.11's process_group
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            pass_fds=() if lock is None else (lock,),
            process_group=0,
        )
        _started.add(process)
    try:
        if run is not None:
            told = f"{socket.gethostname()} {os.getpid()} {process.pid}"
            (run.folder / ".lock").write_text(told)
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
        raise RuntimeError(f"exit status {code}, {last_line(log)[:300]} ({log})")
    return ended


def end() -> None:
    """End what :func:`call` started in this process, politely at first; nothing starts any more."""
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
            os.killpg(process.pid, signal.SIGKILL)  # and what it started


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold a lock file, which tells who; gives its descriptor, which a child may share."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        path.write_text(f"{socket.gethostname()} {os.getpid()}")
        yield file.fileno()


def holder(path: Path) -> list[str] | None:
    """Host, process and perhaps its trainer that hold a lock file; None where nothing holds it."""
    with suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read().split()  # nothing, while it is being written
    return None


def state(folder: Path) -> str:
    """In words, what a run's folder tells."""
    failed = folder / "failed"
    if holder(folder / ".lock") is not None:
        logs = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
        return f"running {logs[-1].stem}: {last_line(logs[-1])[:100]}" if logs else "running"
    if failed.exists():
        return f"failed: {failed.read_text()}"
    if (folder / "scores.csv").exists():
        return "done"
    steps = read_record(folder).values()
    begun = any(isinstance(step, dict) and "began" in step for step in steps)
    return "interrupted" if begun else "waiting"


def last_line(log: Path) -> str:
    """The last line of a log that is not empty; a progress bar's last state."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").replace("\r", "\n").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def read_record(folder: Path) -> dict[str, Any]:
    """What a run's folder tells about its making; ValueError where it cannot be read."""
    path = folder / "record.json"
    return read_yaml(path) if path.exists() else {}  # which JSON is


def write(path: Path, content: str | dict[str, Any]) -> None:
    """Replace a file at once, no reader finds half of it; a mapping is written as JSON or YAML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        content = json.dumps(content, indent=2) + "\n"
    elif path.suffix == ".yaml":
        content = str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    part.write_text(str(content), encoding="utf-8")
    os.replace(part, path)
