"""What a study will cost on this machine, from some timed updates of each of its variants.

Each variant's own training is started in a temporary folder, logs a line for each update, and is
ended after some.
"""

import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from cape_studies.plan import Run
from cape_studies.process import environment, megabytes

#: options with which a study's own trainer logs each update, and such a line
EVERY_STEP, STEP = {"steps": 50}, re.compile(r"^step \d+")
WARM = 3  # updates that are not timed
#: the timing ends once this many timed updates and this many seconds are over,
STEPS, SECONDS = 20, 5.0
#: or after this many seconds, once two updates are timed
LONGEST = 30.0


class Cost(NamedTuple):
    """What a training costs.

    Attributes:
        start_s: seconds until the first update.
        step_s: seconds of an update, the median.
        memory_mb: the most memory that the process had, in megabytes.
    """

    start_s: float
    step_s: float
    memory_mb: float


def measure(run: Run) -> Cost:
    """Start a training, time its updates and end it.

    Raises:
        ValueError: it ended before its second update; the message has its last line.
    """
    host, gpus = run.plan.host, run.plan.machine.gpus
    own = run.plan.study.trainer is not None
    step = STEP if own else host.STEP
    with tempfile.TemporaryDirectory() as scratch:
        more = EVERY_STEP if own else host.EVERY_STEP
        command = run.train_command(Path(scratch, "train"), more)
        began = time.monotonic()
        said = ""
        times: list[float] = []
        process = subprocess.Popen(
            command,
            env=environment(gpus),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            for said in process.stdout:
                if step.search(said):
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
            f"the training of {run.variant} ended after {len(times)} updates: {said.strip()} "
            f"({shlex.join(command)})"
        )
    each = [later - one for one, later in pairwise(times[min(WARM, len(times) - 2) :])]
    return Cost(times[0] - began, median(each), megabytes(used.ru_maxrss))


def told(runs: Sequence[Run], jobs: int) -> Iterator[str]:
    """What trainings cost here, line by line as it is measured."""
    updates = runs[0].plan.facts.get("updates")
    left = [run for run in runs if not run.done()]
    first = {run.variant: run for run in reversed(runs)}
    total = 0.0
    for run in reversed(first.values()):
        cost = measure(run)
        mine = sum(one.variant == run.variant for one in left)
        line = f"{run.variant}: {1000 * cost.step_s:.0f} ms an update, {cost.memory_mb:.0f} MB"
        if updates:
            seconds = cost.start_s + updates * cost.step_s
            line += f", {duration(seconds)} a training"
            total += mine * seconds
        yield line
    if updates:
        spent = duration(total / min(jobs, len(left) or 1))
        left_of = f"{len(left)} of {len(runs)} trainings are left"
        yield f"{left_of}: {spent} with --jobs {jobs}, and their tests"


def duration(seconds: float) -> str:
    """In hours and minutes."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
