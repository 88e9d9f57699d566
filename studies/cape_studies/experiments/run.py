"""``cape-run``: train a study's variants by the host's own trainer, and test them.

A step that is done is not done again. A step that was interrupted or has failed goes on. A step is
done anew if its settings, versions, code or inputs have changed. ``cape-report`` shows the results.
"""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import psutil
import submitit
from tqdm import tqdm

from cape_studies.ask import estimate
from cape_studies.ask.settings import settle
from cape_studies.evaluation.command import one_line_errors
from cape_studies.experiments import asked, folders, hosts, progress, steps, study
from cape_studies.experiments.plan import Run, Setting, Step, digest, prepare

SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
CANCEL_SECONDS = 30  # for cape-run and its trainers to end


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; bad input ends the process with status 2 and one line, before any work."""
    arguments = parse(argv)
    try:
        with one_line_errors("cape-run"):
            failed = command(arguments)
    except OSError as error:
        sys.exit(f"cape-run: {study.one_line(error)}")
    except KeyboardInterrupt:
        slurm = arguments.cluster == "slurm"
        still = "jobs of SLURM go on, --cancel ends them" if slurm else "all is stopped"
        again = "the same command goes on from the last checkpoints"
        shows = shlex.join(["cape-run", arguments.study, "--out", str(arguments.out), "--status"])
        said = f"cape-run: interrupted, {still}: {again}, {shows} shows what there is"
        print(said, file=sys.stderr, flush=True)
        os._exit(130)  # sys.exit would wait for threads that wait for SLURM or for another cape-run
    if failed:
        sys.exit("\n".join(f"cape-run: {line}" for line in failed))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="cape-run", description=__doc__)
    add = parser.add_argument
    add("study", nargs="?", help="a name from --list, or a YAML")
    about = "changes in Hydra's grammar: seeds=[0,1] options.epochs=1 +options.new=2 ~needs.v2a"
    add("overrides", nargs="*", metavar="KEY=VALUE", help=about)
    add("--list", action="store_true", help="print all studies, what they need and what they cost")
    add("--status", action="store_true", help="print what is done, runs, waits or has failed")
    add("--cancel", action="store_true", help="end the runs of this study")
    add("--variants", nargs="+", metavar="NAME", help="default: those of the study")
    add("--seeds", nargs="+", type=int, metavar="N", help="default: those of the study")
    add("--quick", action="store_true", help="a tiny model and few updates, to see that it runs")
    add(
        "--data",
        nargs="+",
        default=[],
        metavar="[NAME=]DIR",
        help="folders of the data that the study needs",
    )
    add("--out", type=Path, default=Path("out"), help="folder of all results (default: out)")
    add(
        "--estimate", action="store_true", help="for my_… studies: time a few steps, print the cost"
    )
    add("--dry-run", action="store_true", help="print the commands, and what is missing")
    add("--timm-scripts", type=Path, help="folder of timm's train.py (default: TIMM_SCRIPTS)")
    add = parser.add_argument_group("where").add_argument
    add("--cluster", choices=["local", "slurm"], default="local", help="default: local")
    add("--jobs", type=int, default=1, metavar="N", help="runs at a time on this machine")
    about = "GPUs for a run; 0: the CPU. Runs on this machine share the first GPUs"
    add("--gpus", type=int, default=0, metavar="N", help=about)
    add(
        "--timeout",
        type=float,
        default=72,
        metavar="HOURS",
        help="time limit of a SLURM job (default: 72)",
    )
    add("--partition", help="partition of SLURM")
    arguments = parser.parse_intermixed_args(argv)
    arguments.call = asked.typed(sys.argv[1:] if argv is None else argv)
    if not arguments.study and not arguments.list:
        parser.error("which study? cape-run --list shows them")
    for name, least in (("jobs", 1), ("gpus", 0)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name} must be ≥ {least}, got {getattr(arguments, name)}")
    return arguments


def command(arguments: argparse.Namespace) -> list[str]:
    """Do what the command line asks for; returns a line for each step that failed."""
    if arguments.list:
        print(listing())
    elif arguments.status or arguments.cancel:
        out, name = arguments.out.resolve(), study.find(arguments.study).stem
        there = sorted(one for at in ("", "*/") for one in (out / name).glob(f"{at}study.yaml"))
        if not there:
            raise ValueError(f"{out / name} holds no study yet: give the --out it was run with")
        if arguments.cancel:
            print(f"{cancel(out / name, there)} processes of this machine ended")
        print(*status(out, there), sep="\n")
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
    """All studies and sets of studies in ``configs/studies``, a paragraph each."""
    found = []
    for path in study.names():
        one, *more = study.load(path)
        about = [f"{path.stem} ({one.host}): {one.title}", f"costs {one.cost}"]
        about += [f"needs {name}: {need.what}" for name, need in one.needs.items()]
        if more:
            about = [f"{path.stem}: {' + '.join(each.name for each in (one, *more))}"]
        found.append(textwrap.fill("; ".join(about), 100, subsequent_indent="    "))
    return "\n".join(found)


def status(out: Path, there: Sequence[Path]) -> Iterator[str]:
    """A line for each preparation that goes on, and for each run of the study.yaml files."""
    for log in preparing(out, there):
        if steps.held(log):
            yield f"preparing {log.stem}: {steps.last_line(log)[:100]}"
    for path in there:
        one = study.load_written(path)
        for name in one.runs:
            run = path.parent / "runs" / name
            yield f"{run.relative_to(run.parents[2])}: {folders.state(run)}"
        yield from asked.told(path.parent, one)


def preparing(out: Path, there: Sequence[Path]) -> list[Path]:
    """The logs of these studies' preparations."""
    names = {name for path in there for name in study.load_written(path).prepared}
    return sorted(out / "prepared" / f"{name}.log" for name in names)


