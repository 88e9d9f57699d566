"""Writes studies/results/protocols.csv from git: ``python tools/docs/protocols.py``.

To be run after results are committed. The table says when the protocol of each study and its first
results were committed, and what changed its YAML afterwards. Where scores stand under another study
than the file's name, it says what was added to the YAML of that name, which runs them now. It is
stored, as pages are made where there is no history too.
"""

import csv
import subprocess
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "studies" / "results"
COLUMNS = ["study", "what", "commit", "date", "subject"]


def git(*arguments: str) -> str:
    """What git prints, with hashes of seven digits: its own choice depends on the clone."""
    short = ["git", "-c", "core.abbrev=7"]
    return subprocess.check_output([*short, *arguments], cwd=ROOT, text=True)


def commits(path: Path) -> list[tuple[list[str], str]]:
    """That changed a file, the first one first: hash, date and subject, and its path then."""
    fields = "--format=%x00%h%x09%as%x09%s"
    log = git("log", "--follow", "--name-only", fields, "--", str(path.relative_to(ROOT)))
    parts = [one.strip().split("\n") for one in log.split("\0")[1:]]
    return [(lines[0].split("\t", 2), lines[-1]) for lines in reversed(parts)]


def main() -> None:
    """Write the table."""
    rows, seen = [], set()
    log = git("log", "--format=%h", "--reverse").split()  # dates have no time
    rank = {commit: i for i, commit in enumerate(log)}
    for path in sorted(RESULTS.glob("*.csv")):
        columns = pd.read_csv(path, nrows=0).columns
        if "study" not in columns or "seed" not in columns:
            continue
        found = pd.read_csv(path, usecols=["study"])["study"].unique()
        for study in found:
            yaml = ROOT / "configs" / "studies" / f"{study}.yaml"
            if study in seen or not yaml.exists():
                continue
            seen.add(study)
            whole, (result, _) = commits(yaml), commits(path)[0]
            have = (one for one, at in whole if "protocol:" in git("show", f"{one[0]}:{at}"))
            rows += [[study, "protocol", *next(have, ["", "", ""])], [study, "results", *result]]
            later = [about for about, _ in whole if rank[about[0]] > rank[result[0]]]
            rows += [[study, "changed", *about] for about in later]
        runs = ROOT / "configs" / "studies" / f"{path.stem}.yaml"
        if len(found) == 1 and path.stem not in found and runs.exists():
            rows += [[path.stem, "added", *about] for about, _ in commits(runs)]
    with (RESULTS / "protocols.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


if __name__ == "__main__":
    main()
