"""Checks of numbers, and of the values of tensors where no device must be waited for."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def check_positive(name: str, value: Any, *, unit: str = "") -> None:
    """Raise ValueError unless the value is finite and > 0."""
    if not (is_number(value) and value > 0):
        raise ValueError(f"{name} must be finite and > 0{unit}, got {value!r}")


def is_number(value: Any) -> bool:
    """Whether a setting is a finite real number."""
    # not `float | int`: Dynamo of torch 2.5 cannot trace a union
    is_real = isinstance(value, (float, int)) and not isinstance(value, bool)
    return is_real and -math.inf < value < math.inf


def check_values(values: Tensor, ok: Callable[[], Tensor], rule: str) -> None:
    """Raise ValueError unless all values keep a rule.

    On CUDA the check does not wait for the device. There a broken rule ends the process with
    "device-side assert triggered", at a later call, as every error on a GPU does;
    ``CUDA_LAUNCH_BLOCKING=1`` shows the call. Code that is compiled, traced or transformed by
    torch.func is not checked.

    ``ok`` makes a bool tensor in the values' shape, True where they keep the ``rule``, which says
    in words what is allowed.
    """
    if can_look_at(values) and not bool((kept := ok()).all()):
        where = (~kept).nonzero()[0].tolist()
        raise ValueError(f"{rule}, got {values[tuple(where)].item():g} at index {where}")
    if values.device.type == "cuda" and _is_eager(values):
        torch._assert_async(ok().all(), rule)


def can_look_at(tensor: Tensor) -> bool:
    """Whether a check may read values: eager on the CPU, where no device must be waited for."""
    return tensor.device.type == "cpu" and _is_eager(tensor)


def _is_eager(tensor: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # vmap, grad, …
        return False
    return type(tensor) is Tensor  # no FakeTensor, no proxy


def check_positions(positions: Tensor) -> None:
    """Raise ValueError for infinite positions; on CUDA the process ends: :func:`check_values`."""
    rule = "positions must be finite, or NaN for padding"
    check_values(positions, lambda: ~positions.isinf(), rule)
