"""Results of the evaluation commands: CSVs written as the rows come, and Markdown tables."""

import csv
import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

from tabulate import tabulate


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
    """A CSV that holds every row from the moment it is known.

    Args:
        path: None writes nothing.
        kind: the dataclass of the rows; its fields are the columns.
        mode: ``new``, ``overwrite``, or ``resume``, which keeps and continues a file that is there.

    Raises:
        ValueError: the file is there and may not be replaced, or cannot be written.
    """

    def __init__(
        self, path: Path | None, kind: type, mode: Literal["new", "overwrite", "resume"] = "new"
    ) -> None:
        self.file = None
        if path is None:
            return
        resumed = mode == "resume" and path.exists()
        try:
            if resumed:  # without a last line that was cut off
                os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
            self.file = path.open(
                "a" if resumed else "w" if mode == "overwrite" else "x",
                newline="",
                encoding="utf-8",
            )
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error}") from error
        columns = [field.name for field in fields(kind)]
        self.writer = csv.DictWriter(self.file, columns, lineterminator="\n")
        if not resumed:
            self.writer.writeheader()
        self.file.flush()

    def add(self, *rows: Any) -> None:
        """Write rows."""
        if self.file is None:
            return
        for row in rows:
            self.writer.writerow({key: written(value) for key, value in asdict(row).items()})
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()


def written(value: object) -> object:
    """A value as it stands in the CSV: six decimals, nothing for None."""
    if value is None:
        return ""
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def shown(value: object) -> object:
    """A value as it stands in a table: two decimals, nothing for None."""
    return f"{value:.2f}" if isinstance(value, float) else written(value)


def table(header: Sequence[str], body: Sequence[Sequence[object]]) -> str:
    """A Markdown table; cells as given, without the columns that are empty throughout."""
    used = [i for i in range(len(header)) if any(row[i] not in ("", None) for row in body)]
    cells = [["" if row[i] is None else row[i] for i in used] for row in body]
    head = [header[i] for i in used]
    return tabulate(cells, head, tablefmt="github", disable_numparse=True) + "\n"
