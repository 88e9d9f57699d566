"""A host of another package, tests/support/cape_tinygpt.py: its entry point, and the checks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cape_tinygpt
from cape_plugins import autoload, inside, testing
from cape_support import ROOT

POINTS = "[cape_plugins.hosts]\ntinygpt = {}\nnobody.models = cape_nobody\n"


@pytest.mark.parametrize("check", inside.CHECKS)
@pytest.mark.parametrize("pos", ["abspos", "cape", "relpos_first", "random_rope", "cape_alibi"])
def test_what_every_variant_does_is_checked_inside_it(monkeypatch, check, pos):
    monkeypatch.setattr(autoload, "hosts", lambda: {"cape_tinygpt": ["tinygpt"]})
    assert inside.kinds(axes=1) == [*cape_tinygpt.KINDS]
    check(pos, 1)


def test_a_variant_that_does_not_fit_is_named_with_the_host(monkeypatch):
    monkeypatch.setattr(autoload, "hosts", lambda: {"cape_tinygpt": ["tinygpt"]})
    monkeypatch.setattr(testing.Kept, "__call__", lambda self, key, value: (2 * key, value))
    with pytest.raises(AssertionError, match="rope in tinygpt: in steps"):
        next(one for one in inside.CHECKS if one.__name__ == "check_host_ways")("rope", 1)


@pytest.fixture
def python(tmp_path: Path):
    """Runs code where cape_tinygpt is an installed package; returns what it prints."""

    def run(code: str, points: str, **environment: str) -> str:
        about = tmp_path / "cape_tinygpt-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Name: cape-tinygpt\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(points)
        path = [str(tmp_path), str(ROOT / "tests" / "support"), str(ROOT)]
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        return ran.stdout + ran.stderr

    return run


@pytest.mark.parametrize("first", ["import torch, tinygpt", "import tinygpt"])
def test_it_registers_as_soon_as_its_host_is_imported(python, first):
    told = python(f"{first}\nprint(*tinygpt.MODELS)", POINTS.format("cape_tinygpt"))
    assert "gpt cape_gpt" in told
    assert "cape_plugins" not in told


def test_one_that_fails_costs_one_warning(python):
    told = python("import tinygpt; print(*tinygpt.MODELS)", POINTS.format("cape_gone"))
    assert told.startswith("gpt\n")
    assert told.count("cape_gone could not register with tinygpt") == 1


def test_env_lists_it(python):
    code = """
from cape_plugins import autoload, env
for ours in [name for name in autoload.hosts() if name.startswith("cape_plugins.")]:
    del autoload.hosts()[ours]
env.main([])
"""
    lines = python(code, POINTS.format("cape_tinygpt")).splitlines()
    assert "tinygpt: registered with by cape_tinygpt" in lines
    assert any(line.startswith("nobody: not installed") for line in lines)
