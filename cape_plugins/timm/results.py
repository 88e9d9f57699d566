"""What an evaluation found: rows, written as CSV while they come and as a Markdown table."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from tabulate import tabulate

from cape_plugins.timm.scoring import Score


@dataclass
class Row:
    """One model under one condition.

    Attributes:
        model: timm's name of the architecture.
        checkpoint: where its weights came from.
        dataset: folder of the test images.
        resolution: of square images, in pixels; empty where each image has its own.
        extent: the paper's γ: a number, ``ratio`` or ``sqrt``; empty for models without it.
        gamma: the number that this made; empty where it varies.
        tta: 1 with test-time augmentation over three sizes.
        strategy: of size bins; else empty.
        bin: of size bins (``all``: the bins together); else empty.
        top1, top5: accuracy in percent; empty if only throughput was measured.
        images: how many were scored.
        seconds: that scoring them took; with size bins the whole strategy's.
        batch_size: of the throughput.
        images_per_second: the throughput.
    """

    model: str
    checkpoint: str
    dataset: str = ""
    resolution: int | None = None
    extent: str = ""
    gamma: float | None = None
    tta: int = 0
    strategy: str = ""
    bin: str = ""
    top1: float | None = None
    top5: float | None = None
    images: int | None = None
    seconds: float | None = None
    batch_size: int | None = None
    images_per_second: float | None = None


COLUMNS = tuple(field.name for field in fields(Row))


def scored(row: Row, found: Score, name: str = "") -> Row:
    """The row with its accuracies; ``name`` is the bin's."""
    return replace(
        row,
        bin=name,
        top1=100 * found.top1 / found.images,
        top5=100 * found.top5 / found.images,
        images=found.images,
    )


def line(row: Row) -> str:
    """The row in words, for the terminal."""
    parts = [row.checkpoint, Path(row.dataset).name, row.strategy, row.bin]
    if row.resolution is not None:
        parts.append(f"{row.resolution} px")
    if row.extent:
        parts.append(f"γ {row.extent}")
    if row.top1 is not None:
        parts.append(f"top-1 {row.top1:.2f} top-5 {row.top5:.2f} ({row.images} images)")
    if row.images_per_second is not None:
        parts.append(f"{row.images_per_second:.1f} images/s (batch {row.batch_size})")
    return " · ".join(part for part in parts if part)


def check_absent(paths: Sequence[Path | None], overwrite: bool) -> None:
    """Raise ValueError if a file is there (without ``overwrite``) or its folder is not."""
    for path in paths:
        if path is None:
            continue
        if path.exists() and not overwrite:
            raise ValueError(f"{path} exists: choose another name or give --overwrite")
        if not path.parent.is_dir():
            raise ValueError(f"no such folder: {path.parent} (for {path.name})")


class CsvFile:
    """A CSV that holds every row from the moment it is known.

    Args:
        path: None writes nothing.
        overwrite: replace a file that is there.

    Raises:
        FileExistsError: it is there and may not be replaced.
    """

    def __init__(self, path: Path | None, overwrite: bool) -> None:
        self.file = None
        if path is not None:
            self.file = path.open("w" if overwrite else "x", newline="", encoding="utf-8")
            self.writer = csv.DictWriter(self.file, COLUMNS, lineterminator="\n")
            self.writer.writeheader()
            self.file.flush()

    def add(self, row: Row) -> None:
        """Write a row."""
        if self.file is None:
            return
        self.writer.writerow({key: _rounded(value) for key, value in asdict(row).items()})
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, without the columns that are empty throughout."""
    if not rows:
        return ""
    table = [{key: _shown(value) for key, value in asdict(row).items()} for row in rows]
    used = [c for c in COLUMNS if any(line[c] != "" for line in table)]
    if not any(row.tta for row in rows):
        used.remove("tta")
    body = [[line[c] for c in used] for line in table]
    return tabulate(body, used, tablefmt="github", disable_numparse=True) + "\n"


def _rounded(value: object) -> object:
    if value is None:
        return ""
    return round(value, 4) if isinstance(value, float) else value


def _shown(value: object) -> object:
    return f"{value:.2f}" if isinstance(value, float) else _rounded(value)
