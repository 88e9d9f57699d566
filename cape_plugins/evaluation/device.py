"""The device and the precision that models are evaluated in."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from cape_plugins.evaluation.command import said


@dataclass(frozen=True)
class Runtime:
    """Where and how models run; each host adds how it makes batches.

    Attributes:
        device: of the model.
        amp_dtype: of autocast, None without.
    """

    device: torch.device
    amp_dtype: torch.dtype | None = None

    def autocast(self) -> AbstractContextManager[Any]:
        """The context that models run in."""
        if self.amp_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.amp_dtype)


def default_device() -> str:
    """``cuda`` where there is a GPU, else ``cpu``."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def open_device(name: str | None) -> torch.device:
    """The device of ``--device``; see :func:`default_device`.

    Raises:
        ValueError: it cannot be used here.
    """
    name = name or default_device()
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # which device 'meta' cannot do
    except (RuntimeError, AssertionError) as error:  # the latter: torch without CUDA
        raise ValueError(f"--device {name} cannot be used: {said(error)}") from error
    return device


def synchronise(device: torch.device) -> None:
    """Wait until the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type != "cpu":
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
