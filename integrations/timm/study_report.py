"""Table, figure and CSV of the study on CIFAR-10."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from cape_plugins.evaluation import figure

COLUMNS = ("train_sizes", "variant", "seed", "test_size", "top1", "images", "train_seconds")


@dataclass(frozen=True)
class Scores:
    """Where one tested model's scores are.

    Attributes:
        variant: its name in the report.
        sizes: the name of the sizes that it was trained at.
        seed: of its training.
        path: the CSV of cape_plugins.evaluation.timm.
    """

    variant: str
    sizes: str
    seed: int
    path: Path


def report(scores: Sequence[Scores], train_img_sizes: dict[str, list[int]], out: Path) -> None:
    """Print the table; write results.csv, results.md and results.png into ``out``."""
    if not scores:
        raise SystemExit(f"nothing has been tested in {out}: run train and evaluate first")
    rows = [row for found in scores for row in read(found)]
    with (out / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    text = "\n\n".join(
        table([row for row in rows if row["train_sizes"] == name], name, sizes)
        for name, sizes in train_img_sizes.items()
        if any(row["train_sizes"] == name for row in rows)
    )
    (out / "results.md").write_text(text + "\n")
    draw(rows, train_img_sizes, out / "results.png")
    print(text)


def read(scores: Scores) -> list[dict[str, object]]:
    """One row for each size that a model was tested at."""
    seconds = json.loads((scores.path.parent / "trained.json").read_text())["seconds"]
    with scores.path.open() as file:
        return [
            {
                "train_sizes": scores.sizes,
                "variant": scores.variant,
                "seed": scores.seed,
                "test_size": int(row["resolution"]),
                "top1": float(row["top1"]),
                "images": int(row["images"]),
                "train_seconds": seconds,
            }
            for row in csv.DictReader(file)
        ]


def by_size(rows: Sequence[dict[str, object]], variant: str) -> dict[int, list[float]]:
    """Test size → top-1 accuracy of every seed."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row["variant"] == variant:
            found.setdefault(row["test_size"], []).append(row["top1"])
    return found


def table(rows: Sequence[dict[str, object]], name: str, trained_at: Sequence[int]) -> str:
    """Markdown: variants down, test sizes across, mean ± half the range over seeds."""
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    sizes = sorted({row["test_size"] for row in rows})
    body = []
    for variant in variants:
        found = by_size(rows, variant)
        seeds = len({row["seed"] for row in rows if row["variant"] == variant})
        body.append([variant, seeds, *(cell(found.get(size, [])) for size in sizes)])
    head = [f"**{size}**" if size in trained_at else str(size) for size in sizes]
    title = f"Trained at {', '.join(map(str, trained_at))} ({name}):"
    return f"{title}\n\n" + tabulate(
        body, ["top-1 (%)", "seeds", *head], tablefmt="github", disable_numparse=True
    )


def cell(values: Sequence[float]) -> str:
    """Mean ± half the range; a single value alone."""
    if not values:
        return ""
    mean = f"{sum(values) / len(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {(max(values) - min(values)) / 2:.1f}"


def draw(
    rows: Sequence[dict[str, object]], train_img_sizes: dict[str, list[int]], path: Path
) -> None:
    """Accuracy against test size: a panel for each set of training sizes, a line per variant."""
    names = [name for name in train_img_sizes if any(row["train_sizes"] == name for row in rows)]
    titles = [f"trained at {', '.join(map(str, train_img_sizes[name]))}" for name in names]
    labels = "image side in testing (pixels)", "top-1 accuracy (%)"
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    with figure.axes(path, *labels, titles, size=(1.4, 4.8)) as panels:
        for axes, name in zip(panels, names, strict=True):
            panel = [row for row in rows if row["train_sizes"] == name]
            trained_at = train_img_sizes[name]
            axes.axvspan(min(trained_at) - 1, max(trained_at) + 1, color="0.9", zorder=0)
            for index, variant in enumerate(variants):
                found = dict(sorted(by_size(panel, variant).items()))
                style = dict(color=f"C{index}", marker="o", ms=3.5)
                figure.line(axes, list(found), list(found.values()), variant, **style)
            axes.set_xscale("log", base=2)
            ticks = sorted({row["test_size"] for row in panel})
            axes.set_xticks(ticks, [str(size) for size in ticks])
            axes.minorticks_off()
