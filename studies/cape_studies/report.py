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
from pydantic import Field

from cape_studies import command, compare, figure, process, results
from cape_studies.answer import of_study, sentences
from cape_studies.asked import StudyOptions
from cape_studies.results import Result
from cape_studies.tables import tables


class ReportOptions(StudyOptions):
    """Write tables with intervals, a figure and a page, of the study that the same words of
    cape-run trained.

    example:
      cape-report my_images --data photos
    """

    write: Path | None = Field(
        None,
        description="folder of the report, which replaces an earlier one; none: OUT/STUDY/report",
    )


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; ends with status 2 and one line on stderr if something is wrong."""
    command.main("cape-report", ReportOptions, show, argv)


def show(options: ReportOptions) -> None:
    """Write a report; print its answers, its notes, and where the page is."""
    sections = [section(one) for one in read(options)]
    page = write(sections, options.write or options.out / Path(str(options.study)).stem / "report")
    lines = []
    for one in sections:
        result: Result = one["result"]
        lines += [result.study.title, *one["said"], *result.notes]
    print("\n\n".join([*lines, str(page)]))


def read(options: StudyOptions) -> list[Result]:
    """The studies that are asked for.

    Raises:
        ValueError: none has scores yet, or data are missing.
    """
    plans, problems = options.plans()
    if problems:
        raise ValueError(f"{problems[0]} (cape-report takes the same words as cape-run)")
    again = shlex.join(["cape-run", *options.words()])
    found, none = [], []
    for plan in plans:
        try:
            found.append(results.of_plan(plan, again))
        except ValueError as error:
            none.append(error)
    if not found:
        raise none[0]
    found[0].notes.extend(map(str, none))
    return found


def write(sections: Sequence[Mapping[str, Any]], out: Path) -> Path:
    """Write scores.csv, scores-items.csv.xz, table.md, index.html and figure.png; and answer.json
    for a user's own data. Of several studies each has its own figure-STUDY.png and answer.

    Args:
        sections: of :func:`section`, one for each study.
        out: the folder.

    Returns:
        The page.

    Raises:
        OSError: a file cannot be written.
    """
    found: list[Result] = [one["result"] for one in sections]
    page = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    template = jinja2.Template(page, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    text = template.render(sections=sections, yaml=_yaml, shell=shlex.join)
    out.mkdir(parents=True, exist_ok=True)
    process.remove(*out.glob("answer*.json"), *out.glob("figure*.png"))  # of another report
    (out / "index.html").write_text(text, encoding="utf-8")
    (out / "table.md").write_text("\n".join(map(markdown, sections)), encoding="utf-8")
    items = pd.concat([one.items.assign(study=one.name) for one in found])
    items.to_csv(out / "scores-items.csv.xz", index=False)
    pd.concat([one.scores for one in found]).to_csv(out / "scores.csv", index=False)
    for each in sections:
        apart = f"-{each['result'].name}" if len(found) > 1 else ""
        (out / f"figure{apart}.png").write_bytes(base64.b64decode(each["picture"]))
        if each["answer"]:
            (out / f"answer{apart}.json").write_text(json.dumps(each["answer"], indent=2))
    return out / "index.html"


def section(result: Result) -> dict[str, Any]:
    """What the page shows of a study.

    Raises:
        ValueError: a score is not what its items make.
    """
    every = compare.every(result)
    picture = io.BytesIO()
    answer = of_study(result, every)
    figure.draw(every[0], picture)
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
    parts = [f"## {result.study.title}", *section["said"], *result.notes]
    parts += [table.markdown() for table in section["tables"]]
    return "\n\n".join(parts)


def _yaml(value: Any) -> str:
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=math.inf))
