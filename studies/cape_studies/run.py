"""``cape-run``: train a study's variants by the host's own trainer, and test them."""

import os
import shlex
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import submitit
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from tqdm import tqdm
from tyro.conf import Positional

from cape_studies import command, config, estimate, hosts, process, work
from cape_studies.options import Options
from cape_studies.plan import Plan, Prepared, Run, known_data, lacking

SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


class StudyOptions(Options):
    """What cape-run and cape-report are told of a study."""

    study: Positional[str | None] = Field(None, description="a name from --list, or a YAML")
    overrides: Positional[list[str]] = Field(
        [], description="changes in Hydra's grammar: seeds=[0,1] options.epochs=1 ~needs.v2a"
    )
    data: list[str] = Field([], description="[NAME=]DIR: folders of the data that the study needs")
    out: Path = Field(Path("out"), description="folder of all results")
    quick: bool = Field(False, description="a tiny model and few updates, to see that it runs")
    gpus: NonNegativeInt = Field(0, description="GPUs for a run; 0: the CPU")
    timm_scripts: Path | None = Field(None, description="folder of timm's train.py")

    def plans(self) -> tuple[list[Plan], list[str]]:
        """Of each study of a set, or of the one; and what is missing of their data.

        Raises:
            ValueError: there is no such study, or a change does not fit.
        """
        if self.study is None:
            raise ValueError("which study? cape-run --list shows them")
        paths = config.studies_of(config.find(self.study))
        studies = [config.load(path) for path in paths if self.data]
        data, changes = known_data(self.data, studies)
        scripts = self.timm_scripts.resolve() if self.timm_scripts else None
        given: dict[str, Any] = {"quick": self.quick, "data": data, "out": self.out.resolve()}
        given |= {"machine": hosts.Machine(self.gpus, scripts), "named": {}}
        plans = [Plan(path, [*self.overrides, *changes], **given) for path in paths]
        return plans, list(lacking([plan.study for plan in plans], data))


