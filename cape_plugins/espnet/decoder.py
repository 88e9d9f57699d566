"""The decoder ``cape_transformer``: ESPnet's Transformer decoder, whose layer drop acts.

ESPnet's own takes ``layer_drop_rate`` and calls its layers one by one, past what would drop them.
"""

import functools
from typing import Any

import torch
from espnet2.asr.decoder.transformer_decoder import TransformerDecoder
from torch import Tensor, nn

from cape_plugins.espnet.layers import keep


class CapeTransformerDecoder(TransformerDecoder):
    """ESPnet's Transformer decoder; in training a layer is dropped with ``layer_drop_rate``.

    Put it into a recipe as ``decoder: cape_transformer``; ``decoder_conf`` is that of
    ``decoder: transformer``, and so are the checkpoints' keys. As in the encoder, one draw per
    layer and batch zeroes the outputs of its parts (both attentions, feed-forward); norms still
    run, and nothing is rescaled in evaluation.

    Raises:
        ValueError: ``layer_drop_rate`` is not in [0, 1), or stands beside ``concat_after``, whose
            layers are not a sum.
    """

    # --print_config reads the signature
    @functools.wraps(TransformerDecoder.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rate = self.decoders.layer_drop_rate
        if not 0 <= rate < 1:
            raise ValueError(
                f"decoder_conf layer_drop_rate must be a number in [0, 1), got {rate!r}"
            )
        for layer in self.decoders if rate else ():
            if layer.concat_after:
                raise ValueError(
                    f"decoder_conf layer_drop_rate: {rate} needs concat_after: false: leave one out"
                )
            drop = _Drop(rate)
            layer.register_forward_pre_hook(drop.draw)
            for part in (layer.self_attn, layer.src_attn, layer.feed_forward):
                part.register_forward_hook(drop.apply)


class _Drop:
    """Whether a layer is kept in the batch that is going through it."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.kept: Tensor | None = None

    def draw(self, layer: nn.Module, given: tuple[Any, ...]) -> None:
        """Before the layer; in evaluation it is kept."""
        self.kept = None
        if layer.training:
            self.kept = torch.rand((), device=given[0].device) >= self.rate

    def apply(self, part: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
        """After a part of the layer."""
        return keep(output, self.kept)
