"""ESPnet's layers, whose convolutions and batch norms see no padding.

ESPnet 202611 keeps padding out of most convolutions, 202511 out of none. In a built model,
subclasses replace ESPnet's classes, and keep weights, names and hooks.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from espnet2.asr.encoder.branchformer_encoder import BranchformerEncoderLayer
from espnet2.asr.encoder.conformer_encoder import EncoderLayer
from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoderLayer
from torch import Tensor, nn

from cape_plugins.host import with_class


def replace(root: nn.Module, kind: type, make: Callable[[Any], nn.Module]) -> None:
    """Replace each module of a kind below ``root`` by ``make(module)``."""
    for parent in list(root.modules()):
        for name, child in parent.named_children():
            if isinstance(child, kind):
                setattr(parent, name, make(child))


def replace_class(kind: type[nn.Module], root: nn.Module) -> None:
    """Give modules below ``root`` that are of the last base of ``kind`` the class ``kind``."""
    replace(root, kind.__bases__[-1], functools.partial(with_class, kind=kind))


class RunningLayer(threading.local):
    """What the parts of a layer know while it runs in this thread.

    Attributes:
        mask: bool (B, 1, T), False at padding; None while no layer runs.
    """

    mask: Any = None  # a ContextVar would do, but torch.compile traces none


running = RunningLayer()


class MaskedLayer(nn.Module):
    """Mixin of ESPnet's layers: its convolutions and batch norms are told where padding is.

    ``forward`` tells them, not a hook. Activation checkpointing calls ``layer.forward`` again in
    backward, where hooks do not run.
    """

    def forward(self, x: Any, mask: Tensor, *rest: Any, **named: Any) -> Any:
        """As ESPnet's layer, whose first arguments are content and mask."""
        running.mask = mask
        try:
            return super().forward(x, mask, *rest, **named)
        finally:
            running.mask = None


class MaskedConformerLayer(MaskedLayer, EncoderLayer):
    """Of the Conformer, and of ``cape_transformer``."""


class MaskedEBranchformerLayer(MaskedLayer, EBranchformerEncoderLayer):
    """Of the E-Branchformer."""


class MaskedBranchformerLayer(MaskedLayer, BranchformerEncoderLayer):
    """Of the Branchformer."""


class MaskedConv1d(nn.Conv1d):
    """Convolution of (B, channels, T) that sees zeros in padding, as beyond the end."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve, within a :class:`MaskedLayer`."""
        alone = self.kernel_size == (1,)  # sees no other frames
        return super().forward(x if alone else x.masked_fill(~running.mask, 0.0))


class MaskedBatchNorm1d(nn.BatchNorm1d):
    """Batch norm of (B, channels, T) with the statistics of real frames alone in training."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, within a :class:`MaskedLayer`."""
        if not self.training:
            return super().forward(x)
        padding, count = ~running.mask, running.mask.sum().clamp(min=1)  # (B, 1, T), scalar
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = wide.masked_fill(padding, 0.0).sum(dim=(0, 2)) / count  # (channels,)
        wide = wide - mean[:, None]
        variance = wide.masked_fill(padding, 0.0).square().sum(dim=(0, 2)) / count
        with torch.no_grad():
            unbiased = variance * count / (count - 1).clamp(min=1)
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            # as PyTorch's: without a momentum the mean of all batches so far
            share: Any = self.momentum
            if share is None:
                share = 1 / self.num_batches_tracked
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
        scale = self.weight * (variance + self.eps).rsqrt()
        return (wide * scale[:, None] + self.bias[:, None]).to(x.dtype)


def hide_padding(layers: nn.Module) -> None:
    """Let the convolutions and batch norms of ESPnet's layers see no padding."""
    masked = (MaskedConformerLayer, MaskedEBranchformerLayer, MaskedBranchformerLayer)
    for kind in (*masked, MaskedBatchNorm1d, MaskedConv1d):
        replace_class(kind, layers)
