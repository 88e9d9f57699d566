"""What the last call of cape-run asked for. A report and ``--status`` show these runs.

``study.yaml`` has the call, its runs, and other runs in the folder with the same settings, which
earlier calls began. A call that begins while another goes on asks for the runs of both. An estimate
only asks what trainings would cost, so it changes none of this.
"""

import fcntl
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cape_studies.experiments import folders, steps, study
from cape_studies.experiments.plan import Run, Setting
from cape_studies.experiments.study import Study

NAMED = 6  # the most runs that a line names; for more it has their number
CALLS = ".calls"  # each call shares the lock of this file while it goes on


@contextmanager
def going_on(folder: Path, estimate: bool) -> Iterator[bool]:
    """Be one of the calls that go on for a folder, unless it is an estimate; gives whether an
    earlier call still goes on."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / CALLS).open("a") as file:
        other = _shared(file.fileno())
        fcntl.flock(file, fcntl.LOCK_UN if estimate else fcntl.LOCK_SH)
        yield other


def goes_on(folder: Path) -> bool:
    """Whether a call goes on for a folder, on this machine or on one that shares file locks."""
    with suppress(FileNotFoundError), (folder / CALLS).open() as file:
        return _shared(file.fileno())
    return False


def _shared(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def begin(setting: Setting, runs: Sequence[Run], prepared: list[str], call: str, also: bool) -> int:
    """Write the study as this call asks for it, and show its runs as they are now.

    Args:
        setting: of the study.
        runs: of this call.
        prepared: names of what is prepared for them.
        call: the command line.
        also: ask for the runs of earlier calls too, as these still go on.

    Returns:
        the number of the call, for :func:`end`.
    """
    path = setting.folder / "study.yaml"
    with steps.locked(setting.folder / ".lock"):  # two calls at once write one after the other
        before = study.read_yaml(path) if path.exists() else {}
        number = int(before.get("calls", 0)) + 1
        asked = [run.folder.name for run in runs]
        if also:
            asked += before.get("runs", [])
        about = {"prepared": prepared, "call": call, "calls": number}
        _write(setting, runs, before, asked, about)
    return number


def end(setting: Setting, runs: Sequence[Run], number: int) -> None:
    """Write the runs' folders again, unless a later call has asked for something else."""
    path = setting.folder / "study.yaml"
    with steps.locked(setting.folder / ".lock"):
        before = study.read_yaml(path)
        if before.get("calls") == number:
            about = {name: before[name] for name in ("prepared", "call", "calls")}
            _write(setting, runs, before, before["runs"], about)


def estimated(setting: Setting, prepared: list[str], call: str) -> None:
    """Write a study that was only estimated, for ``--cancel`` and ``--status``; an earlier call's
    runs stay."""
    path = setting.folder / "study.yaml"
    with steps.locked(setting.folder / ".lock"):
        before = study.read_yaml(path) if path.exists() else {}
        if not before.get("runs"):
            _write(setting, [], before, [], {"prepared": prepared, "call": call})


def _write(
    setting: Setting,
    runs: Sequence[Run],
    before: dict[str, Any],
    asked: Sequence[str],
    about: dict[str, Any],
) -> None:
    """Write study.yaml with the runs that are asked for, and with others of the same settings."""
    one = setting.study
    listed = "runs", "others"
    known = {name for key in listed for name in before.get(key, [])}
    seeds = [*one.seeds, *(run.seed for run in runs)]
    seeds += sorted(training(name)[1] for name in known)
    every = [Run(setting, v, seed) for v in one.variants for seed in dict.fromkeys(seeds)]
    there = [run for run in every if run.folder.exists()]
    shown = [run for run in there if run.folder.name in asked]
    others = [run for run in there if run not in shown and _counts(run, known)]
    for run in (*shown, *others):
        folders.show(run)
    written = one.model_dump(mode="json", exclude_unset=True)
    written["seeds"] = list(dict.fromkeys(run.seed for run in shown)) or one.seeds
    written["runs"] = [run.folder.name for run in shown]
    written["others"] = [run.folder.name for run in others]
    steps.write(setting.folder / "study.yaml", written | about)


