"""``cape-run``: train a study's variants by the host's own trainer, and test them.

This module is the command line and the order of things: all preparations, those of different
studies side by side, then all runs, side by side here or as jobs of SLURM. What they are is in
:mod:`.plan`; :mod:`.work` does each.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from cape_studies import command, estimate, hosts, process, stats, work, yamls
from cape_studies.asked import StudyOptions
from cape_studies.command import Pairs, Typed
from cape_studies.hosts import Options
from cape_studies.plan import Plan, Prepared, Run
from cape_studies.process import say
from cape_studies.progress import Shown

HOURS = 72  # of a job of SLURM
SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


class RunOptions(StudyOptions):
    """Train a study's variants by the host's own trainer, and test them.

    What is done is not done again, and what was interrupted or has failed goes on. cape-report with
    the same words shows the results.

    examples:
      cape-run --list
      cape-run my_images --data photos --estimate
      cape-run my_images --data photos --jobs 2 'run=[nopos,rope]' 'seeds=[0,1,2]'
    """

    list: bool = Field(False, description="print all studies, what they need and what they cost")
    dry_run: bool = Field(
        False, description="print the commands, what is done, and what is missing"
    )
    estimate: bool = Field(False, description="time a few updates of each variant here")
    fresh: bool = Field(False, description="train and test again, and replace what is there")

    yes: bool = Field(False, description="train even if no claim can be made of so few test items")

    jobs: PositiveInt = Field(1, description="runs at a time on this machine")
    cluster: Literal["local", "slurm"] = Field("local", description="where runs are done")
    sbatch: Annotated[Pairs, Typed(again="KEY=VALUE")] = Field(
        {}, description="for SLURM's sbatch: account=x, time=90 (minutes); again for each"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; bad input ends the process with status 2 and one line, before any work."""
    with command.one_line_errors("cape-run"):
        options = command.parsed("cape-run", RunOptions, argv)
        try:
            failed = run(options)
        except KeyboardInterrupt:
            jobs = " (jobs of SLURM go on: scancel ends them)"
            said = f"cape-run: interrupted{jobs if options.cluster == 'slurm' else ''}"
            print(f"{said}: the same command goes on", file=sys.stderr, flush=True)
            os._exit(130)  # sys.exit would wait for threads that wait for SLURM or another cape-run
    if failed:
        sys.exit("\n".join(f"cape-run: {line}" for line in failed))


def run(options: RunOptions) -> list[str]:
    """Do what the command line asks for; returns a line for each step that failed."""
    if options.list:
        print(listing())
        return []
    plans, problems = options.plans(writes=not options.dry_run)
    problems += dict.fromkeys(lacks(options, plans))
    if options.dry_run:
        left = sum(show(plan) for plan in plans)
        for one in problems or [f"nothing, and {left} runs are to be done"]:
            print(f"cape-run: missing: {one}")
        return []
    if problems:
        raise ValueError(problems[0])
    for number in SIGNALS[1:]:  # they act as Ctrl-C does
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, signal.default_int_handler)
    pool = ThreadPoolExecutor(10_000 if options.cluster == "slurm" else options.jobs)
    try:
        return do(options, plans, pool)
    except KeyboardInterrupt:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # once is enough
        pool.shutdown(wait=False, cancel_futures=True)
        process.end()
        raise


def listing() -> str:
    """All studies and sets of studies in ``configs/studies``, a paragraph each: those of a user's
    own data, small ones, and those as large as in the paper."""
    found = []
    for path in yamls.names():
        paths = yamls.studies_of(path)
        one = _outline(paths[0])
        if paths == [path]:
            about = [f"{path.stem} ({one['host']}): {one['title']}", f"costs {one['cost']}"]
            about += [f"needs {name}: {need['what']}" for name, need in one["needs"].items()]
        else:
            about = [f"{path.stem}: {' + '.join(each.stem for each in paths)}"]
        text = textwrap.fill("; ".join(about), 100, subsequent_indent="    ")
        found.append(("answer" not in one, one.get("large", False), text))
    return "\n".join(text for *_, text in sorted(found))