def cancel(folder: Path, there: Sequence[Path]) -> int:
    """End the cape-runs of these studies, trainers that outlived one, and jobs of SLURM.

    Returns:
        the number of processes of this machine that were asked to end.
    """
    ended: set[int] = set()
    limit = time.monotonic() + CANCEL_SECONDS
    while (found := running(folder.parent, there)) and time.monotonic() < limit:
        for process in found:
            if process.pid not in ended:
                with suppress(psutil.NoSuchProcess):
                    process.terminate()
                ended.add(process.pid)
        time.sleep(0.1)
    if shutil.which("scancel"):
        subprocess.run(["scancel", f"--name={job_name(folder)}"], check=False)
    return len(ended)


def running(out: Path, there: Sequence[Path]) -> list[psutil.Process]:
    """The cape-runs of these studies on this machine; if there are none, what outlived them.

    Each has a file open for writing: a cape-run its study's ``.lock``, a command that it started a
    log. cape-run comes first, as to it a trainer that somebody else ended may seem to be done.
    """
    locks = {path.with_name(".lock") for path in there}
    logs = {log for one in there for run in one.parent.glob("runs/*") for log in folders.logs(run)}
    logs |= {*preparing(out, there)}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            files = {Path(file.path) for file in process.open_files() if file.mode != "r"}
            if files & (locks | logs):
                found.append((process, process.ppid(), files))
    pids = {process.pid for process, _, _ in found}
    return [process for process, _, files in found if files & locks] or [
        process
        for process, parent, files in found
        if parent not in pids
        and ".lock" not in {path.name for path in files}  # it has the lock of another study
    ]


def job_name(folder: Path) -> str:
    """The name of SLURM's jobs for a study or a set with this folder."""
    return f"cape-run-{folder.name}-{digest(folder)}"


