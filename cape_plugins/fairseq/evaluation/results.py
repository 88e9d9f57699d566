"""What an evaluation found: the rows of its CSVs."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cape_plugins.results import written


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


# what a translation depends on; with all of it alike a row is taken from an interrupted run
_SAME = (
    *("checkpoint", "data", "subset", "beam", "lenpen", "max_len_a", "max_len_b"),
    *("precision", "post_process", "detokenizer", "reference", "modified"),
)


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
        if all(written(getattr(row, key)) == written(wanted[key]) for key in _SAME):
            return row
    return None


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
