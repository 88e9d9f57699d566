"""What an evaluation found: the rows of its CSV and of its Markdown table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cape_plugins.evaluation.output import columns, written
from cape_plugins.evaluation.table import rows_table, table
from cape_plugins.evaluation.timm.scoring import Hits
from cape_plugins.evaluation.timm.testset import Folder
from cape_plugins.evaluation.timm.words import spoken

_LINE = (
    *("checkpoint", "model", "variant", "max_global_shift", "max_local_shift", "max_global_scale"),
    *(
        "frequency_scale",
        "model_kwargs",
        "ema",
        "abspos_antialias",
        "dataset",
        "strategy",
        "bin",
        "resolution",
    ),
    *("seq_len", "extent", "attention_logn", "tta"),
)

#: Columns that tell a score from the others of its model.
TOLD = ("dataset", "resolution", "seq_len", "strategy", "extent", "bin")


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
        variant: of positions; empty for what is neither ours nor abspos.
        max_global_shift, max_local_shift, max_global_scale: Δ, ε (``1/N``: by the grid) and λ of
            the variants that have them.
        frequency_scale: of sinusoids and rotations; empty where it is the paper's 1.
        model_kwargs: of the training and of the test, ``name=value``.
        train_size: image sizes in pixels of the training.
        seed: of the training.
        training: a digest of train.py's other arguments, without names of places; empty if the
            checkpoint does not hold them.
        ema: 1 with averaged weights.
        tta_step: in pixels, with TTA.
        abspos_antialias: 1 if the resized table is antialiased; empty for models without one.
        crop_pct, interpolation, mean, std: how images are prepared.
        precision: of the forward.
        seq_len: most patches of each image at its own aspect ratio; else empty.
        attention_logn: N_train of the test, 0 for off; empty: as trained.
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
    variant: str = ""
    max_global_shift: float | None = None
    max_local_shift: str = ""
    max_global_scale: float | None = None
    model_kwargs: str = ""
    train_size: str = ""
    seed: int | None = None
    training: str = ""
    ema: int = 0
    tta_step: int | None = None
    abspos_antialias: int | None = None
    crop_pct: float | None = None
    interpolation: str = ""
    mean: str = ""
    std: str = ""
    precision: str = ""
    seq_len: int | None = None
    attention_logn: int | None = None
    frequency_scale: float | None = None


class Scored(NamedTuple):
    """A row, and the images that it counts."""

    row: Row
    folder: Folder
    hits: Hits

    def items(self) -> Iterator[tuple[str, str, int, int]]:
        """Of every image whether it is right."""
        for metric, right in (("top1", self.hits.top1), ("top5", self.hits.top5)):
            for i in self.hits.images.nonzero().flatten().tolist():
                path = Path(self.folder.paths[i]).relative_to(self.folder.root).as_posix()
                yield metric, path, int(right[i]), 1


def line(row: Row) -> str:
    """The row in words, for the terminal: the checkpoint, its options, the test, what it found."""
    parts = [spoken(name, str(written(getattr(row, name)))) for name in _LINE]
    if row.top1 is not None:
        parts.append(f"top-1 {row.top1:.2f} top-5 {row.top5:.2f} ({row.images} images)")
    if row.images_per_second is not None:
        parts.append(f"{row.images_per_second:.1f} images/s (batch {row.batch_size})")
    return " · ".join(part for part in parts if part)


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, without conditions that are the same in all.

    With size bins the paper's table follows, for each model and test set.
    """
    added = columns(Row)[columns(Row).index("variant") :]
    same = [name for name in added if len({getattr(row, name) for row in rows}) == 1]
    text = rows_table(rows, same if any(row.tta for row in rows) else [*same, "tta"])
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
    for label in found:
        drops = {name: (row.top1 or 0.0) - best[label] for name, row in found[label].items()}
        cells = {name: "best" if drop > -1e-9 else f"{drop:.2f}" for name, drop in drops.items()}
        line = [label, images[label], f"{best[label]:.2f}"]
        body.append(line + [cells.get(name) for name in together])
    return table(["bin", "images", "top1", *together], body)
