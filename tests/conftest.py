"""Fixtures of the core's tests."""

import pytest

from cape_plugins import fused


@pytest.fixture(params=[True, False], ids=["fused", "plain"])
def both_ways(request, monkeypatch) -> bool:
    """With what is there for speed alone, and without."""
    monkeypatch.setattr(fused.guard, "ON", request.param)
    return request.param