def _counts(run: Run, known: set[str]) -> bool:
    return run.folder.name in known or (run.folder / "scores.csv").exists()


def training(name: str) -> tuple[str, int]:
    """Variant and seed, from the name of a run's folder."""
    variant, _, seed = name.rpartition("-")[0].rpartition("-seed")
    return variant, int(seed)


def unfinished(folder: Path, about: Study) -> dict[str, str]:
    """Runs that the last call asked for and that are not done → their state."""
    states = {name: folders.state(folder / "runs" / name) for name in about.runs}
    return {name: _brief(state) for name, state in states.items() if state != "done"}


def elsewhere(folder: Path, about: Study) -> str:
    """A line that says what else lies in a study's folder; empty if nothing does."""
    paths = sorted(path for path in (folder / "runs").glob("*") if path.is_dir())
    lying = [path.name for path in paths if path.name not in about.runs]
    same = [name for name in lying if name in about.others]
    rest = [name for name in lying if name not in about.others]
    parts = {
        "Not asked for by the last call": same,
        "Of other settings, or of variants that the last call left out": rest,
    }
    told = [f"{why}: {_named(folder, names)}" for why, names in parts.items() if names]
    if not told:
        return ""
    count = len(about.runs)
    only = "This shows no trainings"
    if count:
        only = f"This shows the {count} {_trainings(count)} that the last call asked for"
    return f"{only}. The folder has more. {'. '.join(told)}."


def _named(folder: Path, names: Sequence[str]) -> str:
    shown = [f"{name} ({_state(folder / 'runs' / name)})" for name in names[:NAMED]]
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join([*shown, *more])


def _state(run: Path) -> str:
    """The state of a run that was not asked for."""
    state = _brief(folders.state(run))
    return "never begun" if state == "waiting" else state


def _brief(state: str) -> str:
    """A run's state in a line of several: ``running``, ``failed`` with the reason's beginning."""
    return state[:60] if state.startswith("failed") else state.partition(":")[0]


def why_nothing(folder: Path, about: Study) -> str:
    """Why a study has no scores of trainings that were asked for, and what to type."""
    line = f"{folder} has no scores yet: {call(about)} makes them"
    if not about.runs and about.call:
        line += ". It was only estimated"
    states = unfinished(folder, about)
    if states:
        each = ", ".join(f"{name} ({state})" for name, state in [*states.items()][:NAMED])
        line += f". The last call asked for {len(about.runs)} {_trainings(len(about.runs))}: {each}"
        line += ", …" if len(states) > NAMED else ""
    more = elsewhere(folder, about)
    return f"{line}. {more}" if more else line


def call(about: Study) -> str:
    """What to type to go on."""
    return about.call or f"cape-run {about.path.parent.name}"


def typed(argv: Sequence[str]) -> str:
    """A command line to type again; ``--estimate`` is left out."""
    return shlex.join(["cape-run", *(word for word in argv if word != "--estimate")])


def told(folder: Path, about: Study) -> Iterator[str]:
    """The lines of ``--status`` below a study's runs: whether a report is possible, what to type,
    and which other runs lie in the folder."""
    states = unfinished(folder, about)
    name = f"{about.path.parent.name}: "
    if not about.runs:
        yield f"{name}nothing is trained, it was only estimated; {call(about)} trains"
    elif states and not goes_on(folder) and not goes_on(folder.parent):
        done = len(about.runs) - len(states)
        what = "the report shows only these" if done else "there is nothing to report"
        yield (
            f"{name}{done} of {len(about.runs)} {_trainings(len(about.runs))} done, {what}; "
            f"{call(about)} goes on"
        )
    if more := elsewhere(folder, about):
        yield f"{name}{more}"


def _trainings(count: int) -> str:
    return "training" if count == 1 else "trainings"
