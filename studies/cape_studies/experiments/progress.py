"""How far trainings are, and the time left, as their hosts' logs tell it: one line a training."""

import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from tqdm import tqdm

from cape_studies.experiments import steps
from cape_studies.experiments.plan import Run

SECONDS = 1.0  # between two looks at the logs
QUARTERS = 4  # where no terminal shows a bar, a line after each quarter of a training
TAIL = 2**14  # bytes at the end of a log that are read

#: how a log tells the step of its training
TOLD = {
    "trainer": re.compile(r"^step (?P<step>\d+)/(?P<of>\d+)", re.MULTILINE),
    "timm": re.compile(r"Train: (?P<epoch>\d+) \[ *(?P<step>\d+)/(?P<of>\d+)"),
    "fairseq": re.compile(r"num_updates=(?P<step>\d+)"),
    "espnet": re.compile(r"(?P<epoch>\d+)epoch:train:\d+-(?P<step>\d+)batch"),
}
#: the host's option → the epochs of a training
EPOCHS = {"timm": "epochs", "espnet": "max_epoch"}


def label(run: Run) -> str:
    """A training's name in what cape-run prints."""
    return f"{run.study.name} {run.variant} seed {run.seed}"


def share(run: Run, said: str) -> float | None:
    """The part of a training that is done, from 0 to 1; None where its log does not tell it.

    Args:
        said: the end of its log.
    """
    host = "trainer" if run.study.trainer else run.study.host
    found = [*TOLD[host].finditer(said)]
    if not found:
        return None
    options = {**run.settings["recipe"], **run.options}
    told = {name: int(number) for name, number in found[-1].groupdict().items()}
    if host == "trainer":
        return told["step"] / told["of"]
    if host == "fairseq":
        updates = options.get("max-update")
        return told["step"] / updates if updates else None
    epochs = options.get(EPOCHS[host])
    if not epochs:
        return None
    if host == "timm":  # counts from 0
        return min(1.0, (told["epoch"] + told["step"] / told["of"]) / epochs)
    of_epoch = options.get("num_iters_per_epoch")
    within = told["step"] / of_epoch if of_epoch else 0.0
    return min(1.0, (told["epoch"] - 1 + within) / epochs)


class Line:
    """The progress of one training: a bar on a terminal, elsewhere a line after each quarter."""

    def __init__(self, run: Run, file: IO[str], row: int) -> None:
        self.run, self.file = run, file
        self.began, self.first = time.monotonic(), -1.0
        self.quarter = 0
        self.bar: tqdm | None = None
        if file.isatty():
            self.bar = tqdm(
                total=1.0,
                desc=label(run),
                position=row,
                leave=True,
                file=file,
                # tqdm begins the postfix with a comma
                bar_format="{desc}: {percentage:3.0f} % |{bar:30}|{postfix}",
            )

    def look(self, ended: bool = False) -> None:
        """Show what the log tells now."""
        log = self.run.training.log
        if ended:
            if self.bar is not None:
                self.bar.set_postfix_str("ended")
                self.bar.close()
            return
        if not log.exists() or self.run.training.done():
            return
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL))
            done = share(self.run, file.read().decode(errors="replace"))
        if done is None:
            return
        if self.first < 0:  # a training that goes on does not begin at 0
            self.began, self.first = time.monotonic(), done
        left = self.left(done)
        if self.bar is not None:
            self.bar.n = min(1.0, done)
            self.bar.set_postfix_str(f"{left} left")
        elif int(done * QUARTERS) > self.quarter and done < 1 and left != "?":
            self.quarter = int(done * QUARTERS)
            print(
                f"{label(self.run)}: {done:.0%}, {left} left\n", end="", file=self.file, flush=True
            )

    def left(self, done: float) -> str:
        """The time left, at the rate since this call first read the log."""
        if done <= self.first:
            return "?"
        seconds = (time.monotonic() - self.began) / (done - self.first) * (1 - done)
        return str(tqdm.format_interval(round(seconds)))


@contextmanager
def shown(runs: Sequence[Run], file: IO[str] | None = None) -> Iterator[None]:
    """Show the progress of the runs until the context ends; a shared training has one line."""
    file = file or sys.stdout
    stop = threading.Event()

    def look() -> None:
        lines: dict[str, Line] = {}
        while not stop.wait(SECONDS):
            for run in runs:
                if run.key not in lines and steps.held(run.training.log):
                    lines[run.key] = Line(run, file, len(lines))
            for line in lines.values():
                line.look()
        for line in lines.values():
            line.look(ended=True)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=2 * SECONDS)
