"""Layer drop: whole layers of ESPnet's Transformers are dropped in training (section 4.2)."""

import threading
from typing import Any

import torch
from espnet2.asr.decoder.transformer_decoder import DecoderLayer
from torch import Tensor, nn

from cape_plugins.checks import is_number
from cape_plugins.espnet.padding import MaskedConformerLayer, replace_class


class LayerDraw(threading.local):
    """Whether the layer that runs in this thread is kept: a bool scalar, None until it is drawn."""

    kept: Any = None  # a ContextVar would do, but torch.compile traces none


draw = LayerDraw()


class DroppableLayer(nn.Module):
    """Mixin of ESPnet's layers: all parts of a layer share one draw of :class:`LayerDrop`."""

    def forward(self, *given: Any, **named: Any) -> Any:
        """As ESPnet's layer."""
        draw.kept = None
        try:
            return super().forward(*given, **named)
        finally:
            draw.kept = None


class DroppableEncoderLayer(DroppableLayer, MaskedConformerLayer):
    """Of ``encoder: cape_transformer``."""


class DroppableDecoderLayer(DroppableLayer, DecoderLayer):
    """Of ``decoder: cape_transformer``."""


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
        if draw.kept is None:
            draw.kept = torch.rand((), device=x.device) >= self.rate
        # a product, not a branch: no wait for the device, and gradients of zero rather than none,
        # so that DDP finds every parameter used although each process draws for itself
        return x * draw.kept


def drop_layers(layers: Any, rate: float) -> None:
    """Drop each of the encoder's or decoder's layers with probability ``rate`` in training.

    There is one draw per layer and batch. What the layer's parts (attention, feed-forward) add to
    the residual is zeroed; norms still run, and nothing is rescaled in evaluation (authors).

    Raises:
        ValueError: the rate is not in [0, 1), or layers have ``concat_after``, whose parts are not
            summed.
    """
    if not (is_number(rate) and 0 <= rate < 1):
        raise ValueError(f"layer_drop_rate must be a number in [0, 1), got {rate!r}")
    if rate == 0:
        return
    replace_class(DroppableEncoderLayer, layers)
    replace_class(DroppableDecoderLayer, layers)
    for layer in layers:
        if layer.concat_after:
            raise ValueError(f"layer_drop_rate: {rate} needs concat_after: false: leave one out")
        layer.dropout = LayerDrop(layer.dropout, rate)
