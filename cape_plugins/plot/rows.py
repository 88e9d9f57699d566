"""The CSVs of the evaluation commands, as pictures read them."""

import csv
from collections.abc import Sequence
from pathlib import Path


def read(path: Path, needed: Sequence[str], writer: str) -> list[dict[str, str]]:
    """The rows of a CSV; empty if it has none.

    Args:
        path: the file.
        needed: columns that it must have.
        writer: the command that writes such files, for the error.

    Raises:
        ValueError: it cannot be read or lacks a column.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    missing = [column for column in needed if rows and column not in rows[0]]
    if missing:
        raise ValueError(f"{path} has no column {missing[0]!r}: give what {writer} wrote")
    return rows
