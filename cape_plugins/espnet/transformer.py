"""The encoder and the decoder ``cape_transformer``.

Paper: CAPE, https://arxiv.org/abs/2106.03143, section 4.2.
"""

import functools
from typing import Any

import torch.nn.functional as F
from espnet2.asr.decoder.transformer_decoder import TransformerDecoder
from espnet2.asr.encoder.conformer_encoder import ConformerEncoder
from torch import Tensor, nn

from cape_plugins.checks import check_count
from cape_plugins.espnet.encoder import InSeconds
from cape_plugins.espnet.layers import drop_layers, open_scopes
from cape_plugins.espnet.options import check_rate

# the model, with its regularisation for TED-LIUM; for WSJ the three rates of 0.1 are 0.4
PAPER: dict[str, Any] = dict(
    output_size=768,
    attention_heads=4,
    linear_units=3072,
    num_blocks=36,
    dropout_rate=0.1,
    positional_dropout_rate=0.0,
    attention_dropout_rate=0.1,
    normalize_before=True,  # ESPnet's default; the paper's models are post-norm
    interctc_layer_idx=[],
    interctc_use_conditioning=False,
    layer_drop_rate=0.1,
)


class ConvolutionalFront(nn.Module):
    """Features → content at a third of the frame rate: convolution, GLU, dropout (section 4.2).

    The convolution has kernel 7 and stride 3; output frame i is centred at input frame 3 i. Beyond
    the ends it sees zeros, as features have them in padding, so that no utterance is too short.
    """

    def __init__(self, input_size: int, output_size: int, dropout_rate: float) -> None:
        super().__init__()
        self.conv = nn.Conv1d(input_size, 2 * output_size, 7, stride=3, padding=3)
        self.dropout = nn.Dropout(dropout_rate)

    def forward(self, features: Tensor) -> Tensor:
        """(B, T, input_size) → (B, ⌈T / 3⌉, output_size)."""
        content = F.glu(self.conv(features.transpose(1, 2)), dim=1)
        return self.dropout(content.transpose(1, 2))


class CapeTransformerEncoder(InSeconds, ConformerEncoder):
    """Convolution, positions in seconds, Transformer layers.

    Put it into a recipe as ``encoder: cape_transformer``; the arguments are ``encoder_conf``. The
    layers are those of ESPnet's Conformer without its convolutions, and so are the options; as in
    the authors' code, dropout falls on the attention weights (``attention_dropout_rate``) and
    after the ReLU (``dropout_rate``), not on what is added to the residual.

    Args:
        input_size: feature channels; ESPnet passes it.
        conv_dropout_rate: after the convolution; 0.3 in the paper.
        options: ``PAPER``'s, others of ESPnet's Conformer, and the fields of
            :class:`cape_plugins.espnet.options.SecondsSettings`.

    Raises:
        ValueError, TypeError: as :class:`cape_plugins.espnet.encoder.InSeconds`.
    """

    own_scale = 1.0  # of the content, as in the authors' code
    defaults = PAPER

    def __init__(self, input_size: int, conv_dropout_rate: float = 0.3, **options: Any) -> None:
        chosen = {**PAPER, "rel_pos_type": "latest", **options}
        check_count("encoder_conf: output_size", chosen["output_size"])
        check_rate("encoder_conf: conv_dropout_rate", conv_dropout_rate)
        front = ConvolutionalFront(input_size, chosen["output_size"], conv_dropout_rate)
        fixed = dict(input_layer="linear", activation_type="relu", use_cnn_module=False)
        super().__init__(input_size, front, **chosen, **fixed)
        for layer in self.encoders:
            layer.dropout = nn.Identity()
        drop_layers(self.encoders, chosen["layer_drop_rate"])


class CapeTransformerDecoder(TransformerDecoder):
    """ESPnet's Transformer decoder, whose ``layer_drop_rate`` acts.

    Put it into a recipe as ``decoder: cape_transformer``; ``decoder_conf`` is that of
    ``decoder: transformer``, and so are the checkpoints' keys. ESPnet's own
    takes ``layer_drop_rate`` and drops no layer, as it calls them one by one.

    Raises:
        ValueError: as :func:`cape_plugins.espnet.layers.drop_layers`.
    """

    # --print_config reads the signature
    @functools.wraps(TransformerDecoder.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        open_scopes(self.decoders)
        drop_layers(self.decoders, self.decoders.layer_drop_rate)