def _outline(path: Path) -> Options:
    """A study's keys, those of its defaults list too. Hydra would compose all studies, and take a
    quarter of a minute."""
    own, found = yamls.read_yaml(path), Options(needs={})
    for base in own.get("defaults", ()):
        if isinstance(base, str) and base != "_self_":
            roots = [path.parent, *yamls.folders()]
            found |= _outline(next(at for one in roots if (at := one / f"{base}.yaml").is_file()))
    needs = {**found["needs"], **own.get("needs", {})}
    return {**found, **own, "needs": {name: need for name, need in needs.items() if need}}


def lacks(options: RunOptions, plans: Sequence[Plan]) -> Iterator[str]:
    """What must be installed or chosen otherwise, a line each."""
    if options.cluster == "slurm" and shutil.which("sbatch") is None:
        yield "--cluster slurm: there is no sbatch on this machine"
    for plan in plans:
        if line := hosts.missing(plan.study.host):
            yield line
        if plan.study.trainer is None and (line := plan.host.trainer_lacks(plan.machine)):
            yield line
        for name, key in plan.unnamed():
            yield f"{plan.path} has no options.{key} for {name}: it names the model"
        if letters := {*plan.host.SPLITS_AT} & {*str(plan.out)}:
            what = f"--out {plan.out} has {' and '.join(sorted(letters))}"
            yield f"{what}, at which {plan.study.host} splits paths: choose another folder"
        for name, data in plan.data.items():
            if plan.out.is_relative_to(data.folder):
                what = f"--out {plan.out} lies in the data {name}, {data.folder}"
                yield f"{what}: choose another folder"


def show(plan: Plan) -> int:
    """Print what would be done, and give the number of runs."""

    def step(what: str, done: bool, words: Sequence[str]) -> None:
        print(f"# {what}{': done' if done else ''}\n{shlex.join(words)}")

    def prepare(one: Prepared) -> dict[str, Any]:
        step(f"prepare {one.folder}", one.done(), one.command)
        chooses = plan.study.answer and plan.data and not plan.prepared
        return seen(one) if chooses and not one.done() else {}

    plan.prepare(prepare)
    for run in plan.runs():
        step(f"train {run.folder}", run.note.exists(), run.train_command(run.trained))
        for name, test in run.tests.items():
            words = run.test_command(test, test.scores, test.folder / "items.csv")
            step(f"evaluate {name}", test.scores.exists(), words)
        print()
    return sum(not run.done() for run in plan.runs())


