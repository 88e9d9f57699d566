"""ESPnet's layers: they tell their parts where padding is, and drop whole layers in training.

ESPnet 202611 keeps padding out of most convolutions, 202511 out of none. In a built model,
subclasses replace ESPnet's classes, and keep weights, names and hooks.
"""

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from espnet2.asr.decoder.transformer_decoder import DecoderLayer
from espnet2.asr.encoder.branchformer_encoder import BranchformerEncoderLayer
from espnet2.asr.encoder.conformer_encoder import EncoderLayer
from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoderLayer
from torch import Tensor, nn

from cape_plugins.attention import take_over
from cape_plugins.espnet.options import check_rate


def replace(root: nn.Module, kind: type, make: Callable[[Any], nn.Module]) -> None:
    """Replace each module of a kind below ``root`` by ``make(module)``."""
    for parent in list(root.modules()):
        for name, child in parent.named_children():
            if isinstance(child, kind):
                setattr(parent, name, make(child))


def take_over_all(kind: type[nn.Module], root: nn.Module) -> None:
    """Let modules of ``kind`` take over from those of its last base below ``root``."""
    replace(root, kind.__bases__[-1], functools.partial(take_over, kind))


class Scope(threading.local):
    """What the parts of a layer know while it runs in this thread; None when it does not.

    Attributes:
        real: bool (B, 1, T), True for real frames.
        kept: bool scalar, False where the layer is dropped; None until it is drawn.
    """

    # a ContextVar would do, but torch.compile traces none
    real: Any = None
    kept: Any = None


scope = Scope()


class CapeLayer(nn.Module):
    """Mixin of ESPnet's layers: opens the :class:`Scope` of the layer's parts.

    ``forward`` opens it, not a hook. Activation checkpointing calls ``layer.forward`` again in
    backward, where hooks do not run.
    """

    def forward(self, x: Any, mask: Tensor, *rest: Any, **named: Any) -> Any:
        """As ESPnet's layer, whose first arguments are content and mask."""
        scope.real, scope.kept = mask, None
        try:
            return super().forward(x, mask, *rest, **named)
        finally:
            scope.real = scope.kept = None


class CapeEncoderLayer(CapeLayer, EncoderLayer):
    """Of the Conformer, and of our Transformer."""


class CapeEBranchformerEncoderLayer(CapeLayer, EBranchformerEncoderLayer):
    """Of the E-Branchformer."""


class CapeBranchformerEncoderLayer(CapeLayer, BranchformerEncoderLayer):
    """Of the Branchformer."""


class CapeDecoderLayer(CapeLayer, DecoderLayer):
    """Of the Transformer decoder."""


class RealConvolution(nn.Conv1d):
    """Convolution of (B, channels, T) that sees zeros in padding, as beyond the end."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve, within one of ESPnet's layers."""
        alone = self.kernel_size == (1,)  # sees no other frames
        return super().forward(x if alone else x.masked_fill(~scope.real, 0.0))


class RealBatchNorm(nn.BatchNorm1d):
    """Batch norm of (B, channels, T) with the statistics of real frames alone in training."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, within one of ESPnet's layers."""
        if not self.training:
            return super().forward(x)
        padding, count = ~scope.real, scope.real.sum().clamp(min=1)  # (B, 1, T), scalar
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = wide.masked_fill(padding, 0.0).sum(dim=(0, 2)) / count  # (channels,)
        wide = wide - mean[:, None]
        variance = wide.masked_fill(padding, 0.0).square().sum(dim=(0, 2)) / count
        with torch.no_grad():
            unbiased = variance * count / (count - 1).clamp(min=1)
            for running, now in ((self.running_mean, mean), (self.running_var, unbiased)):
                assert running is not None
                running.lerp_(now.to(running.dtype), self.momentum or 0.0)
            self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        scale = self.weight * (variance + self.eps).rsqrt()
        return (wide * scale[:, None] + self.bias[:, None]).to(x.dtype)


def open_scopes(layers: nn.Module) -> None:
    """Let each of ESPnet's layers below a module open the scope of its parts."""
    for ours in CapeLayer.__subclasses__():
        take_over_all(ours, layers)


def hide_padding(layers: nn.Module) -> None:
    """Let the convolutions and batch norms of ESPnet's layers see no padding."""
    open_scopes(layers)
    take_over_all(RealBatchNorm, layers)
    take_over_all(RealConvolution, layers)


class LayerDrop(nn.Module):
    """Replaces a layer's dropout, through which each part's output passes before the residual.

    In training a layer is dropped with probability ``rate``; its first part draws for all parts.
    """

    def __init__(self, dropout: nn.Module, rate: float) -> None:
        super().__init__()
        self.dropout, self.rate = dropout, rate

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, size) → same, zeros in a layer that is dropped."""
        x = self.dropout(x)
        if not self.training:
            return x
        if scope.kept is None:
            scope.kept = torch.rand((), device=x.device) >= self.rate
        # a product, not a branch: no wait for the device, and gradients of zero rather than none,
        # so that DDP finds every parameter used although each process draws for itself
        return x * scope.kept


def drop_layers(layers: Iterable[Any], rate: float) -> None:
    """Drop each of ESPnet's layers with probability ``rate`` in training: one draw per batch.

    What its parts (attention, feed-forward) add to the residual is zeroed; norms still run, and
    nothing is rescaled in evaluation (authors). The layers are of :func:`open_scopes`.

    Raises:
        ValueError: the rate is not in [0, 1), or layers have ``concat_after``, whose parts are not
            summed.
    """
    check_rate("layer_drop_rate", rate)
    for layer in layers if rate else ():
        if layer.concat_after:
            raise ValueError(f"layer_drop_rate: {rate} needs concat_after: false: leave one out")
        layer.dropout = LayerDrop(layer.dropout, rate)
