"""Does one preparation, or one run: what is done is not done again, and what was begun goes on."""

import os
import time
from contextlib import suppress
from typing import IO, Any

from cape_studies import process, scores
from cape_studies.config import places_in, read_yaml
from cape_studies.plan import Prepared, Run, Test, here
from cape_studies.process import Failed

DIVERGED = 3  # the status of an evaluation whose model has no finite numbers


def prepare(one: Prepared, host: str) -> None:
    """Make a folder, from nothing, if it was not made.

    Raises:
        Failed, OSError, SystemExit: see :func:`process.call`.
    """
    if one.done():
        return
    with process.locked(one.lock) as lock:
        if one.done():
            return
        process.remove(one.folder, one.note)
        process.call(one.command, one.log, lock)
        if not one.folder.is_dir():
            raise Failed(f"it ended without error, and without {one.folder} ({one.log})")
        process.write(one.note, {**one.asked, "made": _now(), **here(host, 0)})


def make(run: Run) -> None:
    """Train and test, as far as that is not done. Why it failed is noted in ``failed.yaml``.

    Raises:
        Failed, ValueError, OSError, SystemExit: see :func:`process.call`; or an output is missing
            or cannot be read.
    """
    if not run.done():
        _train(run, all_of_it=True)


def _train(run: Run, all_of_it: bool = False) -> None:
    """Train; with ``all_of_it`` test too."""
    if run.start:
        _train(run.start)
    with process.locked(run.lock) as lock:
        what = "training"
        run.failed.unlink(missing_ok=True)
        try:
            _trained(run, lock)
            for name, test in run.tests.items() if all_of_it else ():
                what = name
                if not test.scores.exists():
                    _tested(run, test, lock)
        except Exception as error:
            diverged = isinstance(error, Failed) and _diverged(what, error)
            with suppress(OSError):  # a full disk
                why = {"what": what, "diverged": diverged, "why": str(error)}
                process.write(run.failed, why)
            raise


def _diverged(what: str, error: Failed) -> bool:
    """Whether a model may have no finite numbers, rather than too little memory or a bad option."""
    if what != "training":
        return error.status == DIVERGED
    return not any(sign in str(error) for sign in ("out of memory", "MemoryError", "ImportError"))


def _trained(run: Run, lock: IO[str]) -> None:
    tested = [test.evaluation for test in run.tests.values()]
    whole = all(one.script and "checkpoint" not in places_in(one.options) for one in tested)
    output = run.trained if whole else run.trained / str(run.checkpoint)
    if run.note.exists() and output.exists():
        return
    process.remove(run.note)
    noted = read_yaml(run.folder / "config.yaml") if (run.folder / "config.yaml").exists() else {}
    before = noted.get("trained", []) if run.trained.exists() else []
    if not before:  # from nothing: tests of an earlier training are not of this one
        process.remove(*(path.parent for path in run.folder.glob("*/scores.csv")), run.trained)
    plan = run.plan
    about: dict[str, Any] = {"study": plan.name, "title": plan.study.title}
    about |= {
        "protocol": plan.study.protocol,
        "variant": run.variant,
        "quick": plan.quick,
        **run.asked,
    }
    about |= {"checkpoint": run.checkpoint, "data": {k: str(p) for k, p in plan.data.items()}}
    command = run.train_command(run.trained)
    about["prepared"] = {one.folder.name: one.asked for one in plan.prepared}
    about["trained"] = [*before, {"began": _now(), "command": command, **run.here()}]
    process.write(run.folder / "config.yaml", about)
    used = process.call(command, run.folder / "train.log", lock, plan.machine.gpus)
    if not output.exists():
        raise ValueError(
            f"the training ended without error, and without {output} ({run.folder / 'train.log'})"
        )
    cost = {"seconds": round(used.seconds, 3), "memory_mb": round(used.memory_mb)}
    process.write(run.note, {"ended": _now(), **cost})


def _tested(run: Run, test: Test, lock: IO[str]) -> None:
    """Test. ``scores.csv`` comes last, in one move."""
    csv, items = test.folder / ".scores.csv", test.folder / ".items.csv"
    process.remove(csv, items)
    command = run.test_command(test, csv, items)
    process.call(command, test.log, lock, run.plan.machine.gpus)
    one, host = test.evaluation, run.plan.study.host
    needed = [csv, items] if "items" in places_in(one.options) else [csv]
    for path in needed:
        if not path.exists():
            raise ValueError(f"{test.name} ended without error, and without {path} ({test.log})")
    scores.tidy(one, host, csv)
    if items.exists():
        scores.summed(one, host, items).to_csv(test.items, index=False)
        items.unlink()
    about = {"name": test.name, "command": command, "tested": _now(), **run.here()}
    process.write(test.folder / "config.yaml", about)
    os.replace(csv, test.scores)


def forget(run: Run) -> None:
    """Remove a run, for ``--fresh``; waits for those who train it."""
    with process.locked(run.lock):
        names = [path for path in run.folder.iterdir() if path != run.lock]
        process.remove(*names)


def state(run: Run) -> str:
    """A run in words."""
    if run.done():
        return "done"
    if process.held(run.lock):
        logs = [run.folder / "train.log", *(test.log for test in run.tests.values())]
        there = [path for path in logs if path.exists()]
        newest = max(there, key=lambda path: path.stat().st_mtime, default=None)
        said = process.last_lines(newest)[-1:] if newest else []
        return f"running: {''.join(said)[:100]}"
    if run.failed.exists():
        failed = read_yaml(run.failed)
        return f"failed ({failed['what']}): {' '.join(str(failed['why']).split())}"
    return "interrupted" if (run.folder / "config.yaml").exists() else "waiting"


def cost(run: Run) -> dict[str, float]:
    """Seconds and memory of a training that nothing interrupted; else empty."""
    if not run.note.exists() or len(read_yaml(run.folder / "config.yaml")["trained"]) > 1:
        return {}
    noted = read_yaml(run.note)
    return {name: noted[name] for name in ("seconds", "memory_mb")}


def changed(run: Run) -> list[str]:
    """What is otherwise now than when a run was trained or tested, a line each."""
    now, found = run.here(), dict[str, None]()
    noted = [*read_yaml(run.folder / "config.yaml")["trained"]]
    noted += [read_yaml(test.folder / "config.yaml") for test in run.tests.values()]
    for then in noted:
        pairs = {"commit of cape-plugins": (then["commit"], now["commit"])}
        for what, of in {
            "version of": "versions",
            "data in": "inputs",
            "script": "scripts",
        }.items():
            both = then[of].keys() & now[of].keys()
            pairs |= {f"{what} {name}": (then[of][name], now[of][name]) for name in both}
        for what, (was, is_now) in pairs.items():
            if was != is_now:
                found[f"The {what} was {was}, now it is {is_now}"] = None
    return [*found]


def _now() -> str:
    return time.strftime("%F %T %z")
