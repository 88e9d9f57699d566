"""Results in words: lines for the terminal and Markdown tables."""

import math
from collections.abc import Sequence
from pathlib import Path

from cape_plugins.fairseq.evaluation.checkpoints import Source
from cape_plugins.fairseq.evaluation.losses import PositionLosses, ranges
from cape_plugins.fairseq.evaluation.results import BleuRow
from cape_plugins.results import table


def bleu_line(row: BleuRow) -> str:
    """A row for the terminal."""
    return (
        f"{row.model} · {Path(row.checkpoint).name} · {row.subset} · BLEU {row.bleu:.2f} · "
        f"sacreBLEU {row.sacrebleu:.2f} · {row.sentences} sentences"
    )


def bleu_table(tested: Sequence[tuple[BleuRow | None, BleuRow]], valid: str) -> str:
    """One line a model.

    Args:
        tested: rows of the validation set, None where there was no choice, and of the test set.
        valid: name of the validation set.
    """
    first = tested[0][1]
    header = ["model", "checkpoint", "epoch", "updates"]
    header += [f"BLEU {valid}", f"BLEU {first.subset}", "sacreBLEU", "sentences"]
    body = []
    for validated, row in tested:
        body.append(
            [
                *(row.model, Path(row.checkpoint).name, row.epoch, row.updates),
                f"{validated.bleu:.2f}" if validated else "",
                *(f"{row.bleu:.2f}", f"{row.sacrebleu:.2f}", row.sentences),
            ]
        )
    notes = [
        f"BLEU: tokenised, multi-bleu's formula. Beam {first.beam}, length penalty "
        f"{first.lenpen:g}, {first.precision}.",
        f"sacreBLEU: {first.signature}.",
    ]
    if first.reference == "detokenised":
        notes.append(
            "**sacreBLEU is against detokenised references** (no --reference was given): do not "
            "compare it with published numbers."
        )
    return table(header, body) + "\n" + "\n".join(notes) + "\n"


def loss_table(
    scored: Sequence[tuple[Source, PositionLosses]], subset: str, edges: Sequence[int]
) -> str:
    """One line a model.

    Args:
        scored: losses of each.
        subset: name of the test set.
        edges: last positions of ranges, which become columns.
    """
    longest = max(len(found.sums) for _, found in scored)
    spans = ranges(edges, longest)
    if len(spans) == 1:
        spans = []
    header = ["model", "checkpoint", "tokens", "loss", "perplexity"]
    header += [f"{first}–{last}" for first, last in spans]
    body = []
    for source, found in scored:
        mean = found.mean()
        means = [found.mean(first, last) for first, last in spans]
        row = [source.name, source.candidates[0].name, found.tokens()]
        row += [f"{mean:.4f}", f"{math.exp(mean):.3f}"]
        row += ["" if value is None else f"{value:.3f}" for value in means]
        body.append(row)
    note = (
        f"Mean negative log loss of {subset} in nats per token, EOS included, and by position in "
        "the target; perplexity is its exponential.\n"
    )
    return table(header, body) + "\n" + note
