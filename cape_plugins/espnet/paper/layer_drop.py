"""Layer drop: whole layers of ESPnet's Transformers are dropped in training (section 4.2)."""

from typing import Any

import torch
from espnet2.asr.decoder.transformer_decoder import DecoderLayer
from torch import Tensor, nn

from cape_plugins.checks import is_number
from cape_plugins.espnet.padding import MaskedConformerLayer, replace_class
from cape_plugins.host import with_class


class DroppableLayer(nn.Module):
    """Mixin of ESPnet's layers, which in training are dropped with probability ``drop_rate``."""

    drop_rate = 0.0

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        """As ESPnet's layer; in training of a copy of itself, whose parts share one draw."""
        if not self.training:
            return super().forward(*given, **named)
        drawn: list[Tensor] = []

        def dropout(x: Tensor) -> Tensor:  # each part's output passes it before the residual
            x = self.dropout(x)
            if not drawn:
                drawn.append(torch.rand((), device=x.device) >= self.drop_rate)
            # a product, not a branch: no wait for the device, and gradients of zero rather than
            # none, so that DDP finds every parameter used although each process draws for itself
            return x * drawn[0]

        now = with_class(self, type(self), dropout=dropout)
        return super(DroppableLayer, now).forward(*given, **named)


class DroppableEncoderLayer(DroppableLayer, MaskedConformerLayer):
    """Of ``encoder: cape_transformer``."""


class DroppableDecoderLayer(DroppableLayer, DecoderLayer):
    """Of ``decoder: cape_transformer``."""


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
        layer.drop_rate = rate
