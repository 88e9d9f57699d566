"""What the three demos share: running the host's commands, and one report format."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import matplotlib
from tabulate import tabulate

matplotlib.use("Agg")
from matplotlib import pyplot as plt

QUIET_SECONDS = 20  # a sign of life after this long without a line to show


@dataclass
class Run:
    """One trained model and what it scored.

    Attributes:
        variant: nopos, abspos, sinpos or cape.
        seed: of the host's trainer.
        scores: test condition (a size, a length) → score, in the order to be shown.
        train_seconds: wall time of the training.
    """

    variant: str
    seed: int
    scores: dict[str, float]
    train_seconds: float


@dataclass
class Report:
    """The result of one host's demo; saved as JSON, drawn as a PNG, printed as Markdown.

    Attributes:
        host: timm, fairseq or espnet.
        task: what was trained, in a few words.
        condition: what the keys of ``scores`` are, with the unit.
        metric: what the scores are, with the unit.
        higher_is_better: of the metric.
        trained_on: the condition (or conditions) seen in training.
        settings: everything else that a reader needs to repeat it.
    """

    host: str
    task: str
    condition: str
    metric: str
    higher_is_better: bool
    trained_on: list[str]
    settings: dict[str, object] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        """Write ``<host>.json`` and ``<host>.png`` into the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        data = {**asdict(self), "versions": versions(), "machine": machine()}
        (folder / f"{self.host}.json").write_text(json.dumps(data, indent=2) + "\n")
        self.draw(folder / f"{self.host}.png")

    @classmethod
    def load(cls, path: Path) -> "Report":
        """Read what :meth:`save` wrote."""
        data = json.loads(path.read_text())
        known = {name: data[name] for name in cls.__dataclass_fields__}
        return cls(**{**known, "runs": [Run(**run) for run in data["runs"]]})

    def draw(self, path: Path) -> None:
        """Draw score against condition, one line per variant (mean and range over seeds)."""
        figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
        conditions = list(self.runs[0].scores)
        at = range(len(conditions))
        for variant in dict.fromkeys(run.variant for run in self.runs):
            runs = [run for run in self.runs if run.variant == variant]
            table = [[run.scores[c] for run in runs] for c in conditions]
            axes.plot(at, [sum(row) / len(row) for row in table], "o-", label=variant)
            axes.fill_between(at, [min(r) for r in table], [max(r) for r in table], alpha=0.2)
        for index, condition in enumerate(conditions):
            if condition in self.trained_on:
                axes.axvspan(index - 0.4, index + 0.4, color="0.9", zorder=0)
        axes.set_xticks(at, conditions)
        axes.set_xlabel(f"{self.condition}; grey: seen in training")
        axes.set_ylabel(self.metric)
        axes.set_title(f"{self.host}: {self.task}", fontsize="medium")
        axes.legend()
        axes.grid(alpha=0.3)
        figure.savefig(path, dpi=120)
        plt.close(figure)

    def table(self) -> str:
        """The scores as a Markdown table."""
        return markdown([self])


def markdown(reports: Sequence[Report]) -> str:
    """One Markdown table: host × condition down, variants across; bold: seen in training."""
    variants = list(dict.fromkeys(run.variant for report in reports for run in report.runs))
    rows = []
    for report in reports:
        better = "↑" if report.higher_is_better else "↓"
        for condition in report.runs[0].scores:
            shown = f"**{condition}**" if condition in report.trained_on else condition
            row: list[object] = [report.host, f"{report.metric} {better}", shown]
            for variant in variants:
                scores = [r.scores[condition] for r in report.runs if r.variant == variant]
                row.append(sum(scores) / len(scores) if scores else "")  # mean over seeds
            rows.append(row)
    notes = []
    for report in reports:
        seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in report.runs}))
        note = f"{report.host}: {report.task}; tested at: {report.condition}; seed {seeds}"
        notes.append(note)
    legend = "**bold**: seen in training; ↑ higher is better, ↓ lower is better"
    head = ["host", "metric", "tested at", *variants]
    table = tabulate(rows, head, tablefmt="github", floatfmt=".1f", disable_numparse=[2])
    return "\n".join([table, "", *notes, legend])


def host_command(module: str, *arguments: object) -> list[str]:
    """The command line ``python -m module arguments…`` in this environment."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def run_side_by_side(
    jobs: dict[str, Sequence[str]],
    folder: Path,
    *,
    show: Sequence[str] = (),
    threads: int = 1,
    cwd: Path | None = None,
) -> dict[str, float]:
    """Run commands at once, one thread each: on small models two of them beat two threads.

    Args:
        jobs: name → command. The whole output of each goes to ``folder/<name>.log``.
        folder: where the logs go.
        show: lines that hold one of these strings are also printed, behind the job's name.
        threads: per command.
        cwd: where the commands run.

    Returns:
        name → wall time in seconds.

    Raises:
        SystemExit: a command failed; the end of its log is printed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
    }
    start = time.monotonic()
    running = {}
    for name, command in jobs.items():
        log = (folder / f"{name}.log").open("w")
        running[name] = subprocess.Popen(
            command, env=environment, cwd=cwd, stdout=log, stderr=subprocess.STDOUT
        )
        log.close()
    read = dict.fromkeys(jobs, 0)
    seconds: dict[str, float] = {}
    told = start
    while len(seconds) < len(jobs):
        time.sleep(0.2)
        if time.monotonic() - told > QUIET_SECONDS:
            told = time.monotonic()
            waiting = ", ".join(name for name in jobs if name not in seconds)
            print(f"  … {waiting}: {told - start:.0f} s", flush=True)
        for name, process in running.items():
            if name in seconds:
                continue
            ended = process.poll() is not None  # before reading, so that nothing is missed
            read[name], printed = _print_new_lines(folder / f"{name}.log", read[name], name, show)
            told = time.monotonic() if printed else told
            if not ended:
                continue
            seconds[name] = time.monotonic() - start
            if process.returncode:
                for other in running.values():
                    other.kill()
                tail = (folder / f"{name}.log").read_text(errors="replace")[-4000:]
                raise SystemExit(
                    f"{tail}\n{name} failed with exit status {process.returncode}; "
                    f"its whole log: {folder / f'{name}.log'}\n"
                    f"the command: {' '.join(jobs[name])}"
                )
    return seconds


def _print_new_lines(log: Path, start: int, name: str, show: Sequence[str]) -> tuple[int, bool]:
    with log.open("rb") as file:
        file.seek(start)
        text = file.read()
    whole = text[: text.rfind(b"\n") + 1]
    lines = whole.decode(errors="replace").splitlines()
    shown = [line.strip()[:160] for line in lines if any(part in line for part in show)]
    for line in shown:
        print(f"  [{name}] {line}", flush=True)
    return start + len(whole), bool(shown)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that the numbers depend on."""
    found = {"python": platform.python_version()}
    for package in (
        *("cape-plugins", "torch", "timm", "fairseq-fixed", "fairseq", "espnet"),
        *("lightning", "scikit-learn", "num2words", "numpy"),
    ):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, object]:
    """The machine, as far as it says."""
    return {"processor": _processor(), "cores": os.cpu_count(), "system": platform.platform()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
