"""Rows of results: CSVs that are written as the rows come, and Markdown tables."""

import csv
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from tabulate import tabulate


@dataclass
class BleuRow:
    """One checkpoint on one subset.

    Attributes:
        model: its label.
        checkpoint: file.
        epoch, updates: of training, when it was saved.
        data: folder of binarised data.
        subset: ``valid``, ``test``, …
        beam, lenpen, max_len_a, max_len_b: of the search.
        precision: ``fp32``, ``fp16``, ``bf16``, ``amp-fp16`` or ``amp-bf16``.
        post_process, detokenizer: what removed BPE, and what tokenisation.
        bleu: on tokenised text, by the formula of multi-bleu.perl.
        brevity_penalty, length_ratio: of that.
        sacrebleu, signature: on detokenised text.
        reference: file of raw text, or ``detokenised``: from the binarised target.
        sentences: all of the subset.
        seconds: that translating took.
        modified: time of the checkpoint file, in seconds since 1970.
    """

    model: str
    checkpoint: str
    epoch: int | None
    updates: int | None
    data: str
    subset: str
    beam: int
    lenpen: float
    max_len_a: float
    max_len_b: int
    precision: str
    post_process: str
    detokenizer: str
    bleu: float
    brevity_penalty: float
    length_ratio: float
    sacrebleu: float
    signature: str
    reference: str
    sentences: int
    seconds: float
    modified: float


@dataclass
class LossRow:
    """One position of the target.

    Attributes:
        model: its label.
        checkpoint: file.
        data: folder of binarised data.
        subset: ``test``, …
        position: in tokens, the first is 1.
        loss: mean negative log probability of the reference's token there, in nats.
        sentences: that reach the position; each has its EOS at its last.
    """

    model: str
    checkpoint: str
    data: str
    subset: str
    position: int
    loss: float
    sentences: int


Row = TypeVar("Row", BleuRow, LossRow)

# what a translation depends on; with all of it alike a row is taken from an interrupted run
_SAME = (
    *("checkpoint", "data", "subset", "beam", "lenpen", "max_len_a", "max_len_b"),
    *("precision", "post_process", "detokenizer", "reference", "modified"),
)


class CsvFile:
    """A CSV that holds every row from the moment it is known.

    Args:
        path: None writes nothing.
        kind: class of the rows.
        mode: ``new``, ``overwrite``, or ``resume``, which keeps and continues a file that is there.

    Raises:
        ValueError: the file is there and may not be replaced, or cannot be continued.
    """

    def __init__(self, path: Path | None, kind: type[Row], mode: str = "new") -> None:
        self.file = None
        self.columns = [field.name for field in fields(kind)]
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
        self.writer = csv.DictWriter(self.file, self.columns, lineterminator="\n")
        if not resumed:
            self.writer.writeheader()
        self.file.flush()

    def add(self, *rows: Row) -> None:
        """Write rows."""
        if self.file is None:
            return
        for row in rows:
            self.writer.writerow({key: _written(value) for key, value in asdict(row).items()})
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()


def read_bleu(path: Path) -> list[BleuRow]:
    """Rows that an interrupted run wrote.

    Raises:
        ValueError: the file was not written by ``cape-fairseq-eval bleu``.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames != [field.name for field in fields(BleuRow)]:
                raise ValueError(f"{path} was not written by this cape-fairseq-eval bleu")
            return [_read_row(row) for row in reader if None not in row.values()]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def find(rows: Sequence[BleuRow], wanted: dict[str, Any]) -> BleuRow | None:
    """The row with the same checkpoint, data and search, if there is one."""
    for row in rows:
        if all(_written(getattr(row, key)) == _written(wanted[key]) for key in _SAME):
            return row
    return None


def check_absent(paths: Sequence[Path | None], overwrite: bool, hint: str = "") -> None:
    """Raise ValueError if a file is there (without ``overwrite``) or its folder is not."""
    for path in paths:
        if path is None:
            continue
        if path.exists() and not overwrite:
            raise ValueError(f"{path} exists: choose another name or give --overwrite{hint}")
        if not path.parent.is_dir():
            raise ValueError(f"no such folder: {path.parent} (for {path.name})")


def markdown(header: Sequence[str], table: Sequence[Sequence[object]]) -> str:
    """A Markdown table; numbers as given, without empty columns."""
    used = [i for i in range(len(header)) if any(row[i] not in ("", None) for row in table)]
    body = [["" if row[i] is None else row[i] for i in used] for row in table]
    head = [header[i] for i in used]
    return tabulate(body, head, tablefmt="github", disable_numparse=True) + "\n"


def _read_row(row: dict[str, str]) -> BleuRow:
    values: dict[str, Any] = dict(row)
    for name in ("epoch", "updates"):
        values[name] = int(row[name]) if row[name] else None
    for name in ("beam", "max_len_b", "sentences"):
        values[name] = int(row[name])
    for field in fields(BleuRow):
        if field.type in (float, "float"):
            values[field.name] = float(row[field.name])
    return BleuRow(**values)


def _written(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
