"""The folder of a run. Every call writes it anew, from what the run's steps have made.

A training and its evaluations lie in the folder of the first run that needed them. A run of another
study or variant may need the same training: its folder then has links to them.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from cape_studies.experiments import scores, steps
from cape_studies.experiments.plan import Run, read_record
from cape_studies.experiments.study import one_line

TRAINED = "train", "train.log", "train.json"


def make(run: Run) -> None:
    """Do the steps of a run that are not done, then write its folder; ``failed`` has an error.

    Raises:
        RuntimeError, ValueError, OSError, SystemExit: see :func:`steps.make`.
    """
    failed = run.folder / "failed"
    failed.unlink(missing_ok=True)
    try:
        _train(run)
        for name in run.evaluations:
            steps.make(run.evaluation(name), run)
        show(run)
    except Exception as error:
        with suppress(OSError):  # a full disk
            steps.write(failed, one_line(error))
        raise


def _train(run: Run) -> None:
    if run.start:
        _train(run.start)
    settle(run)
    steps.make(run.training, run)


def settle(run: Run) -> None:
    """Give the run the folder of its training: that of an earlier run with this training, or its
    own."""
    out = run.setting.out
    own = [run.folder / name for name in TRAINED]
    with steps.locked(out / ".lock"):
        there = own[:]
        for of_set in ("", "*/"):
            there += out.glob(f"{of_set}*/runs/*-{run.key}/train.json")
        real = (path.parent for path in there if path.exists() and not path.is_symlink())
        home = next(real, run.folder)
        run.folder.mkdir(parents=True, exist_ok=True)
        if home == run.folder:
            steps.remove(
                *(path for path in own if path.is_symlink())
            )  # they point to a deleted training
            if not own[-1].exists():
                steps.write(own[-1], {})
        else:
            for path in own:
                steps.link(path, home / path.name)


def show(run: Run) -> None:
    """Write the run's folder; ``scores.csv`` is there if all its steps are done.

    Raises:
        ValueError: a record or scores cannot be read.
    """
    done = {name: step for name in run.evaluations if (step := run.evaluation(name)).done()}
    links = {f"evaluate-{name}.log": step.log for name, step in done.items()}
    links |= {f"evaluate-{name}.csv": run.csv(name) for name in done}
    links |= {f"items-{name}.csv": run.csv(name, "-items") for name in done}
    links = {name: target for name, target in links.items() if target.exists()}
    for old in (*run.folder.glob("evaluate-*"), *run.folder.glob("items-*")):
        if old.name not in links:
            steps.remove(old)
    for name, target in links.items():
        steps.link(run.folder / name, target)

    about = {"study": run.study.name, "variant": run.variant, **run.settings}
    steps.write(run.folder / "settings.yaml", about)
    trained = run.training.record()
    record = {**trained.get("here", {}), "train": _brief(trained)}
    record |= {f"evaluate-{name}": _brief(step.record()) for name, step in done.items()}
    if run.home != run.folder:
        record["trained_in"] = str(run.home.relative_to(run.setting.out))
    steps.write(run.folder / "record.json", record)

    if len(done) == len(run.evaluations) and run.training.done():
        steps.write(run.folder / "scores.csv", _scores(run).to_csv(index=False))
        steps.remove(run.folder / "failed")
    else:
        steps.remove(run.folder / "scores.csv")


def _brief(record: dict[str, Any]) -> dict[str, Any]:
    return {key: record[key] for key in ("command", "seconds", "interrupted") if key in record}


def _scores(run: Run) -> pd.DataFrame:
    """The scores of all evaluations, marked as the study's report now says."""
    study = run.study
    about = {"study": study.name, "host": study.host, "variant": run.variant, "seed": run.seed}
    table = pd.DataFrame(
        {**about, **row, "evaluation": name}
        for name, one in run.evaluations.items()
        for row in scores.tidy(one, study.host, run.csv(name))
    )
    own = study.variants[run.variant].trained_on
    table["trained_on"] = table["condition"].isin(study.report.trained_on if own is None else own)
    return table[scores.TIDY]


def logs(folder: Path) -> list[Path]:
    """The logs of a run's steps, in the folder where these lie."""
    home = (folder / "train.json").resolve().parent
    return [home / "train.log", *sorted(home.glob("evaluations/*.log"))]


def state(folder: Path) -> str:
    """The state of a run in words, from its folder."""
    if (failed := folder / "failed").exists():
        return f"failed: {failed.read_text()}"
    if (folder / "scores.csv").exists():
        return "done"
    for log in logs(folder):
        if steps.held(log):
            return f"running {log.stem}: {steps.last_line(log)[:100]}"
    if not any("began" in read_record(log.with_suffix(".json")) for log in logs(folder)):
        return "waiting"
    return "interrupted, and the disk is full" if steps.full(folder) else "interrupted"
