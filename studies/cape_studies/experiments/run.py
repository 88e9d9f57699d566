"""``cape-run``: a study's trainings by each host's own trainer, its tests and scores.

Steps are cached by settings, versions, code and inputs: what is done is not done again, what was
interrupted or has failed goes on, what has changed is done anew. ``cape-report`` shows the results.
"""

import argparse
import logging
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from exca.cachedict.inflight import Pid
from exca.steps.backends import Backend, Cached, Slurm

from cape_studies.evaluation.command import one_line_errors
from cape_studies.experiments import hosts, steps, study
from cape_studies.experiments.plan import Preparation, Run, Setting, digest, prepare

SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
CANCEL_SECONDS = 30  # for cape-run and its trainers to end


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; bad input ends it with status 2 and one line, before any work."""
    arguments = parse(argv)
    try:
        with one_line_errors("cape-run"):
            failed = command(arguments)
    except KeyboardInterrupt:
        slurm = arguments.cluster == "slurm"
        still = "jobs of SLURM go on, --cancel ends them" if slurm else "all is stopped"
        print(
            f"cape-run: interrupted, {still}: the same command goes on from the last checkpoints, "
            f"cape-run {arguments.study} --out {arguments.out} --status shows what there is",
            file=sys.stderr,
            flush=True,
        )
        os._exit(130)  # threads that wait for SLURM or another cape-run would hold an exit
    if failed:
        sys.exit("\n".join(f"cape-run: {line}" for line in failed))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="cape-run", description=__doc__)
    add = parser.add_argument
    add("study", nargs="?", help="a name in configs/studies, or a YAML")
    about = "changes in Hydra's grammar: seeds=[0,1] options.epochs=1 +options.new=2 ~needs.v2a"
    add("overrides", nargs="*", metavar="KEY=VALUE", help=about)
    add("--list", action="store_true", help="the studies, what they need, what they cost")
    add("--status", action="store_true", help="what is done, runs, waits or has failed")
    add("--cancel", action="store_true", help="end what runs of the study")
    add("--variants", nargs="+", metavar="NAME", help="default: the study's")
    add("--seeds", nargs="+", type=int, metavar="N", help="default: the study's")
    add("--quick", action="store_true", help="with the study's changes to see that it runs")
    add("--data", nargs="+", default=[], metavar="[NAME=]DIR", help="what the study needs")
    add("--out", type=Path, default=Path("out"), help="folder of all results (default: out)")
    add("--dry-run", action="store_true", help="print the commands, and what is missing")
    add("--timm-scripts", type=Path, help="folder of timm's train.py (default: TIMM_SCRIPTS)")
    add = parser.add_argument_group("where").add_argument
    add("--cluster", choices=["local", "slurm"], default="local", help="default: local")
    add("--jobs", type=int, default=1, metavar="N", help="runs at a time on this machine")
    about = "of a run on each node; 0: the CPU. On this machine --jobs share the first ones"
    add("--gpus", type=int, default=0, metavar="N", help=about)
    add("--nodes", type=int, default=1, metavar="N", help="of a run, with SLURM")
    add("--timeout", type=float, default=72, metavar="HOURS", help="of SLURM (default: 72)")
    add("--partition", help="of SLURM")
    arguments = parser.parse_intermixed_args(argv)
    if not arguments.study and not arguments.list:
        parser.error("which study? cape-run --list shows them")
    for name, least in (("jobs", 1), ("gpus", 0), ("nodes", 1)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name} must be ≥ {least}, got {getattr(arguments, name)}")
    return arguments


def command(arguments: argparse.Namespace) -> list[str]:
    """Do what the command line asks for; returns a line for each step that failed."""
    if arguments.list:
        print(listing())
    elif arguments.status or arguments.cancel:
        folder = arguments.out.resolve() / study.find(arguments.study).stem
        folders = sorted(one.parent for at in ("", "*/") for one in folder.glob(f"{at}study.yaml"))
        if not folders:
            raise ValueError(f"{folder} holds no study yet: give the --out that it was run with")
        print(cancel(folder, folders) if arguments.cancel else status(folders))
    else:
        work = Work(arguments)
        problems = [*work.problems, *hosts.problems(work.studies, work.machine), *work.check()]
        if not arguments.dry_run and not problems:
            return work.do()
        if not arguments.dry_run:
            raise ValueError(problems[0])
        work.show()
        print(*(f"cape-run: missing: {one}" for one in problems), sep="\n", file=sys.stderr)
    return []


def listing() -> str:
    """All studies of the checkout, and the sets of them."""
    found = []
    for path in study.names():
        one, *more = study.load(path)
        about = [f"{path.stem} ({one.host}): {one.title}", f"costs {one.cost}"]
        about += [f"needs {name}: {need.what}" for name, need in one.needs.items()]
        if more:
            about = [f"{path.stem}: {' + '.join(each.name for each in (one, *more))}"]
        found.append(textwrap.fill("; ".join(about), 100, subsequent_indent="    "))
    return "\n".join(found)


def status(folders: Sequence[Path]) -> str:
    """A line for each run of the studies in these folders."""
    runs = [
        folder / "runs" / name
        for folder in folders
        for name in study.load_written(folder / "study.yaml").runs
    ]
    return "\n".join(f"{run.relative_to(run.parents[2])}: {steps.state(run)}" for run in runs)


def cancel(folder: Path, folders: Sequence[Path]) -> str:
    """End cape-run where it runs these studies, trainers that outlived it, and jobs of SLURM."""
    ended: set[int] = set()
    limit = time.monotonic() + CANCEL_SECONDS
    while (there := running(folders)) and time.monotonic() < limit:
        for pid in there - ended:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        ended |= there
        time.sleep(0.1)
    if shutil.which("scancel"):
        subprocess.run(["scancel", f"--name={job_name(folder)}"], check=False)
    return f"{len(ended)} processes of this machine ended\n{status(folders)}"


def running(folders: Sequence[Path]) -> set[int]:
    """Of this machine, cape-run where it runs these studies; if it does not, trainers without it.

    A trainer that another asked to end may seem to be done to those who wait for it.
    """
    for locks, alive in ((".cape-run-*", [True]), ("runs/*/.lock", [False, True])):
        holders = [steps.holder(path) or ["none"] for one in folders for path in one.glob(locks)]
        found = {
            int(pids[-1])
            for host, *pids in holders
            if [Pid(host=host, pid=int(pid)).is_alive() for pid in pids] == alive
        }
        if found:
            return found
    return set()


def job_name(folder: Path) -> str:
    """Of SLURM's jobs of a study, or of a set, with this folder."""
    return f"cape-run-{folder.name}-{digest(folder)}"


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
        self.slurm = arguments.cluster == "slurm"
        self.out = arguments.out.resolve()
        self.studies = study.load(path, arguments.overrides, arguments.quick)
        self.problems: list[str] = []
        self.preparations: list[Preparation] = []
        self.runs: list[Run] = []
        self.jobs: list[Future[None]] = []
        self.infra = self._infra(self.out / path.stem)
        data = self._data()
        for one in self.studies:
            of_set = [path.stem] if one.path != path.resolve() else []
            folder = self.out.joinpath(*of_set, one.name)
            own = {name: data.get(name) for name in one.needs}
            setting, before = prepare(one, self.out, self.machine, own, folder)
            self.preparations += [step for step in before if step not in self.preparations]
            variants = arguments.variants or one.run
            study.known("--variants", variants, one.variants)
            for seed in arguments.seeds or one.seeds:
                self.runs += [Run(setting, variant, seed) for variant in variants]

    def _infra(self, folder: Path) -> Backend:
        """exca's: where jobs run, and the cache."""
        given = self.arguments
        about: dict[str, Any] = {"folder": self.out / ".exca", "mode": "retry"}
        if not self.slurm:
            return Cached(**about)
        about |= {"timeout_min": int(60 * given.timeout), "gpus_per_node": given.gpus or None}
        about |= {"nodes": given.nodes, "partition": given.partition}
        return Slurm(job_name=job_name(folder), **about)

    def _data(self) -> dict[str, Path]:
        """What was given as ``--data``; what is missing becomes a problem."""
        needs = {name: need for one in self.studies for name, need in one.needs.items()}
        found: dict[str, Path] = {}
        for given in self.arguments.data:
            name, equals, folder = given.rpartition("=")
            if not equals and len(needs) != 1:
                raise ValueError(f"--data takes NAME=DIR here; NAMEs are {', '.join(needs)}")
            name = name if equals else next(iter(needs))
            study.known("--data (changes stand before it)", [name], needs)
            found[name] = Path(folder).resolve()
        for name, need in needs.items():
            about = f"{need.what} ({need.source}), laid out as {need.layout}"
            if name not in found:
                self.problems.append(f"give --data {name}=DIR: {about}")
            elif not found[name].is_dir():
                self.problems.append(f"no such folder: {found[name]}; {name} is {about}")
            elif lacking := [one for one in need.files if not any(found[name].glob(one))]:
                self.problems.append(f"{found[name]} has no {lacking[0]}: {name} is {about}")
        return found

    def check(self) -> list[str]:
        """What of this machine stands in the way of the runs, a line each."""
        given, found = self.arguments, []
        if self.slurm and shutil.which("sbatch") is None:
            found.append("--cluster slurm: there is no sbatch here")
        if given.nodes > 1 and not self.slurm:
            found.append("--nodes needs --cluster slurm")
        if given.gpus and not self.slurm:
            import torch

            if given.gpus > torch.cuda.device_count():
                found.append(f"--gpus {given.gpus}: there are {torch.cuda.device_count()} here")
        needed = sum(run.study.disk_gb for run in self.runs if not run.folder.exists())
        there = next(folder for folder in (self.out, *self.out.parents) if folder.exists())
        try:
            with tempfile.TemporaryFile(dir=there):
                free = shutil.disk_usage(there).free / 1e9
            if free < needed:
                found.append(f"{there} has {free:.1f} GB free, the runs take about {needed:.1f}")
        except OSError as error:
            found.append(f"--out {self.out} cannot be written: {error.strerror}")
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

    def do(self) -> list[str]:
        """Prepare, then run all; returns a line for each step that failed.

        Raises:
            KeyboardInterrupt: a signal asked to end; what ran on this machine has ended.
        """
        for name in ("exca", "submitit"):
            logging.getLogger(name).setLevel(logging.ERROR)
        for number in SIGNALS[1:]:  # are what Ctrl-C is
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
                signal.signal(number, signal.default_int_handler)
        at_once = len(self.runs) if self.slurm else self.arguments.jobs
        pool = ThreadPoolExecutor(at_once)  # of threads: the work is that of other processes
        name = f".cape-run-{socket.gethostname()}-{os.getpid()}"
        note = self.runs[0].setting.folder / name  # for --cancel
        with steps.locked(note):
            try:
                return self._prepare(pool) or self._train(pool)
            except KeyboardInterrupt:
                for number in SIGNALS:
                    signal.signal(number, signal.SIG_IGN)  # once is enough
                pool.shutdown(wait=False, cancel_futures=True)  # before an end frees a thread
                steps.end()
                wait([job for job in self.jobs if not job.cancelled()], timeout=1)
                raise
            finally:
                note.unlink()

    def _prepare(self, pool: ThreadPoolExecutor) -> list[str]:
        for step in self.preparations:
            found = steps.Prepare(infra=self.infra).lookup(step)
            if found.status == "success" and not step.folder.exists():
                found.clear_cache()
            if found.status != "success":
                print(f"preparing {step.folder}", flush=True)
            self.jobs = [pool.submit(steps.Prepare(infra=self.infra).run, step)]
            if error := self.jobs[0].exception():
                return [f"preparing {step.name} failed: {study.one_line(error)}"]
        return []

    def _train(self, pool: ThreadPoolExecutor) -> list[str]:
        for run in self.runs:
            steps.forget(run, self.infra)
        for setting, runs in groupby(self.runs, lambda run: run.setting):
            write_study(setting, list(runs))
        failed = []
        for second in (False, True):  # those that start from another training
            now = [run for run in self.runs if bool(run.start) is second]
            self.jobs = [pool.submit(self._run, run) for run in now]
            ended = [(run, job.exception()) for run, job in zip(now, self.jobs, strict=True)]
            failed += [f"{run.folder}: {steps.state(run.folder)}" for run, error in ended if error]
        return failed

    def _run(self, run: Run) -> None:
        """A run, with a line where it begins and where it ends."""
        label = f"{run.study.name} {run.variant} seed {run.seed}"  # and one write for each line
        print(f"{label}: {run.folder}\n", end="", flush=True)
        try:
            steps.Whole(infra=self.infra).run(run)
        finally:
            print(f"{label}: {steps.state(run.folder)}\n", end="", flush=True)


def write_study(setting: Setting, runs: list[Run]) -> None:
    """The study as it was run, and its runs: those of this call, those done before, and those of
    another call that still goes on."""
    one, path = setting.study, setting.folder / "study.yaml"
    with steps.locked(setting.folder / ".lock"):  # two calls at once write one after the other
        before = study.read_yaml(path) if path.exists() else {}
        known = {*before.get("runs", []), *(run.folder.name for run in runs)}
        seeds = [*one.seeds, *before.get("seeds", []), *(run.seed for run in runs)]
        seeds = list(dict.fromkeys(seeds))
        every = [Run(setting, variant, seed).folder for variant in one.variants for seed in seeds]
        kept = [at.name for at in every if at.name in known or (at / "scores.csv").exists()]
        about = one.model_dump(mode="json", exclude_unset=True) | {"seeds": seeds, "runs": kept}
        steps.write(path, about)
