"""A report: scores as a tidy CSV, Markdown tables, a figure and one page."""

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from cape_studies import compare, figure
from cape_studies.answer import of_result, sentences
from cape_studies.tables import tables
from cape_studies.tidy import Result


def show(results: Sequence[Result], out: Path) -> None:
    """Write a report, and print its answers, its notes, how to go on, and where the page is.

    Raises:
        OSError: a file cannot be written.
    """
    sections = [section(one) for one in results]
    page = write(sections, out)
    lines = [line for one in sections for line in _told(one)]
    print("\n\n".join([*lines, str(page)]))


def _told(section: Mapping[str, Any]) -> Iterator[str]:
    result: Result = section["result"]
    yield from (result.title, *section["said"], *result.notes)
    ranges = section["answer"]["ranges"] if section["answer"] else {}
    for best in dict.fromkeys(of["best"] for of in ranges.values()):
        if lines := result.next.get(best):
            yield "\n".join([f"{best}:", *(f"  {line}" for line in lines)])


def write(sections: Sequence[Mapping[str, Any]], out: Path) -> Path:
    """Write scores.csv, scores-items.csv.xz, table.md, index.html and figure.png; and answer.json
    where an answer is given. Of several studies each has its own figure-STUDY.png and answer.

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
    text = template.render(sections=sections)
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("answer*.json"), *out.glob("figure*.png")):  # of another report
        old.unlink()
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
    """What the page shows of a study."""
    every = compare.every(result)
    picture = io.BytesIO()
    answer = of_result(result, every)
    figure.draw(every[0], picture)
    return {
        "result": result,
        "answer": answer,
        "said": sentences(answer) if answer else [],
        "tables": [table for one in every for table in tables(one)],
        "picture": base64.b64encode(picture.getvalue()).decode(),
    }


def markdown(section: Mapping[str, Any]) -> str:
    """The tables under the study's title, answer and notes."""
    result: Result = section["result"]
    parts = [f"## {result.title}", *section["said"], *result.notes]
    parts += [table.markdown() for table in section["tables"]]
    return "\n\n".join(parts)
