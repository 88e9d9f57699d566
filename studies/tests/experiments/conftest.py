"""Runs the study of counting.py, and reports it."""

import csv

import pytest
import yaml
from counting import STUDY

from cape_studies import report, run


@pytest.fixture
def command(tmp_path, capsys):
    """Writes the study and calls a command with it; returns what was printed."""

    def call(main, *arguments, fails=None, name="counting", **changes):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**STUDY, **changes}))
        words = [str(tmp_path / f"{name}.yaml"), "--out", str(tmp_path / "out"), *arguments]
        if fails is None:
            main(words)
        else:
            with pytest.raises(SystemExit) as end:
                main(words)
            assert end.value.code == fails or fails in str(end.value.code)
        out, err = capsys.readouterr()
        return out + err

    return call


@pytest.fixture
def cape_run(command):
    """cape-run of the study, with changes of its YAML; what it printed."""
    return lambda *words, **changes: command(run.main, *words, **changes)


@pytest.fixture
def cape_report(command, tmp_path):
    """cape-report of the study; the values of the condition short, by variant and seed."""

    def call(*words, name="counting", **changes):
        command(report.main, *words, name=name, **changes)
        with (tmp_path / "out" / name / "report" / "scores.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["condition"] == "short"]
        return {(row["variant"], int(row["seed"])): row["value"] for row in rows}

    return call
