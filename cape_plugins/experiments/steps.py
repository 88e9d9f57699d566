"""The steps of a study as exca's: each is done once for its key, by one process at a time.

A run is one job, of training and evaluations, which are cached one by one. What a signal ended is
not cached: the next ``cape-run`` goes on from the host's checkpoint.
"""

import fcntl
import json
import os
import platform
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import submitit
import yaml
from exca.steps import Step
from exca.steps.backends import Backend

from cape_plugins.experiments import hosts, scores
from cape_plugins.experiments.plan import Preparation, Run
from cape_plugins.experiments.study import merge


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
        run.folder.mkdir(parents=True, exist_ok=True)
        with (run.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # waits for a trainer that outlived its job
            about = {"study": run.study.name, "variant": run.variant, **run.settings}
            text = yaml.safe_dump(about, sort_keys=False, allow_unicode=True)
            (run.folder / "settings.yaml").write_text(text, encoding="utf-8")
            with recorded(run, "train", run.train_command) as command:
                call(command, run.folder / "train.log", run, keep=lock.fileno())
        write_metrics(run)
        return str(run.folder.relative_to(run.setting.out))


class Evaluate(Step):
    """One evaluation; the item is the run and its name. Gives tidy rows."""

    def item_uid(self, value: tuple[Run, str]) -> str:
        """See exca."""
        return value[0].evaluation_keys[value[1]]

    def _run(self, value: tuple[Run, str]) -> list[dict[str, Any]]:
        (run, name), host = value, value[0].study.host
        one, command = run.evaluations[name], run.evaluation_command(name)
        if not command:
            return scores.tidy(one, host, run.folder / "metrics.csv")
        with recorded(run, f"evaluate-{name}", command):
            call(command, run.folder / f"evaluate-{name}.log", run)
        raw = run.csv(name, "items-raw")
        if raw.exists():
            scores.items(one, host, raw, run.csv(name, "items"))
            raw.unlink()
        return scores.tidy(one, host, run.csv(name))


class Whole(Step):
    """A run's training and evaluations, in one job; writes its ``scores.csv``."""

    def item_uid(self, value: Run) -> str:
        """See exca."""
        return "-".join([value.folder.name, *value.evaluation_keys.values()])

    def _run(self, run: Run) -> str:
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
        table[scores.TIDY].to_csv(run.folder / "scores.csv", index=False)
        return run.folder.name


def share(run: Run, trained: str) -> None:
    """Point a run's folder to the same training in another's: another study's or variant's."""
    other = run.setting.out / trained
    if other == run.folder:
        return
    run.folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "train.log", "metrics.csv", "settings.yaml"):
        if not (run.folder / name).exists():
            (run.folder / name).symlink_to(os.path.relpath(other / name, run.folder))
    if not (run.folder / "record.json").exists():
        write_record(run, {**read_record(other), "trained_in": trained})


def forget(run: Run, infra: Backend, everything: bool) -> None:
    """Take a run out of the cache: what has been deleted since, or everything, files too."""
    train = Train(infra=infra).lookup(run)
    found = [(Whole(infra=infra).lookup(run), run.folder / "scores.csv")]
    for name, one in run.evaluations.items():
        file = run.folder if one.command == "training" else run.csv(name)
        found.append((Evaluate(infra=infra).lookup((run, name)), file))
    if train.status == "success":
        found.append((train, run.setting.out / train.result()))
    if everything:
        shutil.rmtree(run.folder, ignore_errors=True)
    for one_found, path in found:
        if everything or (one_found.status == "success" and not path.exists()):
            one_found.clear_cache()


