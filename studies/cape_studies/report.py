"""``cape-report``: the report of a study's runs, by :mod:`.page`."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from cape_studies import command, page, results
from cape_studies.asked import StudyOptions
from cape_studies.tidy import Result


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
    """Write a report; print its answers, its notes, how to go on, and where the page is.

    Raises:
        ValueError: nothing is done yet, or data are missing.
    """
    out = options.write or options.out / Path(str(options.study)).stem / "report"
    page.show(read(options), out)


def read(options: StudyOptions) -> list[Result]:
    """The studies that are asked for.

    Raises:
        ValueError: none has scores yet, or data are missing.
    """
    plans, problems = options.plans()
    if problems:
        raise ValueError(f"{problems[0]} (cape-report takes the same words as cape-run)")
    found, none = [], []
    for plan in plans:
        try:
            found.append(results.of_plan(plan, ["cape-run", *options.words()]))
        except ValueError as error:
            none.append(error)
    if not found:
        raise none[0]
    found[0].notes.extend(map(str, none))
    return found