def seen(one: Prepared) -> dict[str, Any]:
    """The facts of a preparation that is not made, from one in a folder that goes again; none if it
    fails."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, one.folder.name)
        words = [word.replace(str(one.folder), str(folder)) for word in one.command]
        subprocess.run(words, capture_output=True)
        facts = folder / "facts.yaml"
        return yamls.read_yaml(facts) if facts.exists() else {}


def do(options: RunOptions, plans: Sequence[Plan], pool: ThreadPoolExecutor) -> list[str]:
    """Prepare, train and test; returns a line for each step that failed."""
    for plan in plans:
        for data in plan.data.values():
            data.bring()

    def prepare(one: Prepared) -> None:
        if not one.done():
            print(f"preparing {one.folder}", flush=True)
            work.prepare(one)

    def ready(plan: Plan) -> str | None:
        try:
            plan.prepare(prepare)
        except process.Failed as error:
            return f"{plan.name} cannot be prepared: {error.line}"
        return None

    if unprepared := [*filter(None, pool.map(ready, plans))]:
        return unprepared
    for plan in plans:
        if plan.study.answer:
            print(f"{plan.name}: {plan.study.answer.found}", flush=True)
        for folder, many in work.of_other_data(plan).items():
            what = f"{plan.name}: {many} finished trainings are of other data"
            print(f"{what}, what was in {folder} then: they do not count here", flush=True)
        if options.estimate:
            for line in estimate.told(plan.runs(), options.jobs):
                print(line, flush=True)
    if options.estimate:
        return []
    for plan in plans:
        _agreed(options, plan)
    runs = [run for plan in plans for run in plan.runs(options.fresh)]
    failed: list[str] = []
    with Shown(runs, Path(str(options.study)).stem) as shown:

        def one(run: Run) -> None:
            told = "done already"
            if not run.done() or run.fresh:
                say(f"{run.label}: {run.log}")
                shown.running.append(run)
                try:
                    submit(options, run) if options.cluster == "slurm" else work.make(run)
                    told = "done"
                except (Exception, SystemExit) as error:
                    told = f"failed: {error}"
                    line = error.line if isinstance(error, process.Failed) else command.said(error)
                    failed.append(f"{run.label}: {line}")
                shown.running.remove(run)
            say(f"{run.label}: {told} ({shown.ended()})")

        for depth in range(1 + max(run.depth for run in runs)):  # first those others start from
            for _ in pool.map(one, [run for run in runs if run.depth == depth]):
                pass
    if any(plan.study.answer for plan in plans):
        from cape_studies import report  # takes seconds

        given = options.model_dump(include={*StudyOptions.model_fields})
        try:
            report.show(report.ReportOptions(**given))
        except ValueError:
            if not failed:
                raise
    elif not failed:
        print(shlex.join(["cape-report", *options.words()]))
    return failed


def _agreed(options: RunOptions, plan: Plan) -> None:
    """Say what an answer can tell of the test items that there are, and ask where it is nothing.

    Raises:
        ValueError: no claim can be made, and the user did not agree to that.
    """
    study, items = plan.study, plan.facts.get("items", {})
    if study.answer is None or not items or options.quick:  # which counts for nothing
        return
    ranges = {study.answer.within: "within"} | dict.fromkeys(study.answer.beyond.values(), "beyond")
    metric, seeds, none = study.report.metric, len(study.seeds), []
    for words, where in ranges.items():
        many, groups = items[where], plan.facts.get("groups", {}).get(where, 0)
        about = f"{plan.name}, {words}: {many:,} test items"
        about += f" in {groups:,} groups" if groups else ""
        if line := stats.lacks(many, stats.TRAININGS, groups):
            none.append(f"{words}: {line}")
        if line := stats.lacks(many, seeds, groups):
            found = f"no claim is possible: {line}"
        else:
            least = stats.smallest_difference(metric, many, seeds, len(study.run), groups)
            unit = "nats" if metric == "loss" else "points"
            found = f"differences of {least:.2g} {unit} and more will mostly be found"
        print(f"{about}: {found}", flush=True)
    if none and not options.yes and not all(run.done() for run in plan.runs()):
        what = f"no claim is possible ({'; '.join(none)}): bring more data, or a test of your own"
        if not sys.stdin.isatty():
            raise ValueError(f"{what}; --yes trains all the same")
        if input(f"{what}. Train all the same? [y/N] ").strip().lower() not in ("y", "yes"):
            raise ValueError(what)


def submit(options: RunOptions, run: Run) -> None:
    """Do a run by a job of SLURM: by an earlier call's, if it still waits or runs, else by a new
    one."""
    import submitit  # takes a while, as pandas in .work: a dry run needs neither

    executor = submitit.SlurmExecutor(options.out.resolve() / ".slurm")
    executor.update_parameters(
        job_name=f"cape-run-{run.plan.name}",
        time=HOURS * 60,
        gpus_per_node=options.gpus or None,
        nodes=1,
        use_srun=False,  # cape-run starts the command itself
        additional_parameters={key.replace("-", "_"): to for key, to in options.sbatch.items()},
    )
    note = run.folder / "job"
    if note.exists():
        submitit.SlurmJob(executor.folder, note.read_text()).wait()
    if not run.done():
        job = executor.submit(work.make, run)
        process.write(note, job.job_id)
        job.wait()
    if run.folder.exists() if run.fresh else not run.done():
        raise process.Failed([": ".join(work.state(run))], run.log)
