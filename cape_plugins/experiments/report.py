"""``cape-report``: what studies found, as a tidy CSV, a Markdown table, figures and one page."""

# ruff: noqa: RUF009 - option() makes a field
import base64
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import yaml

from cape_plugins.evaluation import command
from cape_plugins.evaluation.options import Options, once, option
from cape_plugins.experiments import report_figures
from cape_plugins.experiments.report_intervals import Scores
from cape_plugins.experiments.report_read import Result, read
from cape_plugins.experiments.report_tables import tables
from cape_plugins.experiments.study import known


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """Tables with intervals, the paper's numbers beside, figures and a page, of cape-run's studies.

    A folder that holds several studies stands for all of them.
    """

    folder: Sequence[Path] = option("of a study, as cape-run wrote it", flags=("folder",))
    out: Path | None = option("default: FOLDER/report, which is replaced", None, "DIR")
    overwrite: bool = option("replace files in --out", False)
    baseline: str | None = option(
        "that the others are compared with (default: the study's)", None, "VARIANT"
    )

    def check(self) -> None:
        """See :class:`Options`."""
        once([path.resolve() for path in self.folder], "FOLDER")
        if len(self.folder) > 1 and self.out is None:
            raise ValueError(f"{len(self.folder)} folders: give --out DIR for their report")


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; ends with status 2 and one line on stderr if something is wrong."""
    command.main("cape-report", ReportOptions, run, argv)


def run(options: ReportOptions) -> Path:
    """Write scores.csv, table.md, figure.png (of several studies each its own) and index.html.

    Returns:
        the page.

    Raises:
        ValueError: as :func:`report_read.read` and :class:`Scores`, a study does not have that
            baseline, or a file is there.
    """
    results = read(options.folder)
    if options.baseline is not None:
        for one in results:
            known("--baseline", [options.baseline], one.study.variants)
            one.study.report.baseline = options.baseline
    out = options.out or options.folder[0] / "report"
    figures = [f"figure-{one.name}.png" for one in results] if len(results) > 1 else ["figure.png"]
    names = ["scores.csv", "table.md", *figures, "index.html"]
    for path in (out / name for name in names):
        if options.out is not None and not options.overwrite and path.exists():
            raise ValueError(f"{path} exists: choose another --out or give --overwrite")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        sections = [_section(*one, made) for one in zip(results, figures, strict=True)]
        pd.concat([one.scores for one in results]).to_csv(made / "scores.csv", index=False)
        text = "\n".join(section["markdown"] for section in sections)
        (made / "table.md").write_text(text, encoding="utf-8")
        page = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
        template = jinja2.Template(page, autoescape=True, trim_blocks=True, lstrip_blocks=True)
        text = template.render(sections=sections, yaml=_yaml, shell=shlex.join)
        (made / "index.html").write_text(text, encoding="utf-8")
        out.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copy(made / name, out / name)
    print(out / "index.html")
    return out / "index.html"


def _section(result: Result, figure: str, made: Path) -> dict[str, Any]:
    """What the page shows of a study; the figure is left in ``made``."""
    shown, rows = result.study.report, result.scores
    first = shown.evaluation, shown.metric
    pairs = dict.fromkeys([first, *zip(rows["evaluation"], rows["metric"], strict=True)])
    scores = {pair: Scores(result, *pair) for pair in pairs}
    every = [table for each in scores.values() for table in tables(each)]
    trained = any(len(one.metrics) for one in result.runs)
    pictures = {}
    for end in ("-dark", ""):
        report_figures.draw(result, scores[first], made / figure, dark=bool(end))
        pictures[f"figure{end}"] = _uri(made / figure)
        if trained:
            report_figures.draw_training(result, made / "training.png", dark=bool(end))
            pictures[f"training{end}"] = _uri(made / "training.png")
    text = [f"## {result.study.title}", *result.notes, *(table.markdown() for table in every)]
    facts: dict[str, list[str]] = {}  # of the records, beside the steps; most often alike in all
    for key, value in [item for run in result.runs for item in run.record.items()]:
        if not (isinstance(value, dict) and "command" in value):
            said, text_ = facts.setdefault(key.replace("_", " "), []), _words(value)
            said += [] if text_ in said else [text_]
    return {
        **{"result": result, "study": result.study, "tables": every, "pictures": pictures},
        **{"facts": facts, "markdown": "\n\n".join(text)},
    }


def _words(value: object) -> str:
    return (
        ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else f"{value}"
    )


def _uri(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
