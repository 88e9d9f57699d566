"""Files of the evaluation commands: where they go, and CSVs that are written as the rows come."""

import csv
import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any


def check_absent(paths: Sequence[Path | None], overwrite: bool, hint: str = "") -> None:
    """Raise ValueError if a file is there (without ``overwrite``) or its folder is not."""
    for path in paths:
        if path is None:
            continue
        if path.exists() and not overwrite:
            raise ValueError(f"{path} exists: choose another name or give --overwrite{hint}")
        if not path.parent.is_dir():
            raise ValueError(f"no such folder: {path.parent} (for {path.name})")


class CsvFile:
    """A CSV that holds every row from the moment it is known; a context that closes it.

    Args:
        path: None writes nothing.
        kind: the dataclass of the rows; its fields are the columns.
        overwrite: replace a file that is there.
        resume: keep and continue it.

    Raises:
        ValueError: the file is there and may not be replaced, or cannot be written.
    """

    def __init__(
        self, path: Path | None, kind: type, overwrite: bool = False, resume: bool = False
    ) -> None:
        self.file = None
        if path is None:
            return
        resumed = resume and path.exists()
        how = "a" if resumed else "w" if overwrite else "x"
        try:
            if resumed:  # without a last line that was cut off
                os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
            self.file = path.open(how, newline="", encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error}") from error
        self.writer = csv.DictWriter(self.file, columns(kind), lineterminator="\n")
        if not resumed:
            self.writer.writeheader()
        self.file.flush()

    def __enter__(self) -> "CsvFile":
        return self

    def __exit__(self, *error: object) -> None:
        if self.file is not None:
            self.file.close()

    def add(self, *rows: Any) -> None:
        """Write rows."""
        if self.file is not None:
            for row in rows:
                self.writer.writerow({key: written(value) for key, value in asdict(row).items()})
            self.file.flush()


def read_rows(
    path: Path, needed: Sequence[str], writer: str, *, exact: bool = False
) -> list[dict[str, str]]:
    """The rows of a CSV, without a last one that was cut off; empty if it has none.

    Args:
        path: the file.
        needed: columns that it must have.
        writer: the command that writes such files, for the error.
        exact: it must have no others.

    Raises:
        ValueError: it cannot be read, lacks a column or has another.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = [row for row in reader if None not in row.values()]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    there = reader.fieldnames or ()
    wrong = [f"has no column {column!r}" for column in needed if column not in there]
    wrong += [f"has a column {column!r}" for column in there if exact and column not in needed]
    if wrong:
        raise ValueError(f"{path} was not written by {writer}: it {wrong[0]}")
    return rows


def columns(kind: type) -> list[str]:
    """Names of a dataclass's fields."""
    return [field.name for field in fields(kind)]


def written(value: object) -> object:
    """A value as it stands in the CSV: six decimals, nothing for None."""
    if value is None:
        return ""
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
