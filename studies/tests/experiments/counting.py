"""The study counting.yaml, whose trainer is count.py, and what its runs leave."""

import csv
from pathlib import Path

import yaml

HERE = Path(__file__).parent
STUDY = yaml.safe_load(
    (HERE / "counting.yaml").read_text().replace("count.py", str(HERE / "count.py"))
)


def runs(tmp_path, variant):
    return sorted((tmp_path / "out" / "runs").glob(f"{variant}-seed*"))


def score(folder):
    """What the one evaluation of a run wrote."""
    (path,) = folder.glob("*/scores.csv")
    with path.open() as file:
        return next(row["value"] for row in csv.DictReader(file) if row["condition"] == "short")


def begins(folder):
    """Where each start of the trainer began to count."""
    lines = (folder / "train.log").read_text().splitlines()
    return [int(line.split()[-1]) for line in lines if line.startswith("begins at")]


def at_its_gate(out, gate):
    """Whether the step that waits for a gate has come to it."""
    if gate == "TEST_GATE":
        return any(out.glob("runs/*/*/.items.csv"))
    logs, line = (
        ("runs/*/train.log", "\nstep 3/")
        if gate == "COUNT_GATE"
        else ("prepared/*.log", "\nlooked")
    )
    return any(line in path.read_text() for path in out.glob(logs))


def count(**options):
    """The study's evaluation with more options."""
    one = STUDY["evaluations"]["count"]
    return {"count": {**one, "options": {**one["options"], **options}}}


def chosen(facts, steps=None):
    """Facts of a study: what the user chose, or else what was prepared."""
    return {**facts, "steps": steps or facts["steps"]}


def with_items(facts, items):
    """Facts of a study with so many test items."""
    return {**facts, "items": {"within": items, "beyond": items}}


def timed(facts, updates):
    """Facts of a study whose trainings have so many updates."""
    return {**facts, "updates": updates}
