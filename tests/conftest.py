"""Fixtures of the core's tests."""

import runpy

import pytest

from cape_plugins import variants
from cape_support import EIGHT, ROOT


@pytest.fixture
def own_table(monkeypatch):
    """A table of variants for one test, which may register in it; no host is told."""
    variants.names(axes=1)  # packages are loaded
    monkeypatch.setattr(variants, "TABLE", {axes: {**of} for axes, of in variants.TABLE.items()})
    monkeypatch.setattr(variants, "_LATER", [])


@pytest.fixture
def eight(own_table):
    """Eight encodings of the literature, T5's buckets twice: cape-more's and five of tests."""
    for path in ("examples/cape-more/cape_more.py", "tests/support/five_variants.py"):
        runpy.run_path(str(ROOT / path), run_name=path.split("/")[-1].removesuffix(".py"))
    return EIGHT
