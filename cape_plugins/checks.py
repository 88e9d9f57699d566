"""Checks of numbers, and of tensors' values without waiting for a device."""

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


def check_positive(name: str, value: Any, *, unit: str = "") -> None:
    """Raise ValueError unless the value is finite and > 0."""
    if not (is_number(value) and value > 0):
        raise ValueError(f"{name} must be finite and > 0{unit}, got {value!r}")


def check_count(name: str, value: Any, *, least: int = 1) -> None:
    """Raise ValueError unless the value is an integer ≥ ``least``.

    Compiled or traced code is not checked, because sizes may be symbols there.
    """
    if is_traced():
        return
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        raise ValueError(f"{name} must be an integer ≥ {least}, got {value!r}")


def is_number(value: Any) -> bool:
    """Whether a setting is a finite real number; those of NumPy are."""
    # no union: Dynamo of torch 2.5 cannot trace one
    is_real = isinstance(value, (float, int, Real))
    return is_real and not isinstance(value, bool) and -math.inf < value < math.inf


def check_switch(name: str, value: Any) -> None:
    """Raise ValueError unless the value is True or False: ``"off"`` would count as on."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def check_values(values: Tensor, ok: Callable[[], Tensor], rule: str) -> None:
    """Check a tensor's values against a rule.

    On CUDA the check does not wait for the device. There a broken rule ends the process with
    "device-side assert triggered" at a later call, as every error on a GPU does;
    ``CUDA_LAUNCH_BLOCKING=1`` shows the call. Code that is compiled, traced or transformed by
    torch.func is not checked.

    Args:
        values: the tensor.
        ok: makes a bool tensor of the shape of ``values``, True where a value keeps the rule.
        rule: what is allowed, in words; the error begins with it.

    Raises:
        ValueError: a value on the CPU breaks the rule.
    """
    if not is_plain(values):
        return
    if values.device.type == "cuda":
        torch._assert_async(ok().all(), rule)
    elif values.device.type == "cpu" and not bool((kept := ok()).all()):
        where = (~kept).nonzero()[0].tolist()
        raise ValueError(f"{rule}, got {values[tuple(where)].item():g} at index {where}")


def is_traced() -> bool:
    """Whether torch.compile, torch.export or torch.jit.trace runs the code to record it."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_plain(*tensors: Tensor) -> bool:
    """Whether this is eager code on plain tensors, whose values may be read, kept and overwritten.

    It is False under :func:`is_traced`, in torch.func (vmap, grad), and for fake tensors and other
    subclasses such as DTensor. Those allow plain differentiable operations only.
    """
    functorch = torch._C._functorch
    if is_traced() or functorch.peek_interpreter_stack() is not None:
        return False
    if torch.autograd.forward_ad._current_level >= 0:
        return False
    for tensor in tensors:
        if type(tensor) not in (Tensor, Parameter):
            return False
        # the second: gradients by torch.autograd.grad(…, is_grads_batched=True)
        if functorch.is_functorch_wrapped_tensor(tensor) or functorch.is_legacy_batchedtensor(
            tensor
        ):
            return False
    return True


def check_positions(positions: Tensor) -> None:
    """Raise ValueError unless positions are NaN or numbers that our dtypes hold exactly.

    They must not be complex, bool, infinite or of less than float32, nor integers too large for
    float64 (on CUDA: :func:`check_values`).
    """
    if positions.is_complex() or positions.dtype == torch.bool:
        raise ValueError(f"positions must be real numbers, got {positions.dtype}")
    if positions.is_floating_point():
        if positions.dtype.itemsize < 4:
            raise ValueError(
                f"positions of {positions.dtype} are rounded already: keep them float32 or integer "
                "(FSDP2's mixed precision casts float inputs: cast_forward_inputs=False)"
            )
        rule = "positions must be finite, or NaN for padding"
        check_values(positions, lambda: positions.abs() != math.inf, rule)
        return
    # the dtype that cape_plugins.places.exact gives integers holds each integer below `most`
    dtype, most = torch.float64, 2**53
    if positions.device.type == "mps":
        dtype, most = torch.float32, 2**24
    if torch.iinfo(positions.dtype).max >= most:
        rule = f"integer positions must lie within ± {most} to be exact: subtract the first one"
        check_values(positions, lambda: positions.to(dtype).abs() < most, rule)
