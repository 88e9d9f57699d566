"""Does one preparation, or one run: what is done is not done again, and what was begun goes on."""

import os
import time
from typing import IO, Any

from cape_studies import process, scores
from cape_studies.config import read_yaml
from cape_studies.plan import Prepared, Run, Test
from cape_studies.process import Failed


def prepare(one: Prepared) -> None:
    """Make a folder, from nothing, if it was not made.

    Raises:
        Failed, SystemExit: see :func:`process.call`; or there is no folder.
    """
    with process.locked(one.beside(".lock")) as lock:
        if one.done():
            return
        log, note = one.beside(".log"), one.beside(".yaml")
        process.remove(one.folder, note)
        process.call(one.command, log, lock)
        if not one.folder.is_dir():
            raise Failed(f"it ended without error, and without {one.folder}\n{log}")
        process.write(note, {**one.asked, "made": _now()})


def make(run: Run) -> None:
    """Train and test, as far as that is not done.

    Raises:
        Failed, SystemExit: see :func:`process.call`; or an output is missing.
        ValueError: an evaluation's output cannot be read.
    """
    with process.locked(run.lock) as lock:
        if not run.done():
            _train(run, lock)
        for test in run.tests.values():
            if not test.scores.exists():
                _test(run, test, lock)


def _train(run: Run, lock: IO[str]) -> None:
    if run.note.exists() and run.checkpoint.exists():
        return
    if run.start:
        with process.locked(run.start.lock) as other:
            _train(run.start, other)
    process.remove(run.note)
    about, log, plan = run.folder / "config.yaml", run.folder / "train.log", run.plan
    before = []
    if run.trained.exists() and about.exists():
        before = read_yaml(about)["trained"]
    else:  # from nothing: tests of an earlier training are not of this one
        process.remove(*(path.parent for path in run.folder.glob("*/scores.csv")), run.trained)
    command = run.train_command(run.trained)
    asked: dict[str, Any] = {
        "study": plan.name,
        "title": plan.study.title,
        "protocol": plan.study.protocol,
        "variant": run.variant,
        "quick": plan.quick,
        **run.asked,
        "data": {name: str(path) for name, path in plan.data.items()},
        "prepared": {one.folder.name: one.asked for one in plan.prepared},
        "trained": [*before, {"began": _now(), "command": command, **run.here()}],
    }
    process.write(about, asked)
    seconds = process.call(command, log, lock, plan.machine.gpus)
    if not run.checkpoint.exists():
        raise Failed(f"it ended without error, and without {run.checkpoint}\n{log}")
    process.write(run.note, {"ended": _now(), "seconds": round(seconds, 3)})


def _test(run: Run, test: Test, lock: IO[str]) -> None:
    """Test. ``scores.csv`` comes last, in one move."""
    csv, items, log = test.folder / ".scores.csv", test.folder / ".items.csv", test.folder / "log"
    process.remove(csv, items)
    command = run.test_command(test, csv, items)
    process.call(command, log, lock, run.plan.machine.gpus)
    if not csv.exists():
        raise Failed(f"it ended without error, and without {csv}\n{log}")
    host = run.plan.study.host
    scores.tidy(test.evaluation, host, csv)
    if items.exists():
        found = scores.summed(test.evaluation, host, items)
        found.to_csv(test.folder / "items.csv", index=False)
        items.unlink()
    process.write(test.folder / "config.yaml", {"command": command, "tested": _now(), **run.here()})
    os.replace(csv, test.scores)


def forget(run: Run) -> None:
    """Remove a run and what it starts from, for ``--fresh``; waits for those who train it."""
    with process.locked(run.lock):
        process.remove(*(path for path in run.folder.iterdir() if path != run.lock))
    if run.start:
        forget(run.start)


def state(run: Run) -> str:
    """A run in words: done, not begun, or the last line of the log that was written last."""
    if run.done():
        return "done"
    logs = [*run.folder.glob("train.log"), *run.folder.glob("*/log")]
    if not logs:
        return "not begun"
    newest = max(logs, key=lambda path: path.stat().st_mtime)
    return f"not finished: {' '.join(process.last_lines(newest)[-1:])[:100]} ({newest})"


def changed(run: Run) -> list[str]:
    """What is otherwise now than when a run was trained or tested, a line each."""
    now, found = run.here()["versions"], dict[str, None]()
    tests = [read_yaml(test.folder / "config.yaml") for test in run.tests.values()]
    for then in [*read_yaml(run.folder / "config.yaml")["trained"], *tests]:
        for what, was in then["versions"].items():
            if what in now and was != now[what]:
                found[f"{what} was {was}, now it is {now[what]}"] = None
    return [*found]


def _now() -> str:
    return time.strftime("%F %T %z")
