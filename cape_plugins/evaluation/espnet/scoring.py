"""Counting errors with jiwer, by duration."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import jiwer


@dataclass(frozen=True)
class Errors:
    """Edits that turn references into hypotheses.

    Attributes:
        units: words, or characters (spaces count), of the references.
        substitutions, deletions, insertions: edits.
    """

    units: int
    substitutions: int
    deletions: int
    insertions: int

    @property
    def edits(self) -> int:
        """All of them."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float | None:
        """Edits per 100 units of the references, None where there is no unit."""
        return 100 * self.edits / self.units if self.units else None


def word_errors(references: Sequence[str], hypotheses: Sequence[str]) -> Errors:
    """Words are what spaces separate."""
    return _errors(jiwer.process_words(list(references), list(hypotheses)))


def character_errors(references: Sequence[str], hypotheses: Sequence[str]) -> Errors:
    """Spaces between words count as characters."""
    return _errors(jiwer.process_characters(list(references), list(hypotheses)))


def _errors(found: jiwer.WordOutput | jiwer.CharacterOutput) -> Errors:
    edits = found.substitutions, found.deletions, found.insertions
    return Errors(found.hits + found.substitutions + found.deletions, *edits)


def check_edges(edges: Sequence[float]) -> None:
    """Raise ValueError unless edges of bins are seconds > 0 that increase."""
    if any(not a < b for a, b in itertools.pairwise([0.0, *edges, math.inf])):
        shown = " ".join(f"{edge:g}" for edge in edges)
        raise ValueError(f"--bins must be seconds > 0 that increase, got {shown}")


def labels(edges: Sequence[float]) -> list[str]:
    """Names of the bins: ``<10``, ``10-15``, ``>=20``; none without edges."""
    if not edges:
        return []
    between = [f"{a:g}-{b:g}" for a, b in itertools.pairwise(edges)]
    return [f"<{edges[0]:g}", *between, f">={edges[-1]:g}"]


def bin_of(seconds: float, edges: Sequence[float]) -> int:
    """The bin of a duration; an edge belongs to the bin above it."""
    return sum(seconds >= edge for edge in edges)
