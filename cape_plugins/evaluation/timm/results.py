"""What an evaluation found: the rows of its CSV and of its Markdown table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cape_plugins.evaluation.table import rows_table


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


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, without the columns that are empty throughout."""
    return rows_table(rows, [] if any(row.tta for row in rows) else ["tta"])
