"""The decoder ``cape_transformer``: ESPnet's Transformer decoder, whose layer drop acts.

ESPnet's own takes ``layer_drop_rate`` and calls its layers one by one, past what would drop them.
"""

import functools
from typing import Any

from espnet2.asr.decoder.transformer_decoder import TransformerDecoder

from cape_plugins.espnet.layers import drop_layers, open_scopes


class CapeTransformerDecoder(TransformerDecoder):
    """ESPnet's Transformer decoder; in training a layer is dropped with ``layer_drop_rate``.

    Put it into a recipe as ``decoder: cape_transformer``; ``decoder_conf`` is that of
    ``decoder: transformer``, and so are the checkpoints' keys. How layers are dropped:
    :func:`cape_plugins.espnet.layers.drop_layers`.

    Raises:
        ValueError: ``layer_drop_rate`` is not in [0, 1), or stands beside ``concat_after``.
    """

    # --print_config reads the signature
    @functools.wraps(TransformerDecoder.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        open_scopes(self.decoders)
        drop_layers(self.decoders, self.decoders.layer_drop_rate)
