"""``cape-run``: a study's trainings by each host's own trainer, its tests and scores.

Steps are cached by settings, versions and inputs: what is done is not done again, what was
interrupted goes on, what has changed is done anew. ``cape-report`` shows the results.
"""

import argparse
import logging
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from exca.steps.backends import Backend, LocalProcess, Slurm
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from cape_plugins.evaluation.command import one_line_errors
from cape_plugins.evaluation.table import table
from cape_plugins.experiments import hosts, steps, study
from cape_plugins.experiments.plan import Preparation, Run, Setting, prepare

QUIET_SECONDS = 60  # between lines of a run where there is no terminal


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; bad input ends it with status 2 and one line, before any work."""
    arguments = parse(argv)
    with one_line_errors("cape-run"):
        if arguments.list:
            print(listing())
            return
        work = Work(arguments)
        problems = [*work.problems, *hosts.problems(work.studies, work.machine), *work.check()]
        if problems and not arguments.dry_run:
            raise ValueError(problems[0])
    if arguments.dry_run:
        work.show()
        print(*(f"cape-run: missing: {one}" for one in problems), sep="\n", file=sys.stderr)
    elif failed := work.do():
        sys.exit("\n".join(f"cape-run: {line}" for line in failed))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="cape-run", description=__doc__)
    add = parser.add_argument
    add("study", nargs="?", help="a name in configs/studies, or a YAML")
    add("--list", action="store_true", help="the studies, what they need, what they cost")
    add("--variants", nargs="+", metavar="NAME", help="default: all")
    add("--seeds", nargs="+", type=int, metavar="N", help="default: the study's")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="such as options.epochs=1")
    add("--quick", action="store_true", help="with the study's changes to see that it runs")
    add("--data", nargs="+", default=[], metavar="[NAME=]DIR", help="what the study needs")
    add("--out", type=Path, default=Path("out"), help="folder of all results (default: out)")
    add("--dry-run", action="store_true", help="print the commands, and what is missing")
    add("--force", action="store_true", help="all anew: the results of these runs are lost")
    add("--retry", action="store_true", help="once more what has failed")
    add("--timm-scripts", type=Path, help="folder of timm's train.py (default: TIMM_SCRIPTS)")
    add = parser.add_argument_group("where").add_argument
    add("--cluster", choices=["local", "slurm"], default="local", help="default: local")
    add("--jobs", type=int, default=1, metavar="N", help="runs at a time on this machine")
    about = "of a run on each node; 0: the CPU. On this machine --jobs share the first ones"
    add("--gpus", type=int, default=0, metavar="N", help=about)
    add("--nodes", type=int, default=1, metavar="N", help="of a run, with SLURM")
    add("--timeout", type=float, default=72, metavar="HOURS", help="of a run (default: 72)")
    add("--partition", help="of SLURM")
    arguments = parser.parse_args(argv)
    if not arguments.study and not arguments.list:
        parser.error("which study? cape-run --list shows them")
    for name, least in (("jobs", 1), ("gpus", 0), ("nodes", 1)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name} must be ≥ {least}, got {getattr(arguments, name)}")
    return arguments


def listing() -> str:
    """All studies of the checkout as a table, and the sets of them."""
    rows = []
    for path in study.names():
        found = study.load(path)
        if found[0].path == path.resolve():
            (one,) = found
            needs = "; ".join(f"{name}: {need.what}" for name, need in one.needs.items())
            rows.append([path.stem, one.host, one.title, needs or "nothing", one.cost])
        else:
            rows.append([path.stem, "", " + ".join(one.name for one in found), "", ""])
    return table(["study", "host", "what", "needs", "cost"], rows)


class Work:
    """A command line understood: preparations and runs of its studies, and what stands in the way.

    Raises:
        ValueError: a study, a variant or a folder that does not fit.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, path = arguments, study.find(arguments.study)
        scripts = arguments.timm_scripts or os.environ.get("TIMM_SCRIPTS")
        scripts = Path(scripts).resolve() if scripts else None
        self.machine = hosts.Machine(arguments.gpus, arguments.nodes, scripts)
        self.out = arguments.out.resolve()
        self.studies = study.load(path, arguments.set, arguments.quick)
        self.problems: list[str] = []
        data = self._data()
        self.preparations: list[Preparation] = []
        self.runs: list[Run] = []
        for one in self.studies:
            of_set = [path.stem] if one.path != path.resolve() else []
            folder = self.out.joinpath(*of_set, one.name)
            own = {name: data.get(name) for name in one.needs}
            setting, before = prepare(one, self.out, self.machine, own, folder)
            self.preparations += [step for step in before if step not in self.preparations]
            variants = arguments.variants or list(one.variants)
            study.known("--variants", variants, one.variants)
            for seed in arguments.seeds or one.seeds:
                self.runs += [setting.run(variant, seed) for variant in variants]

    def _data(self) -> dict[str, Path]:
        """What was given as ``--data``; what is missing becomes a problem."""
        needs = {name: need for one in self.studies for name, need in one.needs.items()}
        found: dict[str, Path] = {}
        for given in self.arguments.data:
            name, equals, folder = given.rpartition("=")
            if not equals and len(needs) != 1:
                raise ValueError(f"--data takes NAME=DIR here; NAMEs are {', '.join(needs)}")
            name = name if equals else next(iter(needs))
            study.known("--data", [name], needs)
            found[name] = Path(folder).resolve()
        for name, need in needs.items():
            about = f"{need.what} ({need.source}), laid out as {need.layout}"
            if name not in found:
                self.problems.append(f"give --data {name}=DIR: {about}")
            elif lacking := [one for one in need.files if not any(found[name].glob(one))]:
                self.problems.append(f"{found[name]} has no {lacking[0]}: {name} is {about}")
        return found

    def check(self) -> list[str]:
        """What stands in the way of the runs, a line each."""
        given, gpus, found = self.arguments, self.machine.gpus, []
        if given.cluster == "slurm" and shutil.which("sbatch") is None:
            found.append("--cluster slurm: there is no sbatch here")
        elif given.cluster == "local":
            if given.nodes > 1:
                found.append("--nodes needs --cluster slurm")
            if gpus:
                import torch

                if gpus > torch.cuda.device_count():
                    found.append(f"--gpus {gpus}: there are {torch.cuda.device_count()} here")
        needed = sum(run.study.disk_gb for run in self.runs if not run.folder.exists())
        there = next(folder for folder in (self.out, *self.out.parents) if folder.exists())
        free = shutil.disk_usage(there).free / 1e9
        if free < needed:
            found.append(f"{there} has {free:.1f} GB free, the runs take about {needed:.1f}")
        for run in self.runs:
            path = run.folder / "settings.yaml"
            kept = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
            if kept and any(kept.get(key) != value for key, value in run.settings.items()):
                found.append(f"{run.folder} holds a run of other settings: move it away")
        return found

    def show(self) -> None:
        """Print what would be done."""
        for step in self.preparations:
            print(f"# prepare {step.folder}\n{shlex.join(step.command)}\n")
        for run in self.runs:
            print(f"# train {run.folder}\n{shlex.join(run.train_command)}")
            for name in run.evaluations:
                print(f"# evaluate {name}\n{shlex.join(run.evaluation_command(name))}")
            print()

    def infra(self) -> Backend:
        """exca's: where jobs run, and the cache."""
        given = self.arguments
        about: dict[str, Any] = {
            "folder": self.out / ".exca",
            "mode": "retry" if given.retry else "cached",
            "timeout_min": int(60 * given.timeout),
            "gpus_per_node": given.gpus or None,
            "job_name": "cape-run",
        }
        if given.cluster == "local":
            return LocalProcess(**about)
        own = {"nodes": given.nodes, "partition": given.partition}
        return Slurm(**about, **own, max_jobs=len(self.runs))

    def do(self) -> list[str]:
        """Prepare, then run all; returns a line for each step that failed."""
        console, infra = Console(soft_wrap=True), self.infra()
        logging.getLogger("exca").setLevel(logging.ERROR)
        logging.getLogger("submitit").setLevel(logging.ERROR)
        for step in self.preparations:
            found = steps.Prepare(infra=infra).lookup(step)
            if found.status == "success" and not step.folder.exists():
                found.clear_cache()
            if found.status != "success":
                console.print(f"preparing {step.folder}")
            try:
                steps.Prepare(infra=infra).run(step)
            except Exception as error:
                return [f"preparing {step.name} failed: {why(found, error)}"]
        for run in self.runs:
            steps.forget(run, infra, everything=self.arguments.force)
        for setting, runs in groupby(self.runs, lambda run: run.setting):
            write_study(setting, list(runs))
        failed = []
        for second in (False, True):  # those that start from another training
            runs_now = [run for run in self.runs if bool(run.start) is second]
            failed += self._together(runs_now, infra, console) if runs_now else []
        return failed

    def _together(self, runs: list[Run], infra: Backend, console: Console) -> list[str]:
        at_once = self.arguments.jobs
        if self.arguments.cluster == "slurm":  # one array; then each is waited for
            steps.Whole(infra=infra).run_many(runs)
            at_once = len(runs)
        with ThreadPoolExecutor(at_once) as pool:
            jobs = {pool.submit(steps.Whole(infra=infra).run, run): run for run in runs}
            watch(jobs, console)
        return [
            f"{run.folder} failed: {why(steps.Whole(infra=infra).lookup(run), error)}"
            for job, run in jobs.items()
            if (error := job.exception())
        ]


