"""The device that models are evaluated on."""

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