def call(command: list[str], log: Path, run: Run | None = None, keep: int | None = None) -> None:
    """Run a command; its whole output is added to the log.

    Args:
        command: as typed.
        log: file.
        run: that it is for; on the CPU it gets one thread, as small models side by side want.
        keep: a file descriptor that it shares.

    Raises:
        RuntimeError: it failed.
        SystemExit: a signal ended it, or this job.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if run is None or not run.setting.machine.gpus:
        environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if any(hosts.HEAD in word for word in command):
        head = submitit.JobEnvironment().hostnames[0]
        command = [word.replace(hosts.HEAD, head) for word in command]
    with log.open("a") as file:
        about = f"# {time.strftime('%F %T %z')}, {socket.gethostname()}\n$ {shlex.join(command)}"
        print(about, file=file, flush=True)
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            pass_fds=() if keep is None else (keep,),
        )
        asked: list[int] = []  # to end: a trainer may do so with status 0
        before = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
        try:
            code = process.wait()
        except BaseException as error:  # the job's end, by SLURM or the keyboard
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
            raise SystemExit(f"interrupted: {error}") from error
        finally:
            signal.signal(signal.SIGTERM, before)
    if code < 0 or asked:
        raise SystemExit(f"{command[0]} was ended by signal {-code or asked[0]}")
    if code:
        last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1]
        raise RuntimeError(f"exit status {code}, {last.strip()[:300]} ({log})")


def read_record(folder: Path) -> dict[str, Any]:
    """What a run's folder tells about its making."""
    path = folder / "record.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write_record(run: Run, record: dict[str, Any]) -> None:
    """Replace it at once: no reader finds half of it."""
    part = run.folder / "record.json.part"
    part.write_text(json.dumps(record, indent=2) + "\n")
    part.replace(run.folder / "record.json")


@contextmanager
def recorded(run: Run, step: str, command: list[str]) -> Iterator[list[str]]:
    """Note a command, where it runs and its seconds, those of interrupted ones included."""
    git = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
    ]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    cpu = Path("/proc/cpuinfo")
    names = [line for line in cpu.open() if line.startswith("model name")] if cpu.exists() else []
    processor = names[0].split(":")[1].strip() if names else platform.processor()
    gpus, device = run.setting.machine.gpus, "cpu"
    if gpus:
        import torch

        device = f"{gpus} x {torch.cuda.get_device_name()}"
    record = {
        **read_record(run.folder),
        "versions": run.settings["versions"],
        "python": platform.python_version(),
        "git_commit": commit or None,
        "machine": {"host": socket.gethostname(), "processor": processor, "cores": os.cpu_count()},
        "device": device,
    }
    one = record.get(step) or {"interrupted": 0, "seconds": 0.0}
    began, log = time.time(), run.folder / f"{step}.log"
    if "began" in one and log.exists():  # killed: it lived until the log's last line
        one["interrupted"] += 1
        one["seconds"] += max(0.0, log.stat().st_mtime - one["began"])
    record[step] = one | {"command": command, "began": began}
    write_record(run, record)
    yield command
    record[step]["seconds"] = round(one["seconds"] + time.time() - record[step].pop("began"), 3)
    write_record(run, record)


def progress(run: Run) -> tuple[list[hosts.Progress], int | None]:
    """What the training's log tells; see :func:`hosts.progress`."""
    log = run.folder / "train.log"
    text = log.read_text(errors="replace") if log.exists() else ""
    return hosts.progress(run.study, merge(run.settings["recipe"], run.options), text)


def state(run: Run) -> tuple[int, int | None, str]:
    """Updates done, of how many, and in words what a run is doing."""
    lines, of = progress(run)
    logs = sorted(run.folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
    step = lines[-1].step if lines else 0
    if logs and logs[-1].stem != "train":
        return step, of, logs[-1].stem
    loss = f" loss {lines[-1].values.get('loss')}" if lines else ""
    return step, of, f"step {step}{f' of {of}' if of else ''}{loss}"


def write_metrics(run: Run) -> None:
    """What the training's log measured, of what came twice the later."""
    rows = {
        (line.step, line.epoch, name): value
        for line in progress(run)[0]
        for name, value in line.values.items()
    }
    table = pd.DataFrame([(*key, value) for key, value in sorted(rows.items())])
    columns = ["step", "epoch", "name", "value"]
    table = table.set_axis(columns, axis=1) if len(table) else pd.DataFrame(columns=columns)
    table.to_csv(run.folder / "metrics.csv", index=False)