def why(found: Any, error: BaseException) -> str:
    """Why a step failed, in a line: what it raised, which exca keeps, or that it was ended."""
    if found.status != "error":
        return f"it was interrupted, the same command goes on ({str(error).splitlines()[0]})"
    try:
        return str(found.result())
    except Exception as kept:
        return f"{str(kept).splitlines()[0]}; --retry tries again"


def write_study(setting: Setting, runs: list[Run]) -> None:
    """The study as it was run, and its runs: those of this call, those done before, and those of
    another call that still goes on."""
    one, path = setting.study, setting.folder / "study.yaml"
    before = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    known = {*before.get("runs", []), *(run.folder.name for run in runs)}
    seeds = list(dict.fromkeys([*one.seeds, *before.get("seeds", []), *(run.seed for run in runs)]))
    every = [setting.run(variant, seed).folder for variant in one.variants for seed in seeds]
    kept = [at.name for at in every if at.name in known or (at / "scores.csv").exists()]
    about = one.model_dump(mode="json", exclude_unset=True) | {"seeds": seeds, "runs": kept}
    setting.folder.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(about, sort_keys=False, allow_unicode=True), encoding="utf-8")


def watch(jobs: dict[Future[str], Run], console: Console) -> None:
    """A live line for each running job until all have ended; without a terminal, now and then."""
    columns = TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[about]}")
    shown: dict[Future[str], TaskID] = {}
    left, told, live = set(jobs), time.monotonic(), console.is_terminal
    bars = Progress(*columns, TextColumn("ETA"), TimeRemainingColumn(), console=console)
    bars.disable = not live
    with bars:
        while left:
            done, _ = wait(left, 1, FIRST_COMPLETED)
            due = not live and time.monotonic() - told > QUIET_SECONDS
            told = time.monotonic() if due else told
            for job in [job for job in left if job.running() or job in done]:
                run = jobs[job]
                label = f"{run.study.name} {run.variant} seed {run.seed}"
                if job not in shown:
                    shown[job] = bars.add_task(label, total=None, about="")
                    console.print(f"{label}: {run.folder}")
                step, of, about = steps.state(run)
                bars.update(shown[job], completed=step, total=of, about=about)
                if job in done:
                    bars.remove_task(shown[job])
                    about = "failed" if job.exception() else "done"
                if due or job in done:
                    console.print(f"{label}: {about}")
            left -= done
