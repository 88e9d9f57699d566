"""What the studies share: commands side by side, a core each, with logs and records."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def train_missing(
    runs: Sequence[Any], command: Callable[[Any], list[str]], logs: Path, jobs: int
) -> None:
    """Train what has no record yet.

    Args:
        runs: with ``folder`` and ``record``, the file written when a training has ended well.
        command: that trains a run.
        logs: folder of the logs.
        jobs: trainings at a time.

    Raises:
        SystemExit: names the trainings that failed, when all have ended.
    """

    def train_one(run: Any) -> str | None:
        arguments = command(run)
        seconds = call(arguments, logs / f"{run.folder.name}.log")
        if seconds is None:
            return run.folder.name
        record = {"seconds": round(seconds, 1), "command": arguments}
        run.folder.mkdir(parents=True, exist_ok=True)  # a training need not save anything
        run.record.write_text(json.dumps(record, indent=2) + "\n")
        return None

    side_by_side(train_one, [run for run in runs if not run.record.exists()], jobs)


def side_by_side(work: Callable[[Any], str | None], items: Sequence[Any], jobs: int) -> None:
    """Do the work on every item, ``jobs`` at a time; SystemExit names what failed, at the end."""
    print(f"{len(items)} to do", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        failed = [name for name in pool.map(work, items) if name]
    if failed:
        raise SystemExit("failed: " + ", ".join(failed))


def call(command: list[str], log: Path) -> float | None:
    """Run a command on one core into a log; its wall time in seconds, None if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"{time.strftime('%H:%M:%S')} {log.stem} starts", flush=True)
    start = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("w") as file:
        code = subprocess.run(
            command, env=environment, stdout=file, stderr=subprocess.STDOUT
        ).returncode
    seconds = time.monotonic() - start
    outcome = f"FAILED, see {log}" if code else f"{seconds:.0f} s"
    print(f"{time.strftime('%H:%M:%S')} {log.stem}: {outcome}", flush=True)
    return None if code else seconds
