"""Tensors that depend on settings alone, such as frequencies: made once for each device.

Without it ``sinpos`` takes 26 operations in place of 11 in images, ``cape`` 52 in place of 27.
They are no buffers, so ``.half()``, ``.to_empty()`` and checkpoints have nothing to do with them.

    >>> waves = constant(waves_1d, 512, 10_000.0, 1.0, like=positions)
"""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from cape_plugins.fused.guard import usable

_MADE: dict[Hashable, Tensor] = {}
# beyond this they are made anew each time: settings that change at every step must not fill memory
_MOST = 4096


def constant(make: Callable[..., Tensor], *settings: Hashable, like: Tensor) -> Tensor:
    """``make(*settings, device)`` for the device of ``like``: a tensor that nobody may write into.

    It is made anew where it could not be used again: where nothing of this folder may run, and
    while a CUDA graph is captured, whose memory is its own.
    """
    if not usable(like):
        return make(*settings, like.device)
    key = (make, settings, like.device, _stream(like.device))
    found = _MADE.get(key)
    if found is None:
        with torch.inference_mode(False):  # else no later training could use it
            found = make(*settings, like.device)
        if len(_MADE) < _MOST and usable(found) and not _is_capturing(like.device):
            _MADE[key] = found
    return found


def _stream(device: torch.device) -> Any:
    """A stream has constants of its own: another could read them before they are written."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
