"""Table, figure and CSV of the study on spoken digits."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from cape_plugins.evaluation import figure

COLUMNS = (
    *("variant", "seed", "test_set", "bin", "utterances", "words"),
    *("wer", "substitutions", "deletions", "insertions", "train_seconds"),
)
TRAINED_ON = "test_3-6"


@dataclass(frozen=True)
class Scores:
    """Where one tested model's scores are.

    Attributes:
        variant: its name in the report.
        seed: of its training.
        path: the CSV of cape_plugins.evaluation.espnet.
        record: what the training left, with its time.
    """

    variant: str
    seed: int
    path: Path
    record: Path


def report(scores: Sequence[Scores], tests: dict[str, tuple[int, int]], out: Path) -> None:
    """Print the table; write results.csv, results.md and results.png into ``out``.

    Args:
        scores: of every tested model.
        tests: test set → fewest and most digits of an utterance.
        out: folder to write.
    """
    if not scores:
        raise SystemExit(f"nothing has been tested in {out}: run train and evaluate first")
    rows = [row for found in scores for row in read(found)]
    with (out / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    text = table(rows, tests)
    (out / "results.md").write_text(text + "\n", encoding="utf-8")
    draw(rows, tests, out / "results.png")
    print(text)


def read(scores: Scores) -> list[dict[str, object]]:
    """One row for each test set, and for each of its bins of durations."""
    seconds = json.loads(scores.record.read_text())["seconds"]
    with scores.path.open(encoding="utf-8") as file:
        return [
            {
                **{name: row[name] for name in COLUMNS if name in row},
                "wer": float(row["wer"]) if row["wer"] else None,  # a bin may be empty
                "variant": scores.variant,
                "seed": scores.seed,
                "train_seconds": seconds,
            }
            for row in csv.DictReader(file)
        ]


def by_test(rows: Sequence[dict[str, object]], variant: str) -> dict[str, list[float]]:
    """Test set → WER of every seed."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["variant"] == variant and row["bin"] == "all":
            found.setdefault(str(row["test_set"]), []).append(row["wer"])
    return found


def table(rows: Sequence[dict[str, object]], tests: dict[str, tuple[int, int]]) -> str:
    """Markdown: variants down, test sets across, mean ± half the range over seeds."""
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    body = []
    for variant in variants:
        found = by_test(rows, variant)
        seeds = len({row["seed"] for row in rows if row["variant"] == variant})
        body.append([variant, seeds, *(cell(found.get(test, [])) for test in tests)])
    head = [
        f"**{low}–{high} digits**" if test == TRAINED_ON else f"{low}–{high} digits"
        for test, (low, high) in tests.items()
    ]
    return tabulate(body, ["WER (%)", "seeds", *head], tablefmt="github", disable_numparse=True)


def cell(values: Sequence[float]) -> str:
    """Mean ± half the range; a single value alone."""
    if not values:
        return ""
    mean = f"{sum(values) / len(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {(max(values) - min(values)) / 2:.1f}"


def draw(rows: Sequence[dict[str, object]], tests: dict[str, tuple[int, int]], path: Path) -> None:
    """WER against length, a line per variant; the range over seeds is shaded."""
    names = list(tests)
    x_label = "digits of an utterance in testing; grey: as in training"
    with figure.axes(path, x_label, "WER (%)") as (axes,):
        if TRAINED_ON in tests:
            place = names.index(TRAINED_ON)
            axes.axvspan(place - 0.3, place + 0.3, color="0.9", zorder=0)
        for variant in dict.fromkeys(row["variant"] for row in rows):
            found = by_test(rows, variant)
            at = [place for place, test in enumerate(names) if test in found]
            figure.line(axes, at, [found[names[place]] for place in at], variant, marker="o", ms=4)
        axes.set_xticks(range(len(names)), [f"{low}–{high}" for low, high in tests.values()])
        axes.set_ylim(bottom=0)
