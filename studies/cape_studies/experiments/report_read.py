"""Until the statistics move: see results.py."""

from cape_studies.results import NO_ITEMS, PARTS, TRAININGS, Result

__all__ = ["NO_ITEMS", "PARTS", "TRAININGS", "Result"]
