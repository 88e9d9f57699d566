"""A variant that only the tests have, for every encoder."""

import pytest
import torch

from cape_plugins import variants
from cape_plugins.attention import PositionalAttention


class ScoresBySeconds(PositionalAttention):
    """Each head prefers keys that are near in time."""

    def __init__(self, settings):
        super().__init__()
        self.slopes = torch.arange(1.0, settings.heads + 1)

    def logits(self, query, keys, positions=None):
        distances = (positions[:, None, :] - positions[:, :, None]).abs().nan_to_num()
        return -self.slopes[:, None, None] * distances[:, None]


@pytest.fixture
def new_variant(monkeypatch):
    """Its name, in the table for one test."""
    row = variants.Variant(number=99, adds="nothing", attention=ScoresBySeconds, axes=(1,))
    monkeypatch.setitem(variants.VARIANTS, "by_seconds", row)
    return "by_seconds"
