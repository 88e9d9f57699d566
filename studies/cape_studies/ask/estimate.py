"""What a study will cost on this machine, from some timed steps of each of its variants.

Each variant's own training is started in a temporary folder, logs a line for each step, and is
ended after some steps.
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

#: options that make a training log each step
TELLING: dict[str, dict[str, Any]] = {
    "trainer": {"steps": 50},
    "timm": {"log-interval": 1},
    "fairseq": {"log-interval": 1, "log-format": "simple"},
    "espnet": {"log_interval": 1},
}
STEP = re.compile(r"^step \d+|Train: \d+ \[ *\d+/|num_updates=\d+|epoch:train:\d+-\d+batch")
WARM = 3  # steps that are not timed
#: the timing ends once this many timed steps and this many seconds are over,
STEPS, SECONDS = 20, 5.0
#: or after this many seconds, once two steps are timed
LONGEST = 30.0


class Cost(NamedTuple):
    """What a variant's training costs.

    Attributes:
        variant: its name.
        start_s: seconds until the first step.
        step_s: seconds of a step, the median.
        memory_mb: on a CPU, the most memory that the process had, in megabytes; None on a GPU.
    """

    variant: str
    start_s: float
    step_s: float
    memory_mb: float | None


def costs(runs: Sequence[Run]) -> dict[str, Cost]:
    """Variant → cost. Variants are measured one after the other, unless ``cost.json`` has all.

    Raises:
        ValueError: a training ended before its second step; the message has its last line.
    """
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.variant, run)
    path = runs[0].setting.folder / "cost.json"
    together = timed(path)
    keys = {run.key for run in first.values()}
    found = next((one for one in together if keys <= one.keys()), None)
    if found is None:
        print(f"timing some steps of {len(first)} variants", flush=True)
        found = {run.key: measure(run)._asdict() for run in first.values()}
        steps.write(path, {"together": [found, *together]})
    return {variant: Cost(**found[run.key]) for variant, run in first.items()}


def timed(path: Path) -> list[dict[str, dict[str, Any]]]:
    """The timings in a ``cost.json``, the latest first: each is run's key → cost.

    Only costs of one timing can be compared: at another time the machine had other work.
    """
    known = read_yaml(path) if path.exists() else {}  # which JSON is
    if known and "together" not in known:  # as cape-run wrote it until November 2026
        return [known]
    return list(known.get("together", []))


def measure(run: Run) -> Cost:
    """Start a training, time its steps and end it."""
    study = run.study
    machine = run.setting.machine
    told = TELLING["trainer" if study.trainer else study.host]
    places = {**run.setting.places, "variant": run.variant, "seed": run.seed}
    options = fill(merge(run.options, told), places)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "train")
        command = hosts.train(study, run.recipe, options, run.seed, folder, machine)
        began = time.monotonic()
        said = ""
        times: list[float] = []
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
                if STEP.search(said):
                    times.append(time.monotonic())
                spent = times[-1] - times[0] if times else 0.0
                counted = len(times) - WARM
                enough = counted >= STEPS and spent >= SECONDS
                if enough or (counted >= 2 and spent >= LONGEST):
                    break
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
    if len(times) < 2:
        raise ValueError(
            f"the training of {run.variant} ended after {len(times)} steps: {said} "
            f"({shlex.join(command)})"
        )
    each = [later - one for one, later in pairwise(times[min(WARM, len(times) - 2) :])]
    memory = None if machine.gpus else used.ru_maxrss / 1024
    return Cost(run.variant, times[0] - began, median(each), memory)


def told(runs: Sequence[Run], jobs: int) -> str:
    """What the data hold, what will be trained and how long it will take, in lines."""
    study = runs[0].study
    of = costs(runs)
    assert study.answer is not None
    left = [run for run in runs if folders.state(run.folder) != "done"]
    each = {name: one.start_s + (study.answer.steps or 0) * one.step_s for name, one in of.items()}
    seconds = sum(each[run.variant] for run in left) / min(jobs, len(left) or 1)
    seeds = ", ".join(map(str, dict.fromkeys(run.seed for run in runs)))
    steps_ms = ", ".join(f"{name} {1000 * one.step_s:.0f}" for name, one in of.items())
    return (
        f"{study.name}: {study.answer.found}.\n"
        f"Seeds {seeds} for each variant. A step takes here, in milliseconds: {steps_ms}\n"
        f"{len(left)} trainings, {duration(seconds)} on this machine with --jobs {jobs}, and tests"
    )


def duration(seconds: float) -> str:
    """In hours and minutes."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
