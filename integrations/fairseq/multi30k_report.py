"""Tables, figure and CSV of the study on Multi30k."""

import csv
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tabulate import tabulate

from cape_plugins.evaluation.fairseq import positions_curve

COLUMNS = ("variant", "seed", "metric", "value", "train_seconds")


def report(
    runs: Sequence[Any], tests: Sequence[Any], data: Path, edges: list[int], out: Path
) -> None:
    """Print the tables; write results.csv, results.md and results.png into ``out``.

    Args:
        runs: trainings, with ``variant``, ``seed``, ``folder`` and ``record``.
        tests: ways of testing, with ``name``, ``command`` and ``rows(run)``.
        data: from prepare_multi30k.py; tells the longest target of the training.
        edges: last positions of the ranges in the table.
        out: folder.
    """
    longest = longest_target(data / "bpe" / "train.de")
    scores = [
        {"variant": run.variant, "seed": run.seed, "train_seconds": trained_seconds(run), **score}
        for run in runs
        for test in tests
        if test.rows(run).exists()
        for score in read(test, test.rows(run), edges)
    ]
    if not scores:
        raise SystemExit(f"nothing has been tested in {out}: run train and evaluate first")
    with (out / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(scores)
    parts = [
        f"Longest target in training: {longest} tokens with EOS. Mean ± half the range over seeds.",
        "BLEU of single captions (tokenised and sacreBLEU) and of stacked ones (tokenised):",
        table(scores, [name for name in metrics(scores) if "BLEU" in name]),
        "Negative log loss (nats per token) of single captions, and of stacked ones by position:",
        table(scores, [name for name in metrics(scores) if "BLEU" not in name]),
    ]
    text = "\n\n".join(parts)
    (out / "results.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    curves = [
        test.rows(run)
        for test in tests
        for run in runs
        if test.command == "loss" and test.stacked and test.rows(run).exists()
    ]
    if curves:
        stacks = max(series.sentences[0] for series in positions_curve.read(curves))
        positions_curve.draw(
            positions_curve.PositionOptions(
                csv=curves,
                out=out / "results.png",
                min_sentences=min(10, stacks),
                trained_to=longest,
                title="Multi30k en-de, stacked captions",
            )
        )


def longest_target(path: Path) -> int:
    """Tokens of the longest line, EOS included."""
    with path.open(encoding="utf-8") as file:
        return max(len(line.split()) for line in file) + 1


def trained_seconds(run: Any) -> float:
    """Wall time of the training."""
    return json.loads(run.record.read_text())["seconds"]


def read(test: Any, path: Path, edges: Sequence[int]) -> list[dict[str, Any]]:
    """What the report shows of one CSV: rows with ``metric`` and ``value``."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if test.command == "bleu":
        (row,) = rows
        if test.stacked:
            return [{"metric": "stacked BLEU", "value": float(row["bleu"])}]
        return [
            {"metric": "BLEU", "value": float(row["bleu"])},
            {"metric": "sacreBLEU", "value": float(row["sacrebleu"])},
        ]
    by_position = [(int(r["position"]), float(r["loss"]), int(r["sentences"])) for r in rows]
    if not test.stacked:
        return [{"metric": "single", "value": mean(by_position, 0, by_position[-1][0])}]
    return [
        {"metric": f"{low + 1}–{high}", "value": mean(by_position, low, high)}
        for low, high in pairwise([0, *edges])
        if high <= by_position[-1][0]
    ]


def mean(by_position: Sequence[tuple[int, float, int]], low: int, high: int) -> float:
    """Over all tokens of positions ``low`` + 1 to ``high``, each counted once."""
    chosen = [(loss * n, n) for position, loss, n in by_position if low < position <= high]
    return sum(total for total, _ in chosen) / sum(n for _, n in chosen)


def metrics(scores: Sequence[dict[str, Any]]) -> list[str]:
    """Names of metrics, in the order of the first run."""
    return list(dict.fromkeys(score["metric"] for score in scores))


def table(scores: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """Markdown: variants down, metrics across."""
    body = []
    for variant in dict.fromkeys(score["variant"] for score in scores):
        own = [score for score in scores if score["variant"] == variant]
        seeds = len({score["seed"] for score in own})
        values = [[score["value"] for score in own if score["metric"] == n] for n in names]
        digits = [1 if "BLEU" in name else 3 for name in names]
        body.append([variant, seeds, *map(cell, values, digits)])
    return tabulate(body, ["", "seeds", *names], tablefmt="github", disable_numparse=True)


def cell(values: Sequence[float], digits: int) -> str:
    """Mean ± half the range; a single value alone."""
    if not values:
        return ""
    text = f"{sum(values) / len(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ± {(max(values) - min(values)) / 2:.{digits}f}"
