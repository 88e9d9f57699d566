"""How far trainings are, by their logs: cape-run shows it meanwhile, cape-report afterwards."""

import time
from collections.abc import Sequence
from threading import Event, Thread

from tqdm import tqdm

from cape_studies import process
from cape_studies.hosts import Progress
from cape_studies.plan import Run

EVERY_S, EVERY_LINE_S = 2.0, 300.0  # seconds until it is shown anew: on a terminal, and elsewhere


def of(run: Run) -> Progress | None:
    """What the log of a training says, since it was begun or went on; None if it is not there."""
    if run.note.exists():
        return Progress(1.0, "trained, in its tests", "")
    try:
        lines = process.last_lines(run.log)
    except OSError:
        return None
    return next(filter(None, map(run.progress, reversed(lines))), None)


def last(run: Run) -> str:
    """What :func:`of` says in words, and where the log is."""
    told = of(run)
    return f"{told.told}; {run.log}" if told else str(run.log)


def duration(seconds: float) -> str:
    """In hours and minutes."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


class Shown:
    """Shows while it is entered how many runs are done, the time left, and each one's progress: on
    a terminal in a bar, elsewhere in a line now and then.

    Attributes:
        running: runs that are being done.
    """

    def __init__(self, runs: Sequence[Run], title: str) -> None:
        self.running: list[Run] = []
        self._many, self._ended = len(runs), 0
        self._before = sum(run.done() for run in runs)
        self._began, self._stop = time.monotonic(), Event()
        look = "{percentage:3.0f}%|{bar:20}| {desc}"
        wide = {"bar_format": look, "dynamic_ncols": True}
        self._bar = tqdm(total=self._many, disable=None, leave=False, **wide)
        self._title, self._thread = title, Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Shown":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._bar.close()

    def ended(self) -> str:
        """One more has ended; how many, and the time left, in words."""
        self._ended += 1
        return self._counted([of(run) for run in self.running])

    def _counted(self, now: Sequence[Progress | None]) -> str:
        done = self._ended + sum(min(1.0, one.part or 0) for one in now if one)
        self._bar.n = done
        told = f"{self._ended} of {self._many} runs"
        if (gained := done - self._before) > 0.01 and done < self._many:
            left = (time.monotonic() - self._began) * (self._many - done) / gained
            told += f", about {duration(left)} left"
        return told

    def _watch(self) -> None:
        while not self._stop.wait(EVERY_LINE_S if self._bar.disable else EVERY_S):
            now = {run: of(run) for run in [*self.running]}
            each = [f"{run.variant} seed {run.seed} {one.told}" for run, one in now.items() if one]
            line = f"{self._title}: {'; '.join([self._counted([*now.values()]), *each])}"
            if self._bar.disable:
                process.say(line)
            self._bar.set_description_str(line)
