"""Fixtures of the core's tests."""

import pytest

from cape_plugins import fused, variants


@pytest.fixture(params=[True, False], ids=["fused", "plain"])
def both_ways(request, monkeypatch) -> bool:
    """With what is there for speed alone, and without."""
    monkeypatch.setattr(fused.guard, "ON", request.param)
    return request.param


@pytest.fixture
def own_table(monkeypatch):
    """A table of variants for one test, which may register in it."""
    variants.load_packages()
    monkeypatch.setattr(variants, "TABLE", {axes: {**of} for axes, of in variants.TABLE.items()})
