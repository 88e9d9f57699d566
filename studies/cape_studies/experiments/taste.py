"""The page of ``make demo``: of each host a figure, a sentence and the commands."""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from cape_studies.experiments.report_read import Result
from cape_studies.experiments.report_scores import Scores
from cape_studies.experiments.study import folders, known

#: the pages of results, in a checkout
RESULTS = "studies/results"
#: the hosts' names, in the order of the page
HOSTS = {"timm": "timm", "fairseq": "fairseq", "espnet": "ESPnet"}


def page(sections: Sequence[Mapping[str, Any]]) -> str:
    """The page of studies that all have a ``taste``, as HTML that needs no other file.

    Raises:
        ValueError: a study's condition was not tested.
    """
    template = Path(__file__).with_name("taste.html").read_text(encoding="utf-8")
    made = jinja2.Template(template, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    pages = [of_host(one["result"], one["picture"]) for one in sections]
    pages.sort(key=lambda one: list(HOSTS).index(one["study"].host))
    hosts = ", ".join(HOSTS[one["study"].host] for one in pages)
    return made.render(pages=pages, hosts=hosts)


def of_host(result: Result, picture: str) -> dict[str, Any]:
    """What the page shows of a study, with its figure in base64."""
    study = result.study
    assert study.taste is not None
    seen, expected = sentence(result)
    return {
        "study": study,
        "notes": result.notes,
        "trainings": trainings(result),
        "seen": seen,
        "expected": expected,
        "picture": picture,
        "evidence": {name: _link(name) for name in study.taste.evidence},
        "commands": {name: commands(run["record"]) for name, run in result.runs.items()},
    }


def trainings(result: Result) -> str:
    """How much the page can tell, in words."""
    most = int(result.scores.groupby("variant")["seed"].nunique().max())
    return "One training each" if most == 1 else f"At most {most} trainings each"


def sentence(result: Result) -> tuple[str, bool]:
    """What the scores under the study's condition are, in a sentence; and whether the variant with
    CAPE is ahead, as the protocol expects.

    Raises:
        ValueError: the condition was not tested.
    """
    study = result.study
    about, report = study.taste, study.report
    assert about is not None
    scores = Scores(result, report.evaluation, report.metric)
    known("taste.condition", [about.condition], scores.conditions)
    values = {}
    for place, name in (("variant", about.variant), ("baseline", report.baseline)):
        found = scores.found.get((name, about.condition))
        values[place] = found.value if found else math.nan
    if any(math.isnan(value) for value in values.values()):
        return "Not all trainings of this host are done.", True
    ahead = values["variant"] - values["baseline"]
    if study.evaluations[report.evaluation].metrics[report.metric] == "lower":
        ahead = -ahead
    text = {place: f"{value:.0f}" for place, value in values.items()}
    return about.seen.format_map(text), ahead > 0


def commands(record: Mapping[str, Any]) -> list[str]:
    """The commands of a run's training and tests, as typed, with the threads that they had."""
    threads = record.get("threads")
    before = f"OMP_NUM_THREADS={threads} " if threads else ""
    found = []
    for step in record.values():
        if isinstance(step, dict) and "command" in step:
            command = step["command"]
            text = command if isinstance(command, str) else shlex.join(command)
            found.append(before + text)
    return found


def _link(study: str) -> str:
    """The address of a study's page of results; empty in an installed wheel, which has no pages."""
    for folder in folders():
        path = folder.parents[1] / RESULTS / f"{study}.md"
        if path.is_file():
            return path.as_uri()
    return ""
