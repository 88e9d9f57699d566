"""The device that models are evaluated on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cape_studies.evaluation.command import said


def open_device(name: str | None) -> torch.device:
    """The device of ``--device``; without a name the GPU, else the CPU.

    Raises:
        ValueError: it cannot be used here.
    """
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # which device 'meta' cannot do
    except (RuntimeError, AssertionError) as error:  # the latter: torch without CUDA
        raise ValueError(f"--device {name} cannot be used: {said(error)}") from error
    return device


def synchronise(device: torch.device) -> None:
    """Wait until the device has done its work."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


@contextmanager
def memory_errors(advice: str) -> Iterator[None]:
    """Raise ValueError with the advice where the memory is too small."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        full = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not full and "allocate memory" not in str(error):  # as the CPU's allocator says it
            raise
        raise ValueError(f"out of memory ({said(error)[:200]}): {advice}") from error
