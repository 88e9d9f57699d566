"""What only a GPU tells: ``pytest -m gpu``, or ``CAPE_DEVICE=cpu pytest -m gpu`` for a dry run.

On a CPU float32 stands against float64 of the same CPU, which shows that the tests run.
"""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

DEVICE = os.environ.get("CAPE_DEVICE", "cuda")


def pytest_collection_modifyitems(items):
    missing = DEVICE == "cuda" and not torch.cuda.is_available()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if missing:
                item.add_marker(pytest.mark.skip(reason="torch sees no GPU here"))
            elif "cuda" in item.fixturenames and DEVICE != "cuda":
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture
def device() -> str:
    """The device whose results are compared with the CPU's."""
    return DEVICE


@pytest.fixture
def cuda() -> str:
    """A GPU, for what a CPU does not have: graphs, streams."""
    return "cuda"


@pytest.fixture(autouse=True)
def exact_float32():
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = False
    torch.manual_seed(0)
    yield
    for backend, allowed in zip(backends, before, strict=True):
        backend.allow_tf32 = allowed


@pytest.fixture
def assert_near():
    """That the norm of a difference is at most so much of the norm of what is wanted."""

    def check(found: Tensor, wanted: Tensor, most: float) -> None:
        found, wanted = found.detach().double().cpu(), wanted.detach().double().cpu()
        error = float((found - wanted).norm() / wanted.norm().clamp(min=1e-30))
        assert error <= most, f"{error:.2g} > {most:.2g}"

    return check