class RunOptions(StudyOptions):
    """Train a study's variants by the host's own trainer, and test them.

    What is done is not done again, and what was interrupted or has failed goes on. cape-report with
    the same words shows the results.
    """

    list: bool = Field(False, description="print all studies, what they need and what they cost")
    dry_run: bool = Field(False, description="print the commands, and what is missing")
    estimate: bool = Field(False, description="time a few updates of each variant here")
    status: bool = Field(False, description="print what is done, runs, waits or has failed")
    cancel: bool = Field(False, description="end the runs of this study")
    fresh: bool = Field(False, description="remove what these words have made, and do it again")

    jobs: PositiveInt = Field(1, description="runs at a time on this machine")
    cluster: Literal["local", "slurm"] = Field("local", description="where runs are done")
    timeout: PositiveFloat = Field(72, description="time limit of a SLURM job, in hours")
    partition: str | None = Field(None, description="partition of SLURM")


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; bad input ends the process with status 2 and one line, before any work."""
    words = sys.argv[1:] if argv is None else [*argv]
    with command.one_line_errors("cape-run"):
        options = command.parsed("cape-run", RunOptions, words, rest="overrides")
        try:
            failed = run(options)
        except OSError as error:
            sys.exit(f"cape-run: {config.one_line(error)}")
        except KeyboardInterrupt:
            slurm = options.cluster == "slurm"
            still = "jobs of SLURM go on, --cancel ends them" if slurm else "all is stopped"
            said = f"cape-run: interrupted, {still}: the same command goes on"
            print(said, file=sys.stderr, flush=True)
            os._exit(130)  # sys.exit would wait for threads that wait for SLURM or another cape-run
    if failed:
        sys.exit("\n".join(f"cape-run: {line}" for line in failed))
    if not (options.list or options.dry_run or options.estimate or options.status):
        print(shlex.join(["cape-report", *same_words(options)]))


def same_words(options: StudyOptions) -> Iterator[str]:
    """The words that compose the same study."""
    yield str(options.study)
    yield from options.overrides
    if options.data:
        yield from ("--data", *options.data)
    for name in ("out", "gpus", "timm_scripts"):
        value = getattr(options, name)
        if value != StudyOptions.model_fields[name].default:
            yield from (f"--{name.replace('_', '-')}", str(value))
    if options.quick:
        yield "--quick"


def run(options: RunOptions) -> list[str]:
    """Do what the command line asks for; returns a line for each step that failed."""
    if options.list:
        print(listing())
        return []
    plans, problems = options.plans()
    if options.dry_run:
        problems += missing(plans)
        for plan in plans:
            show(plan)
        for one in problems:
            print(f"cape-run: missing: {one}", file=sys.stderr)
        return []
    if problems:
        raise ValueError(problems[0])
    if options.status or options.cancel:
        for plan in plans:
            look(plan, options.cancel)
        return []
    problems = [*missing(plans), *machine_lacks(options, plans)]
    if problems:
        raise ValueError(problems[0])
    return Work(options, plans).do()


def listing() -> str:
    """All studies and sets of studies in ``configs/studies``, a paragraph each."""
    found = []
    for path in config.names():
        paths = config.studies_of(path)
        if paths == [path]:
            one = config.load(path)
            about = [f"{path.stem} ({one.host}): {one.title}", f"costs {one.cost}"]
            about += [f"needs {name}: {need.what}" for name, need in one.needs.items()]
        else:
            about = [f"{path.stem}: {' + '.join(each.stem for each in paths)}"]
        found.append(textwrap.fill("; ".join(about), 100, subsequent_indent="    "))
    return "\n".join(found)


def missing(plans: Iterable[Plan]) -> list[str]:
    """What must be installed, a line each."""
    lines = [hosts.missing(plan.study.host) for plan in plans]
    lines += [plan.host.problem(plan.machine) for plan in plans if plan.study.trainer is None]
    return [*dict.fromkeys(filter(None, lines))]


def machine_lacks(options: RunOptions, plans: Sequence[Plan]) -> Iterator[str]:
    """What prevents the runs on this machine, a line each."""
    slurm = options.cluster == "slurm"
    if slurm and shutil.which("sbatch") is None:
        yield "--cluster slurm: there is no sbatch on this machine"
    if options.gpus and not slurm:
        import torch

        if options.gpus > torch.cuda.device_count():
            yield f"--gpus {options.gpus}: there are {torch.cuda.device_count()} on this machine"
    for plan in plans:
        for name, folder in plan.data.items():
            if plan.out.is_relative_to(folder):
                yield f"--out {plan.out} lies in the data {name}, {folder}: choose another folder"
    out = plans[0].out
    try:
        with tempfile.TemporaryFile(dir=_existing(out)):
            pass
    except OSError as error:
        yield f"--out {out} cannot be written: {error.strerror}"


def _existing(folder: Path) -> Path:
    return next(one for one in (folder, *folder.parents) if one.exists())


def show(plan: Plan) -> None:
    """Print what would be done."""

    def prepare(one: Prepared) -> None:
        print(f"# prepare {one.folder}\n{shlex.join(one.command)}\n")

    plan.prepare(prepare, complete=False)
    for run in plan.runs():
        print(f"# train {run.folder}\n{shlex.join(run.train_command(run.trained))}")
        for test in run.tests.values():
            words = run.test_command(test, test.scores, test.items)
            print(f"# evaluate {test.name}\n{shlex.join(words)}")
        print()


def look(plan: Plan, cancel: bool) -> None:
    """Print a line for each preparation that is not done and for each run; or end what runs."""
    locks = []

    def prepare(one: Prepared) -> None:
        locks.append(one.lock)
        if not one.done():
            running = process.held(one.lock)
            said = process.last_lines(one.log)[-1:] if one.log.exists() else []
            about = "running" if running else "failed or interrupted" if said else "waiting"
            print(f"preparing {one.folder.name}: {about} {''.join(said)[:100]}")

    plan.prepare(prepare, complete=False)
    runs = plan.runs() if all(one.done() for one in plan.prepared) else []
    if cancel:
        ended = sum(process.cancel(lock) for lock in [*locks, *(run.lock for run in runs)])
        jobs = [run.folder / "job" for run in runs if not run.done()]
        for job in [path.read_text() for path in jobs if path.exists()]:
            if job and shutil.which("scancel"):
                ended += os.spawnvp(os.P_WAIT, "scancel", ["scancel", job]) == 0
        print(f"{plan.name}: {ended} processes and jobs were asked to end")
    for run in runs if not cancel else ():
        print(f"{run.folder}: {work.state(run)}")


class Work:
    """The preparations and runs of a command line, in a pool of threads."""

    def __init__(self, options: RunOptions, plans: Sequence[Plan]) -> None:
        self.options, self.plans = options, plans
        self.anew: set[Path] = set()  # what --fresh has removed
        self.slurm = options.cluster == "slurm"

    def do(self) -> list[str]:
        """Do all; returns a line for each step that failed.

        Raises:
            KeyboardInterrupt: a signal asked to end; the commands on this machine have ended.
        """
        for number in SIGNALS[1:]:  # they act as Ctrl-C does
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, signal.default_int_handler)
        self.pool = ThreadPoolExecutor(10_000 if self.slurm else self.options.jobs)
        with self._ended_by_signals():
            for plan in self.plans:
                try:
                    plan.prepare(partial(self._prepare, plan.study.host))
                except (process.Failed, OSError) as error:
                    said = str(error)
                    if isinstance(error, process.Failed) and error.status == 2:  # bad data
                        said = said.splitlines()[-2].partition("error: ")[2]
                    return [f"{plan.name} cannot be prepared: {said}"]
                if plan.study.answer:
                    print(f"{plan.name}: {plan.study.answer.found}", flush=True)
            if self.options.estimate:
                return self._estimate()
            runs = [run for plan in self.plans for run in plan.runs()]
            if self.options.fresh:
                for one in (each for run in runs for each in (run.start, run) if each):
                    work.forget(one)
            needed = sum(run.plan.study.disk_gb for run in runs if not run.folder.exists())
            free = shutil.disk_usage(_existing(self.plans[0].out)).free / 1e9
            if free < needed:
                raise ValueError(f"--out has {free:.1f} GB free, the runs take about {needed:.1f}")
            # first those that others start from
            first = [run for run in runs if not run.start]
            failed = self._train(first, len(runs), 0)
            return failed + self._train([run for run in runs if run.start], len(runs), len(first))

    @contextmanager
    def _ended_by_signals(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # once is enough
            self.pool.shutdown(wait=False, cancel_futures=True)
            process.end()
            raise

    def _prepare(self, host: str, one: Prepared) -> None:
        if self.options.fresh and one.folder not in self.anew:
            process.remove(one.note)
            self.anew.add(one.folder)
        if not one.done():
            print(f"preparing {one.folder}", flush=True)
        self.pool.submit(work.prepare, one, host).result()

    def _estimate(self) -> list[str]:
        for plan in self.plans:
            for line in estimate.told(plan.runs(), self.options.jobs):
                print(line, flush=True)
        return []

    def _train(self, runs: Sequence[Run], total: int, before: int) -> list[str]:
        """Do runs; returns a line for each that failed."""
        failed: list[str] = []
        name = self.plans[0].path.stem if len(self.plans) == 1 else str(self.options.study)
        with tqdm(total=total, initial=before, desc=name, unit="run", disable=None) as bar:

            def one(run: Run) -> None:
                told = "done already"
                if run.done():
                    data = [line for line in work.changed(run) if line.startswith("The data")]
                    told += f". {'. '.join(data)}. --fresh trains again" if data else ""
                else:
                    self._say(f"{run.label}: {run.folder}")
                    told = "done"
                    try:
                        (self._submit if self.slurm else work.make)(run)
                    except SystemExit:
                        told = "interrupted"
                    except Exception as error:
                        told = f"failed: {error}"
                if not told.startswith("done"):
                    lines = [line.strip() for line in told.splitlines()]
                    failed.append(f"{run.label}: {' '.join([lines[0], *lines[1:][-2:]])}")
                self._say(f"{run.label}: {told}")
                bar.update()

            jobs = [self.pool.submit(one, run) for run in runs]
            wait(jobs)
        for done in jobs:
            done.result()
        return failed

    @staticmethod
    def _say(line: str) -> None:
        """Print above a terminal's bar, in one write, as runs print at the same time."""
        tqdm.write(f"{line}\n", file=sys.stdout, end="")
        sys.stdout.flush()

    def _submit(self, run: Run) -> None:
        """Do a run by a job of SLURM: by an earlier call's, if it still waits or runs, else by a
        new one."""
        given = self.options
        executor = submitit.SlurmExecutor(given.out.resolve() / ".slurm")
        executor.update_parameters(
            job_name=f"cape-run-{run.plan.name}",
            time=int(60 * given.timeout),
            gpus_per_node=given.gpus or None,
            nodes=1,
            partition=given.partition,
            use_srun=False,  # cape-run starts the command itself
        )
        note = run.folder / "job"
        for again in (True, False):
            with process.locked(run.folder / ".job.lock"):
                sent = note.read_text() if note.exists() else ""
                if not sent or submitit.SlurmJob(executor.folder, sent).done(force_check=True):
                    sent, again = executor.submit(work.make, run).job_id, False
                    process.write(note, sent)
            submitit.SlurmJob(executor.folder, sent).wait()
            if run.done():
                break
            if not again:
                raise RuntimeError(work.state(run))
