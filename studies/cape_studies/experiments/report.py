"""``cape-report``: scores as a tidy CSV, Markdown tables, a figure and one page."""

import base64
import io
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import yaml
from pydantic import Field, model_validator
from tyro.conf import Positional

from cape_studies.ask.answer import of_study, sentences
from cape_studies.evaluation import command
from cape_studies.evaluation.options import Options
from cape_studies.experiments import report_figures, report_read, report_scores, taste
from cape_studies.experiments.report_read import Result
from cape_studies.experiments.report_tables import tables
from cape_studies.experiments.study import known

WRITTEN = "table.md", "index.html", "scores.csv", "scores-items.csv.xz", "figure.png", "answer.json"


class ReportOptions(Options):
    """Write tables with intervals, a figure and a page.

    SOURCE is a folder that cape-run wrote for a study, a folder that holds several of these, or the
    scores.csv of an earlier report.
    """

    source: Positional[list[Path]] = Field(
        min_length=1, description="folders that cape-run wrote, or scores.csv of earlier reports"
    )
    out: Path | None = Field(
        None, description="folder to write; none: SOURCE/report, which is replaced"
    )
    overwrite: bool = Field(False, description="replace files in --out")
    baseline: str | None = Field(None, description="variant to compare with; none: the study's")

    @model_validator(mode="after")
    def check(self) -> "ReportOptions":
        """Refuse sources whose report has no place by default."""
        if self.out is None and (len(self.source) > 1 or self.source[0].is_file()):
            raise ValueError("--out DIR is needed for more than one folder, and for CSVs")
        return self


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; ends with status 2 and one line on stderr if something is wrong."""
    command.main("cape-report", ReportOptions, run, argv)


def run(options: ReportOptions) -> None:
    """Write scores.csv, scores-items.csv.xz, table.md, figure.png and index.html.

    Of several studies each has a figure of its own, figure-STUDY.png.

    Raises:
        ValueError: a source cannot be read, a study does not have that baseline, a score is not
            what its items make, or a file exists or cannot be written.
    """
    found = report_read.studies(options.source)
    for one in found:
        if options.baseline is not None:
            known("--baseline", [options.baseline], one.study.variants)
            one.study.report.baseline = options.baseline
    sections = [section(one) for one in found]
    if all(one.study.taste for one in found):
        page = taste.page(sections)
    else:
        page = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
        template = jinja2.Template(page, autoescape=True, trim_blocks=True, lstrip_blocks=True)
        page = template.render(sections=sections, yaml=_yaml)
    out = options.out or options.source[0] / "report"
    there = [path for path in map(out.joinpath, WRITTEN) if path.exists()]
    if there and options.out is not None and not options.overwrite:
        raise ValueError(f"{there[0]} exists: choose another --out or give --overwrite")
    try:
        out.mkdir(parents=True, exist_ok=True)
        items = pd.concat([one.items.assign(study=one.name) for one in found])
        items.to_csv(out / "scores-items.csv.xz", index=False)
        pd.concat([one.scores for one in found]).to_csv(out / "scores.csv", index=False)
        text = "\n".join(markdown(each) for each in sections)
        (out / "table.md").write_text(text, encoding="utf-8")
        (out / "index.html").write_text(page, encoding="utf-8")
        if answers := [each["answer"] for each in sections if each["answer"]]:
            answer = answers[0] if len(answers) == 1 else answers
            (out / "answer.json").write_text(json.dumps(answer, indent=2), encoding="utf-8")
        for each in sections:
            apart = f"-{each['result'].name}" if len(found) > 1 else ""
            (out / f"figure{apart}.png").write_bytes(base64.b64decode(each["picture"]))
    except OSError as error:
        raise ValueError(f"{out} cannot be written: {error}") from error
    print(out / "index.html")


def section(result: Result) -> dict[str, Any]:
    """What the page shows of a study."""
    every = report_scores.every(result)
    picture = io.BytesIO()
    answer = of_study(result, every)
    report_figures.draw(every[0], picture)
    for run in result.runs.values():
        for step in run["record"].values():
            if isinstance(step, dict) and "command" in step:
                step["command"] = shlex.join(step["command"])  # as typed in a shell
    return {
        "result": result,
        "answer": answer,
        "said": sentences(answer, result.study) if answer else [],
        "tables": [table for one in every for table in tables(one)],
        "picture": base64.b64encode(picture.getvalue()).decode(),
    }


def markdown(section: Mapping[str, Any]) -> str:
    """The tables under the study's title, answer and notes."""
    result: Result = section["result"]
    first = [result.elsewhere] if result.elsewhere else []
    parts = [f"## {result.study.title}", *first, *section["said"], *result.notes]
    parts += [table.markdown() for table in section["tables"]]
    return "\n\n".join(parts)


def _yaml(value: Any) -> str:
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=math.inf))