class Work:
    """What a command line asks for: preparations and runs of studies, and what prevents them.

    Raises:
        ValueError: a study, a variant or a folder does not fit.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        path = study.find(arguments.study)
        scripts = arguments.timm_scripts or os.environ.get("TIMM_SCRIPTS")
        scripts = Path(scripts).resolve() if scripts else None
        self.machine = hosts.Machine(arguments.gpus, scripts)
        self.slurm = arguments.cluster == "slurm"
        self.out = arguments.out.resolve()
        self.studies = study.load(path, arguments.overrides, arguments.quick)
        self.problems: list[str] = []
        self.preparations: dict[Path, Step] = {}
        self.runs: list[Run] = []
        self.jobs: list[Future[Any]] = []
        self.folder = self.out / path.stem
        data = self._data()
        for one in self.studies if not self.problems else ():
            settle(one, data, self.machine, self.out)
        for one in self.studies:
            of_set = [path.stem] if one.path != path.resolve() else []
            folder = self.out.joinpath(*of_set, one.name)
            own = {name: data.get(name) for name in one.needs}
            setting, before = prepare(one, self.out, self.machine, own, folder)
            self.preparations |= {step.path: step for step in before}
            variants = arguments.variants or one.run
            study.known("--variants", variants, one.variants)
            if arguments.estimate and (one.answer is None or self.slurm):
                raise ValueError("--estimate is for my_… studies that train on this machine")
            for seed in arguments.seeds or one.seeds:
                self.runs += [Run(setting, variant, seed) for variant in variants]

    def _data(self) -> dict[str, Path]:
        """The folders given as ``--data``; a missing one becomes a problem."""
        needs = {name: need for one in self.studies for name, need in one.needs.items()}
        found: dict[str, Path] = {}
        for given in self.arguments.data:
            name, equals, folder = given.rpartition("=")
            if not equals and len(needs) != 1:
                raise ValueError(f"--data must be NAME=DIR here, NAME one of {', '.join(needs)}")
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
                folder = found.pop(name)  # it may be large, so its files are not read
                self.problems.append(f"{folder} has no {lacking[0]}: {name} is {about}")
        return found

    def check(self) -> list[str]:
        """What prevents the runs on this machine, a line each."""
        given = self.arguments
        found: list[str] = []
        if self.slurm and shutil.which("sbatch") is None:
            found.append("--cluster slurm: there is no sbatch on this machine")
        if given.gpus and not self.slurm:
            import torch

            if given.gpus > torch.cuda.device_count():
                found.append(
                    f"--gpus {given.gpus}: there are {torch.cuda.device_count()} on this machine"
                )
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
        for step in self.preparations.values():
            print(f"# prepare {step.path}\n{shlex.join(step.command())}\n")
        for run in self.runs:
            print(f"# train {run.folder}\n{shlex.join(run.train_command)}")
            for name in run.evaluations:
                print(f"# evaluate {name}\n{shlex.join(run.evaluation_command(name))}")
            print()

    def do(self) -> list[str]:
        """Do all preparations and runs; returns a line for each step that failed.

        Raises:
            KeyboardInterrupt: a signal asked to end; the commands on this machine have ended.
            ValueError, OSError: a file of the studies cannot be read or written.
        """
        for number in SIGNALS[1:]:  # they act as Ctrl-C does
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, signal.default_int_handler)
        pool = ThreadPoolExecutor(len(self.runs) if self.slurm else self.arguments.jobs)
        own = self.runs[0].setting.folder
        own.mkdir(parents=True, exist_ok=True)
        lock = (own / ".lock").open("a")  # for --cancel
        with lock, asked.going_on(self.folder, self.arguments.estimate) as also:
            calls = self._begin(also)
            try:
                failed = self._prepare(pool) or self._tell() or self._train(pool)
            except KeyboardInterrupt:
                for number in SIGNALS:
                    signal.signal(number, signal.SIG_IGN)  # once is enough
                pool.shutdown(
                    wait=False, cancel_futures=True
                )  # before a thread is free for the next job
                steps.end()
                wait([job for job in self.jobs if not job.cancelled()], timeout=1)
                raise
            for (setting, runs), call in zip(self._by_study(), calls, strict=False):
                asked.end(setting, runs, call)  # an estimate has no calls
        return failed

    def _by_study(self) -> list[tuple[Setting, list[Run]]]:
        groups = groupby(self.runs, lambda run: run.setting)
        return [(setting, list(runs)) for setting, runs in groups]

    def _begin(self, also: bool) -> list[int]:
        """Write the studies and all their runs as this call asks for them.

        ``also``: with the runs of calls that still go on. Gives the call's number in each study.
        """
        call = self.arguments.call
        prepared = [path.name for path in self.preparations]
        if self.arguments.estimate:
            for setting, _ in self._by_study():
                asked.estimated(setting, prepared, call)
            return []
        for run in self.runs:
            folders.settle(run)
        return [
            asked.begin(setting, runs, prepared, call, also) for setting, runs in self._by_study()
        ]

    def _prepare(self, pool: ThreadPoolExecutor) -> list[str]:
        for step in self.preparations.values():
            if not step.done():
                print(f"preparing {step.path}", flush=True)
            self.jobs = [pool.submit(steps.make, step)]
            if error := self.jobs[0].exception():
                return [f"preparing {step.path.name} failed: {study.one_line(error)}"]
        return []

    def _tell(self) -> list[str]:
        """For a study of the user's data, print what the data hold and what trainings will take."""
        if self.runs[0].study.answer and not self.slurm:  # with SLURM other machines train
            print(estimate.told(self.runs, self.arguments.jobs), flush=True)
        if self.arguments.estimate:
            self.runs = []
        return []

    def _train(self, pool: ThreadPoolExecutor) -> list[str]:
        failed = []
        for second in (False, True):  # then runs that start from another training
            now = [run for run in self.runs if bool(run.start) is second]
            self.jobs = [pool.submit(self._run, run) for run in now]
            if not self.slurm:
                with progress.shown(now):
                    wait(self.jobs)
            for run, job in zip(now, self.jobs, strict=True):
                if error := job.result():
                    failed.append(f"{run.folder}: {error}")
        return failed

    def _run(self, run: Run) -> str:
        """Do a run, and print a line at its beginning and its end; returns what went wrong."""
        label = progress.label(run)
        self._say(f"{label}: {run.folder}")
        try:
            if folders.state(run.folder) != "done":
                (self._submit if self.slurm else folders.make)(run)
            told = folders.state(run.folder)
        except SystemExit:
            told = "interrupted"
        except Exception as error:
            told = f"failed: {study.one_line(error)}"
        self._say(f"{label}: {told}")
        return "" if told == "done" else told

    def _say(self, line: str) -> None:
        """Print a line above a terminal's bars; in one write, as runs print at the same time."""
        tqdm.write(f"{line}\n", file=sys.stdout, end="")
        sys.stdout.flush()

    def _submit(self, run: Run) -> None:
        """Do a run by a job of SLURM: by an earlier call's, if it still waits or runs, else by a
        new one."""
        given = self.arguments
        note = run.folder / "job"
        executor = submitit.SlurmExecutor(self.out / ".slurm")
        executor.update_parameters(
            job_name=job_name(self.folder),
            time=int(60 * given.timeout),
            gpus_per_node=given.gpus or None,
            nodes=1,
            partition=given.partition,
            use_srun=False,  # cape-run starts the command itself
        )
        for again in (True, False):
            with steps.locked(note):
                sent = note.read_text()
                if not sent or submitit.SlurmJob(executor.folder, sent).done(force_check=True):
                    sent, again = executor.submit(folders.make, run).job_id, False
                    note.write_text(sent)
            submitit.SlurmJob(executor.folder, sent).wait()
            folders.show(run)  # an earlier call's job may have done other evaluations
            if not again or folders.state(run.folder) == "done":
                break
