"""``cape-report``: scores as a tidy CSV, Markdown tables, a figure and one page."""

import base64
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import jinja2
import pandas as pd
import yaml
from pydantic import Field, PositiveInt, model_validator

from cape_studies.evaluation import command
from cape_studies.evaluation.options import Options, Typed, once
from cape_studies.experiments import report_csv, report_figures, report_read
from cape_studies.experiments.report_read import Result
from cape_studies.experiments.report_scores import Scores
from cape_studies.experiments.report_tables import Table, tables
from cape_studies.experiments.study import known


class ReportOptions(Options):
    """Tables with intervals, the paper's numbers beside, a figure and a page.

    Of studies: folders of cape-run (one that holds several stands for all), or the scores.csv of an
    earlier report. Of evaluations: the CSVs that cape-timm-eval, cape-fairseq-eval or
    cape-espnet-eval wrote.
    """

    groups: ClassVar[dict[str, str]] = {"x": "of evaluations' CSVs"}

    source: Annotated[list[Path], Typed("SOURCE", positional=True)] = Field(
        description="folder of a study, or a CSV"
    )
    out: Annotated[Path | None, Typed("DIR")] = Field(
        None, description="default: FOLDER/report, which is replaced"
    )
    overwrite: bool = Field(False, description="replace files in --out")
    baseline: Annotated[str | None, Typed("VARIANT")] = Field(
        None, description="that the others are compared with (default: the study's)"
    )
    x: Annotated[str | None, Typed("COLUMN")] = Field(
        None, description="under the curves (default: the first that varies)"
    )
    metric: str | None = Field(None, description="default: the first")
    group: Annotated[str | None, Typed("REGEX")] = Field(
        None,
        description="what it finds in FILE:MODEL:CHECKPOINT (its first group) names a curve, whose "
        "trainings are averaged (default: the model and what differs)",
    )
    panels: Annotated[str | None, Typed("COLUMN")] = Field(None, description="side by side")
    trained_on: Annotated[list[str], Typed("X")] = Field([], description="values to mark")
    window: PositiveInt = Field(1, description="of a moving average over x")
    least: PositiveInt = Field(1, description="leave out values of fewer test items")
    title: str = Field("", description="of figure and page")

    @model_validator(mode="after")
    def check(self) -> "ReportOptions":
        """Refuse a source that comes twice, and what has no place to be written to."""
        once([path.resolve() for path in self.source], "SOURCE")
        if self.out is None and (len(self.source) > 1 or self.source[0].is_file()):
            raise ValueError("--out DIR is needed for more than one folder, and for CSVs")
        return self


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; ends with status 2 and one line on stderr if something is wrong."""
    command.main("cape-report", ReportOptions, run, argv)


def run(options: ReportOptions) -> Path:
    """Write scores.csv, their items, table.md, figure.png (of several studies each its own) and
    index.html.

    Returns:
        the page.

    Raises:
        ValueError: as :func:`results` and :class:`Scores`, or a file is there.
    """
    found = results(options)
    out = options.out or options.source[0] / "report"
    figures = [f"figure-{one.name}.png" for one in found] if len(found) > 1 else ["figure.png"]
    names = ["scores.csv", "scores-items.csv.xz", "table.md", *figures, "index.html"]
    for path in (out / name for name in names):
        if options.out is not None and not options.overwrite and path.exists():
            raise ValueError(f"{path} exists: choose another --out or give --overwrite")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        sections = [section(*one, made) for one in zip(found, figures, strict=True)]
        pd.concat([one.scores for one in found]).to_csv(made / "scores.csv", index=False)
        items = [one.items.assign(study=one.name) for one in found if len(one.items)]
        if items:
            pd.concat(items).to_csv(made / "scores-items.csv.xz", index=False)
        text = "\n".join(markdown(one["result"], one["tables"]) for one in sections)
        (made / "table.md").write_text(text, encoding="utf-8")
        page = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
        template = jinja2.Template(page, autoescape=True, trim_blocks=True, lstrip_blocks=True)
        text = template.render(sections=sections, yaml=_yaml, shell=shlex.join)
        (made / "index.html").write_text(text, encoding="utf-8")
        out.mkdir(parents=True, exist_ok=True)
        for name in names:
            (out / name).unlink(missing_ok=True)  # of an earlier report, which had items
        for path in sorted(made.iterdir()):
            shutil.copy(path, out)
    print(out / "index.html")
    return out / "index.html"


def results(options: ReportOptions) -> list[Result]:
    """What is to be shown, compared with the baseline that was asked for.

    Raises:
        ValueError: a source cannot be read, or a study does not have that baseline.
    """
    files = [path for path in options.source if path.is_file()]
    headers = [report_read.table(path).columns for path in files]
    if files and all("model" in header for header in headers):
        found = [report_csv.read(options)]
    else:
        found = report_read.read(options.source)
    for one in found:
        if options.baseline is not None:
            known("--baseline", [options.baseline], one.variants)
            one.about.baseline = options.baseline
    return found


def markdown(result: Result, every: Sequence[Table]) -> str:
    """The tables under the study's title and notes."""
    parts = [f"## {result.title}", *result.notes, *(one.markdown() for one in every)]
    return "\n\n".join(parts)


def section(result: Result, figure: str, made: Path) -> dict[str, Any]:
    """What the page shows of a study; the figure is left in ``made``."""
    first, rows = (result.about.evaluation, result.about.metric), result.scores
    pairs = dict.fromkeys([first, *zip(rows["evaluation"], rows["metric"], strict=True)])
    scores = {pair: Scores(result, *pair) for pair in pairs}
    panels = [scores[first]] if result.study else list(scores.values())
    report_figures.draw(panels, made / figure, result.about.title)
    picture = base64.b64encode((made / figure).read_bytes()).decode()
    facts: dict[str, list[str]] = {}  # of the records, beside the steps; most often alike in all
    for key, value in [item for run in result.runs for item in run.record.items()]:
        if not (isinstance(value, dict) and "command" in value):
            parts = value.items() if isinstance(value, dict) else []
            text = ", ".join(f"{name} {of}" for name, of in parts) or f"{value}"
            said = facts.setdefault(key.replace("_", " "), [])
            said += [] if text in said else [text]
    every = [table for one in scores.values() for table in tables(one)]
    return {"result": result, "tables": every, "picture": picture, "facts": facts}


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
