"""Checkpoints written before issue 12's rebuild load by their host's own loader, outputs equal.

``tests/fixtures/make.py`` made them, with what the models of their day made of a fixed input.
"""

import importlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest

FIXTURES = Path(__file__).parent / "fixtures"
spec = importlib.util.spec_from_file_location("make_fixtures", FIXTURES / "make.py")
assert spec is not None
assert spec.loader is not None
fixtures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fixtures)


def check(host: str, name: str) -> None:
    pytest.importorskip("espnet2" if host == "espnet" else host)
    importlib.import_module(f"cape_plugins.{host}")  # registers, also without autoload
    outputs = getattr(fixtures, f"outputs_of_{host}")(name)
    with np.load(FIXTURES / f"{host}/{name}.npz") as kept:
        assert outputs.keys() == set(kept)
        for key, expected in kept.items():
            assert np.isfinite(expected).all()
            assert expected.std() > 0.01
            np.testing.assert_allclose(outputs[key], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", fixtures.TIMM)
def test_timm_create_model_takes_an_old_checkpoint(name):
    check("timm", name)


@pytest.mark.parametrize("name", fixtures.FAIRSEQ)
def test_fairseqs_load_model_ensemble_takes_an_old_checkpoint(name):
    check("fairseq", name)


@pytest.mark.parametrize("name", fixtures.ESPNET)
def test_espnets_build_model_from_file_takes_an_old_checkpoint(name):
    check("espnet", name)
