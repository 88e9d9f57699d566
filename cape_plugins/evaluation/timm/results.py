"""What an evaluation found: the rows of its CSV and of its Markdown table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cape_plugins.evaluation.table import rows_table, table
from cape_plugins.evaluation.timm.size_bins import LABELS


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
    """The rows as a Markdown table, without the columns that are empty throughout.

    With size bins the paper's table follows, for each model and test set.
    """
    text = rows_table(rows, [] if any(row.tta for row in rows) else ["tta"])
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.bin:
            groups.setdefault((row.checkpoint, row.dataset, row.extent), []).append(row)
    for (checkpoint, dataset, extent), mine in groups.items():
        title = " · ".join([checkpoint, dataset] + [f"γ {extent}"] * bool(extent))
        text += f"\n{title}\n\n{bins_table(mine)}"
    return text


def bins_table(rows: Sequence[Row]) -> str:
    """Table 5 of the paper: in each bin the best strategy, and what the others lose to it.

    The last line has the accuracy of the best strategies together, and what each strategy that
    takes all images loses to that.

    Args:
        rows: of one model and test set, with size bins.
    """
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        name = row.strategy if row.resolution is None else str(row.resolution)
        found.setdefault(row.bin, {})[name] = row
    together = found.pop("all")
    best = {label: max(row.top1 or 0.0 for row in of.values()) for label, of in found.items()}
    images = {label: next(iter(of.values())).images or 0 for label, of in found.items()}
    total = sum(images.values())
    found["all"] = {name: row for name, row in together.items() if row.images == total}
    best["all"] = sum(images[label] * best[label] for label in images) / total
    images["all"] = total
    body = []
    for label in sorted(found, key=[*LABELS, "all"].index):
        drops = {name: (row.top1 or 0.0) - best[label] for name, row in found[label].items()}
        cells = {name: "best" if drop > -1e-9 else f"{drop:.2f}" for name, drop in drops.items()}
        line = [label, images[label], f"{best[label]:.2f}"]
        body.append(line + [cells.get(name) for name in together])
    return table(["bin", "images", "top1", *together], body)
