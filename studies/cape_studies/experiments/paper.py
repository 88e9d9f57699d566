"""The paper's numbers, read from the CSVs in ``configs/studies/paper``: its tables as printed."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo


class Part(BaseModel):
    """Of a study; a key that it does not have is an error."""

    model_config = ConfigDict(extra="forbid")


def _first(path: Path, info: ValidationInfo) -> Path:
    there = [(folder / path).resolve() for folder in info.context or [Path()]]
    return next((one for one in there if one.exists()), there[0])


#: Looked for in the folders that the validation is told.
File = Annotated[Path, AfterValidator(_first)]


class PaperRow(Part):
    """A number of the paper, to stand beside ours."""

    condition: str = Field(description="as the study's evaluation names it")
    variant: str = Field(description="of the study")
    value: float = Field(description="the number")
    source: str = Field(description="'Table 3'")
    spread: float | None = Field(None, description="the paper's, over seeds")
    evaluation: str | None = Field(None, description="default: the report's")
    metric: str | None = Field(None, description="default: the report's")


class PaperTable(Part):
    """A table of the paper as a CSV, and where its numbers belong in the study.

    A number has fields: its row's columns, and the groups of ``column``. The texts below may name
    them in braces.
    """

    file: File = Field(description="the CSV")
    source: str = Field(description="'Table 3'")
    where: dict[str, list[str]] = Field({}, description="column → values of rows to keep")
    column: str = Field(description="regular expression of the columns that hold numbers")
    names: dict[str, dict[str, str]] = Field({}, description="field → the paper's word → ours")
    variant: str = Field("{model}", description="whose number it is; others than ours are left out")
    condition: str = Field(description="as the study's evaluation names it")
    evaluation: str | None = Field(None, description="default: the report's")
    metric: str | None = Field(None, description="default: the report's")
    spread: str | None = Field(None, description="column of the spread over seeds")


def rows(table: PaperTable) -> list[PaperRow]:
    """The numbers of a table.

    Raises:
        ValueError: the CSV cannot be read, lacks a column or has no number where one should be.
    """
    try:
        with table.file.open(newline="", encoding="utf-8") as file:
            return [row for line in csv.DictReader(file) for row in _of_line(table, line)]
    except OSError as error:
        raise ValueError(f"{table.file} cannot be read: {error}") from error
    except (KeyError, ValueError) as error:
        raise ValueError(f"{table.file}: {error!r}") from error


def _of_line(table: PaperTable, line: dict[str, str]) -> Iterator[PaperRow]:
    if any(line[column] not in values for column, values in table.where.items()):
        return
    for column, cell in line.items():
        match = re.fullmatch(table.column, column)
        if match is None or not cell:
            continue
        fields = line | {name: group or "" for name, group in match.groupdict().items()}
        fields |= {name: ours.get(fields[name], fields[name]) for name, ours in table.names.items()}
        texts = table.model_dump(include={"variant", "condition", "evaluation", "metric"})
        yield PaperRow(
            **{key: text.format(**fields) for key, text in texts.items() if text is not None},
            value=float(cell),
            source=table.source,
            spread=float(line[table.spread.format(**fields)]) if table.spread else None,
        )
