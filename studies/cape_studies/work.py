"""Does one preparation, or one run: what is done is not done again, and what was begun goes on.

Each step looks at the user's data before and after it: what was made of data whose contents changed
meanwhile counts for nothing.
"""

import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import IO, Any

import cape_plugins
from cape_studies import hosts, process, progress
from cape_studies.hosts import PYTHON
from cape_studies.needs import Data
from cape_studies.plan import Plan, Prepared, Run, Test, digest
from cape_studies.process import Failed
from cape_studies.yamls import read_yaml

#: where a checkpoint may be the reason of a failure
DAMAGED = "If the checkpoint is damaged, remove"


def prepare(one: Prepared) -> None:
    """Make a folder, from nothing, if it was not made.

    Raises:
        Failed, SystemExit: see :func:`process.call`; or there is no folder, or data changed.
    """
    log = one.beside(".log")
    with process.locked(one.beside(".lock")) as lock:
        if one.done():
            return
        process.remove(one.beside(".yaml"), one.folder)
        _call(one.command, log, [lock], one.data)
        if not one.folder.is_dir():
            raise Failed([f"it ended without error, and without {one.folder}"], log)
        process.write(one.beside(".yaml"), {**one.asked, "made": _now()})


def make(run: Run) -> None:
    """Train and test, as far as that is not done. ``failed`` says in the folder why it failed. A
    fresh run replaces the other one when it is done.

    Raises:
        Failed, SystemExit: see :func:`process.call`; or an output is missing, or data changed.
        ValueError: an evaluation's output cannot be read.
    """
    with process.locked(run.lock) as lock:
        process.remove(run.failed)
        try:
            if not run.done() or not run.tests:
                _train(run, [lock])
            for tests in run.tests_by_process():
                _test(run, tests, [lock])
        except Failed as error:
            process.write(run.failed, error.line)
            raise
        if run.fresh:
            whole = run.folder.parent
            process.remove(*(one for one in whole.iterdir() if one not in (run.folder, run.lock)))
            for one in sorted(run.folder.iterdir(), key=lambda one: any(one.glob("scores.csv"))):
                one.rename(whole / one.name)  # what says that it is done comes last
            run.folder.rmdir()


def _call(
    command: Sequence[str],
    log: Path,
    locks: Sequence[IO[str]],
    data: Sequence[Data],
    gpus: int = 0,
    spoilt: Sequence[Path] = (),
) -> float:
    """:func:`process.call`, of data that stay as they are; if they change, ``spoilt`` is removed.
    What the command says of our link to data is said of the user's folder."""

    def look(when: str) -> None:
        for one in data:
            if one.changed():
                process.remove(*spoilt)
                what = f"{one.folder} changed {when}"
                raise Failed([f"{what}: the same command takes it as it is then"], log)

    look("since cape-run began")
    try:
        return process.call(command, log, locks, gpus)
    except Failed as error:
        why = error.why
        for one in data:
            why = [line.replace(str(one.link), str(one.folder)) for line in why]
        raise Failed(why, log) from None
    finally:
        look("meanwhile, so this step counts for nothing")


def _train(run: Run, locks: Sequence[IO[str]]) -> None:
    if run.note.exists() and run.checkpoint.exists():
        return
    if run.start:
        with process.locked(run.start.lock) as lock:
            _train(run.start, [*locks, lock])
    process.remove(run.note)
    about, plan, data = run.folder / "config.yaml", run.plan, [*run.plan.data.values()]
    before = read_yaml(about)["trained"] if run.trained.exists() and about.exists() else []
    if not before:  # tests of an earlier training are not of this one
        process.remove(*(path.parent for path in run.folder.glob("*/scores.csv")), run.trained)
    command = run.train_command(run.trained)
    asked: dict[str, Any] = {
        "study": plan.name,
        "title": plan.study.title,
        "protocol": plan.study.protocol,
        "variant": run.variant,
        "quick": plan.quick,
        **run.asked,
        "data": {one.name: {"folder": str(one.folder), "contents": one.contents} for one in data},
        "prepared": {one.folder.name: one.asked for one in plan.prepared},
        "trained": [*before, {"began": _now(), "command": command, **here(run)}],
    }
    process.write(about, asked)
    try:
        seconds = _call(command, run.log, locks, data, plan.machine.gpus, [run.trained])
    except Failed as error:
        if before and run.trained.exists() and progress.of(run) is None:
            raise error.saying(then=f". {DAMAGED} {run.trained}") from None
        raise
    if not run.checkpoint.exists():
        raise Failed([f"it ended without error, and without {run.checkpoint}"], run.log)
    process.write(run.note, {"ended": _now(), "seconds": round(seconds, 3)})


