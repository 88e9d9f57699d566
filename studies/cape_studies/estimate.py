"""What a study will cost on this machine, from some timed updates of each of its variants.

Each variant's own training is started in a temporary folder, logs a line for each update, and is
ended after some.
"""

import copy
import os
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

from cape_studies import hosts, process
from cape_studies.plan import Run
from cape_studies.progress import duration
from cape_studies.yamls import read_yaml

#: options with which a study's own trainer logs each update
EVERY_STEP = {"steps": 50}
WARM = 3  # updates that are not timed
STEPS, SECONDS = 2, 5.0  # the timing ends once so many updates were timed, for so long


def measure(run: Run) -> tuple[float, float]:
    """Start a training and end it; gives the seconds until its first update, and of an update.

    Raises:
        ValueError: it ended before its second update; the message has its last line.
    """
    more = EVERY_STEP if run.plan.study.trainer else run.plan.host.EVERY_STEP
    times: list[float] = []
    said = ""
    with tempfile.TemporaryDirectory() as scratch:
        command = run.train_command(Path(scratch, "train"), more)
        began = time.monotonic()
        training = process.start(command, run.plan.machine.gpus, stdout=subprocess.PIPE)
        try:
            for said in training.stdout or ():
                if run.progress(said):
                    times.append(time.monotonic())
                timed = times[WARM:]
                if len(timed) > STEPS and timed[-1] - timed[0] > SECONDS:
                    break
        finally:
            with suppress(ProcessLookupError):
                os.killpg(training.pid, signal.SIGKILL)
            training.wait()
    if len(times) < 2:
        raise ValueError(
            f"the training of {run.variant} ended after {len(times)} updates: {said.strip()} "
            f"({shlex.join(command)})"
        )
    timed = times[min(WARM, len(times) - 2) :]
    return times[0] - began, median(later - one for one, later in pairwise(timed))


def tests(run: Run) -> float:
    """Seconds of a run's tests: of one that is done, else of a training as short as ``--quick``.

    Raises:
        ValueError: the short training or a test of it failed; the message has its last line.
    """
    done = [test.folder for test in run.tests.values() if test.scores.exists()]
    seconds: float = sum(read_yaml(one / "config.yaml").get("seconds", 0.0) for one in done)
    if not (left := run.tests_by_process()):
        return seconds
    with tempfile.TemporaryDirectory() as scratch:
        short = copy.copy(run)
        short.trained = Path(scratch, "train")
        short.checkpoint = short.trained / run.checkpoint.relative_to(run.trained)
        files = Path(scratch, "scores.csv"), Path(scratch, "items.csv")
        quick = run.plan.study.quick.get("options", {})
        commands = [run.train_command(short.trained, quick)]
        for tests in left:
            each = [short.test_command(test, *files) for test in tests.values()]
            commands.append(hosts.together(each))
        log, gpus = Path(scratch, "log"), run.plan.machine.gpus
        try:
            _, *spent = [process.call(words, log, [], gpus) for words in commands]
        except process.Failed as error:
            raise ValueError(f"{run.variant} cannot be tested: {error.why[-1]}") from error
    return seconds + sum(spent)


def told(runs: Sequence[Run], jobs: int) -> Iterator[str]:
    """What trainings and tests cost here, line by line as it is measured."""
    updates = runs[0].plan.facts.get("updates")
    left = [run.variant for run in runs if not run.done()]
    first = {run.variant: run for run in reversed(runs)}
    total = 0.0
    for run in reversed(first.values()):
        start_s, step_s = measure(run)
        line = f"{run.variant}: {1000 * step_s:.0f} ms an update"
        if updates:
            seconds = start_s + updates * step_s
            line += f", {duration(seconds)} a training"
            total += left.count(run.variant) * seconds
        yield line
    if updates:
        each = tests(runs[0])
        total += len(left) * each
        spent, every = duration(total / min(jobs, len(left) or 1)), len(runs)
        yield f"the tests of a training: {each:.0f} s, as {runs[0].variant} took"
        what = f"{len(left)} of {every} trainings are left, with their tests"
        yield f"{what}: {spent} with --jobs {jobs}"
