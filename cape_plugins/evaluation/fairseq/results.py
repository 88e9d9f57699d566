"""What an evaluation found: the rows of its CSVs, and Markdown tables."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from cape_plugins.evaluation.fairseq.checkpoints import Source
from cape_plugins.evaluation.fairseq.losses import PositionLosses, ranges
from cape_plugins.evaluation.output import matching, read_begun
from cape_plugins.evaluation.table import table


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
        valid_bleu: on the validation set, of a checkpoint that was chosen by it; else empty.
        attention_logn: N_train of the test, 0 for off; empty: as trained.
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
    valid_bleu: float | None = None
    attention_logn: int | None = None


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


def read_bleu(path: Path | None) -> list[BleuRow]:
    """Rows that an interrupted run wrote; none where there is no file yet.

    Raises:
        ValueError: the file was not written by ``cape-fairseq-eval bleu``.
    """
    return read_begun(path, BleuRow, "this cape-fairseq-eval bleu")


def find(rows: Sequence[BleuRow], wanted: Mapping[str, Any]) -> BleuRow | None:
    """The row with the same checkpoint, data and search, if there is one."""
    return next(iter(matching(rows, wanted)), None)


def bleu_line(row: BleuRow) -> str:
    """A row for the terminal."""
    return (
        f"{row.model} · {Path(row.checkpoint).name} · {row.subset} · BLEU {row.bleu:.2f} · "
        f"sacreBLEU {row.sacrebleu:.2f} · {row.sentences} sentences"
    )


def bleu_table(tested: Sequence[tuple[BleuRow | None, BleuRow]], valid: str) -> str:
    """One line a model, and one of mean ± standard deviation for models of the same name.

    Args:
        tested: rows of the validation set, None where there was no choice, and of the test set.
        valid: name of the validation set.
    """
    first = tested[0][1]
    header = ["model", "checkpoint", "epoch", "updates"]
    header += [f"BLEU {valid}", f"BLEU {first.subset}", "sacreBLEU", "sentences"]
    body = [
        [
            *(row.model, Path(row.checkpoint).name, row.epoch, row.updates),
            f"{validated.bleu:.2f}" if validated else "",
            *(f"{row.bleu:.2f}", f"{row.sacrebleu:.2f}", row.sentences),
        ]
        for validated, row in tested
    ]
    for name in dict.fromkeys(row.model for _, row in tested):
        seeds = [(validated, row) for validated, row in tested if row.model == name]
        if len(seeds) > 1:
            chosen = [validated.bleu for validated, _ in seeds if validated]
            scores = [row.bleu for _, row in seeds], [row.sacrebleu for _, row in seeds]
            spreads = [_mean_std(values) for values in (chosen, *scores)]
            body.append([name, f"mean ± std of {len(seeds)}", None, None, *spreads, None])
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


def _mean_std(values: Sequence[float]) -> str:
    """Over seeds, the standard deviation that of a sample."""
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else ""


def loss_table(
    scored: Sequence[tuple[Source, PositionLosses]], subset: str, edges: Sequence[int]
) -> str:
    """One line a model.

    Args:
        scored: losses of each.
        subset: name of the test set.
        edges: last positions of ranges, which become columns.
    """
    spans = ranges(edges, max(len(found.sums) for _, found in scored))
    spans = spans if len(spans) > 1 else []
    header = ["model", "checkpoint", "tokens", "loss", "perplexity"]
    header += [f"{first}–{last}" for first, last in spans]
    body = []
    for source, found in scored:
        mean = found.mean() or 0.0
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