def _test(run: Run, tests: Mapping[str, Test], locks: Sequence[IO[str]]) -> None:
    """Do tests in one process. Those that it did before one that failed are done."""
    commands = {name: run.test_command(test, *test.written) for name, test in tests.items()}
    for test in tests.values():
        process.remove(*test.written)
        test.folder.mkdir(parents=True, exist_ok=True)
    data, gpus = [*run.plan.data.values()], run.plan.machine.gpus
    csvs = [test.written[0] for test in tests.values()]
    ended, began = False, time.time()
    try:
        _call(hosts.together([*commands.values()]), run.test_log, locks, data, gpus, csvs)
        if none := [csv for csv in csvs if not csv.exists()]:
            raise Failed([f"it ended without error, and without {none[0]}"], run.test_log)
        ended = True
    except Failed as error:
        left = [name for name, test in tests.items() if not test.written[0].exists()]
        damaged = str(run.checkpoint) in " ".join(error.why)
        then = f". {DAMAGED} {run.folder}" if damaged else ""
        raise error.saying(f"evaluation {[*left, *tests][0]}: ", then) from None
    finally:
        for name, test in tests.items():
            # a script's may be half of it
            if test.written[0].exists() and (ended or not test.evaluation.script):
                began = _keep(run, test, commands[name], began)


def _keep(run: Run, test: Test, command: list[str], began: float) -> float:
    """Take what an evaluation has written, ``scores.csv`` last, in one move; and give the time when
    it ended."""
    from cape_studies import scores  # pandas takes half a second to be imported
    from cape_studies.data import facts

    csv, items = test.written
    ended = csv.stat().st_mtime
    host = run.plan.study.host
    scores.tidy(test.evaluation, host, csv)
    if items.exists():
        found = scores.summed(test.evaluation, host, items)
        for one in run.plan.prepared:
            found = facts.grouped(found, one.folder)
        found.to_csv(test.folder / "items.csv", index=False)
        items.unlink()
    about = {"command": command, "tested": _now(), "seconds": round(ended - began, 3), **here(run)}
    process.write(test.folder / "config.yaml", about)
    os.replace(csv, test.scores)
    return ended


#: how a run that is not done may stand
STATES = "running", "failed", "interrupted", "not begun"


def state(run: Run) -> tuple[str, str]:
    """How a run stands, done or one of ``STATES``, and what is known of that."""
    if run.done():
        return "done", ""
    if process.is_locked(run.lock):
        return "running", progress.last(run)
    if run.failed.exists():
        return "failed", run.failed.read_text(encoding="utf-8")
    return ("interrupted", progress.last(run)) if run.log.exists() else ("not begun", "")


def changed(run: Run) -> list[str]:
    """What is otherwise now than when a run was trained or tested, a line each."""
    now, found = here(run)["versions"], dict[str, None]()
    tests = [read_yaml(test.folder / "config.yaml") for test in run.tests.values()]
    for then in [*read_yaml(run.folder / "config.yaml")["trained"], *tests]:
        for what, was in then["versions"].items():
            if what in now and was != now[what]:
                found[f"{what} was {was}, now it is {now[what]}"] = None
    return [*found]


def here(run: Run) -> dict[str, Any]:
    """The machine, and versions, also of scripts: what else scores depend on."""
    plan = run.plan
    found = dict(_versions(plan.study.host))
    for one in plan.prepared:
        if one.done():
            found[f"prepared {one.name}"] = str(read_yaml(one.beside(".yaml"))["made"])
    if run.start and run.start.note.exists():
        found["training that it starts from"] = str(read_yaml(run.start.note)["ended"])
    scripts = [plan.study.trainer, *(one.evaluation.script for one in run.tests.values())]
    found |= {f"script {path.name}": digest(path.read_text("utf-8")) for path in scripts if path}
    return {"machine": _machine(plan.machine.gpus), "versions": found}


def of_other_data(plan: Plan) -> Counter[str]:
    """Folder of data → finished trainings of this study, of contents that it does not have now."""
    now = {name: one.contents for name, one in plan.data.items()}
    found: Counter[str] = Counter()
    for note in plan.out.glob("runs/*/trained.yaml") if now else ():
        with suppress(ValueError, KeyError, TypeError):  # damaged, or of an older version
            about = read_yaml(note.with_name("config.yaml"))
            then = {name: of["contents"] for name, of in about["data"].items()}
            if about["study"] == plan.name and then != now:
                found[", ".join(of["folder"] for of in about["data"].values())] += 1
    return found


@cache
def _machine(gpus: int) -> str:
    """This machine, as ``config.yaml`` notes it; a process of its own frees the GPU's memory."""
    name = [PYTHON, "-c", "import torch; print(torch.cuda.get_device_name())"]
    device = f"{gpus} x {_said(name)}" if gpus else "cpu"
    return f"{socket.gethostname()}, {os.cpu_count()} cores, {device}"


@cache
def _versions(host: str) -> dict[str, str]:
    """Versions and commit, as ``config.yaml`` notes them."""
    wanted = {"torch", *hosts.host(host).PACKAGES}
    found = {one.name: one.version for one in distributions() if one.name in wanted}
    commit = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    own = {"cape-plugins": cape_plugins.__version__, "commit": _said([*commit, "--abbrev=40"])}
    return {**own, **dict(sorted(found.items()))}


def _said(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def _now() -> str:
    return time.strftime("%F %T %z")
