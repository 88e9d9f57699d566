"""What an evaluation found: the rows of its CSV and of its Markdown tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cape_plugins.evaluation.espnet import scoring
from cape_plugins.evaluation.table import rows_table, table

#: Columns that tell a score from the others of its model.
TOLD = ("test_set", "segment", "hop_ms", "bin")


@dataclass
class Row:
    """One model on one test set under one condition, or a duration bin of that.

    Attributes:
        model: its name.
        checkpoint: the .pth file.
        test_set: its name.
        segment: longest piece in seconds; empty where utterances are whole.
        hop_ms: hop of the sweep in milliseconds; empty: the model's own.
        bin: of the utterances' durations in seconds; ``all`` is the whole test set.
        utterances: how many were scored.
        pieces: into which they were cut; as many without ``segment``.
        too_short: pieces without a single frame; nothing is recognised in them.
        seconds: of audio.
        words: of the references.
        wer: word errors in percent of the words; empty if there are none.
        substitutions, deletions, insertions: word errors.
        characters: of the references, with the spaces between words.
        cer: character errors in percent.
        decode_seconds: of computing, without reading; only for ``all``.
        throughput: seconds of audio per second of computing; only if asked for.
    """

    model: str
    checkpoint: str
    test_set: str
    segment: float | None = None
    hop_ms: float | None = None
    bin: str = "all"
    utterances: int = 0
    pieces: int = 0
    too_short: int = 0
    seconds: float = 0.0
    words: int = 0
    wer: float | None = None
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    characters: int = 0
    cer: float | None = None
    decode_seconds: float | None = None
    throughput: float | None = None


class Text(NamedTuple):
    """What was said in an utterance, and what was recognised."""

    utterance: str
    reference: str
    hypothesis: str


def counted(row: Row, bin: str, texts: Sequence[Text]) -> Row:
    """The row of a bin, with the errors in these of the utterances."""
    _, references, hypotheses = zip(*texts, strict=True)
    words = scoring.word_errors(references, hypotheses)
    characters = scoring.character_errors(references, hypotheses)
    return replace(
        row,
        bin=bin,
        utterances=len(references),
        words=words.units,
        wer=words.rate,
        substitutions=words.substitutions,
        deletions=words.deletions,
        insertions=words.insertions,
        characters=characters.units,
        cer=characters.rate,
    )


def items(texts: Sequence[Text]) -> Iterator[tuple[str, str, int, int]]:
    """Errors and length of every utterance, in words and in characters."""
    kinds = {"wer": scoring.word_errors, "cer": scoring.character_errors}
    for metric, errors in kinds.items():
        for utterance, reference, hypothesis in texts:
            found = errors([reference], [hypothesis])
            yield metric, utterance, found.edits, found.units


def line(row: Row) -> str:
    """The row in words, for the terminal."""
    parts = [row.model, row.test_set]
    if row.segment is not None:
        parts.append(f"pieces of {row.segment:g} s")
    if row.hop_ms is not None:
        parts.append(f"hop {row.hop_ms:g} ms")
    parts.append("all" if row.bin == "all" else f"{row.bin} s")
    parts.append(f"WER {percent(row.wer)} CER {percent(row.cer)}")
    parts.append(f"{row.utterances} utterances, {row.seconds:.0f} s")
    if row.throughput is not None:
        parts.append(f"{row.throughput:.1f} s of audio per second")
    return " · ".join(parts)


def markdown(rows: Sequence[Row]) -> str:
    """WER of the models side by side, then all that was counted."""
    if not rows:
        return ""
    cut = any(row.segment is not None for row in rows)

    def length(segment: float | None) -> str:
        return "whole" if cut and segment is None else _number(segment)

    several_bins = any(row.bin != "all" for row in rows)
    scores = list(dict.fromkeys((row.test_set, row.bin) for row in rows))
    lines: dict[tuple[str, float | None, float | None], dict[tuple[str, str], str]] = {}
    for row in rows:
        cells = lines.setdefault((row.model, row.segment, row.hop_ms), {})
        cells[row.test_set, row.bin] = percent(row.wer)
    body = [
        [model, length(segment), _number(hop), *(cells.get(score, "") for score in scores)]
        for (model, segment, hop), cells in lines.items()
    ]
    names = [f"{name}, {label}" if several_bins else name for name, label in scores]
    first = table(["model", "segment (s)", "hop (ms)", *names], body)

    hidden = [] if cut else ["pieces"]
    hidden += [] if any(row.too_short for row in rows) else ["too_short"]
    return f"WER (%)\n\n{first}\n{rows_table(rows, hidden)}"


def percent(rate: float | None) -> str:
    """A percentage; ``–`` if there is none."""
    return "–" if rate is None else f"{rate:.2f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
