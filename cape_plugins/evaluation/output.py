"""Files of the evaluation commands: where they go, and CSVs that are written as the rows come."""

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import NoneType
from typing import IO, Any, TypeVar, get_args

Row = TypeVar("Row")


def check_absent(paths: Sequence[Path | None], overwrite: bool, hint: str = "") -> None:
    """Raise ValueError if a file is there (without ``overwrite``) or cannot be made there."""
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise ValueError(f"{path} is a folder: give the name of a file")
        if path.exists() and not overwrite:
            raise ValueError(f"{path} exists: choose another name or give --overwrite{hint}")
        if not path.parent.is_dir():
            raise ValueError(f"no such folder: {path.parent} (for {path.name})")
        is_file = path.is_file() or not path.exists()  # else /dev/stdout and its like
        if is_file and not os.access(path.parent, os.W_OK):
            raise ValueError(f"{path} cannot be written: its folder is read-only")


class CsvFile:
    """A CSV that holds every row from the moment it is known; a context that closes it.

    The file is made with the first row. One that is there stays until the context ends without an
    error: until then the rows go to a file beside it, ``NAME.csv.part``.

    Args:
        path: None writes nothing.
        kind: the dataclass of the rows; its fields are the columns.
        overwrite: replace a file that is there.
        resume: keep and continue what :func:`begun` finds.
        aside: the rows go beside also where no file is yet: it is there when it is whole.
    """

    def __init__(
        self,
        path: Path | None,
        kind: type,
        overwrite: bool = False,
        resume: bool = False,
        aside: bool = False,
    ) -> None:
        self.file: IO[str] | None = None
        self.path, self.kind = path, kind
        self.target, self.how = path, "a" if resume else "x"
        if path is not None and resume:
            self.target = begun(path)
        elif path is not None and (overwrite or aside):
            there = path.is_file() or (aside and not path.exists())
            self.target = _beside(path) if there else path
            self.how = "w"

    def __enter__(self) -> "CsvFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self.file is not None:
            self.file.close()
        done = kind is None and (self.file is not None or self.how == "a")
        if done and self.target is not None and self.path is not None and self.target != self.path:
            os.replace(self.target, self.path)

    def add(self, *rows: Any) -> None:
        """Write rows.

        Raises:
            ValueError: the file is there and may not be replaced, or cannot be written.
        """
        if self.target is None:
            return
        if self.file is None:
            self.file = self._open(self.target)
        writer = csv.DictWriter(self.file, columns(self.kind), lineterminator="\n")
        if self.file.tell() == 0:
            writer.writeheader()
        for row in rows:
            writer.writerow({key: written(value) for key, value in asdict(row).items()})
        self.file.flush()

    def _open(self, path: Path) -> IO[str]:
        try:
            if self.how == "a" and path.exists():  # without a last line that was cut off
                os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
            return path.open(self.how, newline="", encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error}") from error


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def begun(path: Path) -> Path:
    """The CSV of an interrupted run: beside the path where it was to replace a file, else there."""
    return _beside(path) if _beside(path).exists() else path


def read_begun(
    path: Path | None, kind: type[Row], writer: str, inputs: Sequence[str] = ()
) -> list[Row]:
    """The rows that an interrupted run wrote; none where there is no file yet.

    Args:
        path: of the CSV.
        kind: the dataclass of the rows.
        writer: the command that writes such files, for the error.
        inputs: checkpoints; those that are files must be older.

    Raises:
        ValueError: the file was not written by the command, or an input is newer.
    """
    path = None if path is None else begun(path)
    if path is None or not path.exists():
        return []
    rows = read_rows(path, columns(kind), writer, exact=True)
    for name in inputs:
        if Path(name).is_file() and Path(name).stat().st_mtime > path.stat().st_mtime:
            raise ValueError(
                f"{name} is newer than {path}, whose rows may be of older weights: give "
                "--overwrite instead of --resume"
            )
    kinds = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    return [kind(**{name: _value(kinds[name], row[name]) for name in kinds}) for row in rows]


def matching(rows: Sequence[Row], wanted: Mapping[str, Any]) -> list[Row]:
    """The rows that have these values, as the CSV writes them."""
    return [
        row
        for row in rows
        if all(str(written(getattr(row, key))) == str(written(wanted[key])) for key in wanted)
    ]


def _value(kind: Any, text: str) -> Any:
    kinds = get_args(kind) or (kind,)
    return None if NoneType in kinds and not text else kinds[0](text)


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
