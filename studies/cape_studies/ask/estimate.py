"""What a study will cost on this machine, from some timed steps of each of its variants.

A variant's own training starts into a folder that is thrown away, with a line for each step, and is
ended after some of them.
"""

import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from cape_studies.experiments import folders, hosts, steps
from cape_studies.experiments.plan import Run, fill
from cape_studies.experiments.study import merge, read_yaml

#: what lets a training tell each step
TELLING: dict[str, dict[str, Any]] = {
    "trainer": {"steps": 50},
    "timm": {"log-interval": 1},
    "fairseq": {"log-interval": 1, "log-format": "simple"},
    "espnet": {"log_interval": 1},
}
STEP = re.compile(r"^step \d+|Train: \d+ \[ *\d+/|num_updates=\d+|epoch:train:\d+-\d+batch")
WARM = 3  # steps that are not timed
STEPS, SECONDS = 20, 5.0  # timed ones: enough of both, or
LONGEST = 30.0  # seconds, of at least two


class Cost(NamedTuple):
    """Of a variant's training: seconds until the first step, of a step (median), and, on a CPU, the
    most memory that its process had, in megabytes."""

    variant: str
    start_s: float
    step_s: float
    memory_mb: float | None


def costs(runs: Sequence[Run]) -> dict[str, Cost]:
    """Variant → cost: measured one after the other, or read where that was done for these runs.

    Raises:
        ValueError: a training ended before it had made some steps; with what it said.
    """
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.variant, run)
    path = runs[0].setting.folder / "cost.json"
    together, keys = timed(path), {run.key for run in first.values()}
    found = next((one for one in together if keys <= one.keys()), None)
    if found is None:
        print(f"timing some steps of {len(first)} variants", flush=True)
        found = {run.key: measure(run)._asdict() for run in first.values()}
        steps.write(path, {"together": [found, *together]})
    return {variant: Cost(**found[run.key]) for variant, run in first.items()}


def timed(path: Path) -> list[dict[str, dict[str, Any]]]:
    """What a ``cost.json`` holds: run's key → cost, of variants that were timed together, the
    latest first; others, of other settings, were timed when the machine had other work."""
    known = read_yaml(path) if path.exists() else {}  # which JSON is
    if known and "together" not in known:  # as cape-run wrote it until November 2026
        return [known]
    return list(known.get("together", []))


def measure(run: Run) -> Cost:
    """Start a training, time its steps and end it."""
    study, machine = run.study, run.setting.machine
    told = TELLING["trainer" if study.trainer else study.host]
    places = {**run.setting.places, "variant": run.variant, "seed": run.seed}
    options = fill(merge(run.options, told), places)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "train")
        command = hosts.train(study, run.recipe, options, run.seed, folder, machine)
        began, said, times = time.monotonic(), "", []
        process = subprocess.Popen(
            command,
            env=steps.environment(machine.gpus),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            for said in process.stdout:
                times += [time.monotonic()] if STEP.search(said) else []
                spent, timed = (times[-1] - times[0] if times else 0.0), len(times) - WARM
                enough = timed >= STEPS and spent >= SECONDS
                if enough or (timed >= 2 and spent >= LONGEST):
                    break
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
    if len(times) < 2:
        raise ValueError(f"{run.variant} made {len(times)} steps: {said} ({shlex.join(command)})")
    each = [later - one for one, later in pairwise(times[min(WARM, len(times) - 2) :])]
    memory = None if machine.gpus else used.ru_maxrss / 1024
    return Cost(run.variant, times[0] - began, median(each), memory)


def told(runs: Sequence[Run], jobs: int) -> str:
    """What is there, what will be trained and what that will take, in lines."""
    study, of = runs[0].study, costs(runs)
    assert study.answer is not None
    left = [run for run in runs if folders.state(run.folder) != "done"]
    each = {name: one.start_s + (study.answer.steps or 0) * one.step_s for name, one in of.items()}
    seconds = sum(each[run.variant] for run in left) / min(jobs, len(left) or 1)
    seeds = ", ".join(map(str, dict.fromkeys(run.seed for run in runs)))
    steps_ms = ", ".join(f"{name} {1000 * one.step_s:.0f}" for name, one in of.items())
    return (
        f"{study.name}: {study.answer.found}.\n"
        f"Each with seeds {seeds}, in milliseconds of a step, timed here: {steps_ms}\n"
        f"{len(left)} trainings, {duration(seconds)} on this machine with --jobs {jobs}, and tests"
    )


def duration(seconds: float) -> str:
    """In hours and minutes."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
