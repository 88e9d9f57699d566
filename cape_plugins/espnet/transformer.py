"""The encoder and the decoder ``cape_transformer``.

Paper: CAPE, https://arxiv.org/abs/2106.03143, section 4.2.
"""

import functools
from types import MappingProxyType
from typing import Any

import torch.nn.functional as F
from espnet2.asr.decoder.transformer_decoder import TransformerDecoder
from espnet2.asr.encoder.conformer_encoder import ConformerEncoder
from torch import Tensor, nn

from cape_plugins.espnet.encoder import InSeconds
from cape_plugins.espnet.paper.layer_drop import drop_layers
from cape_plugins.espnet.relies import RELIES

# the model, with its regularisation for TED-LIUM; for WSJ the three rates of 0.1 are 0.4
SECTION_4_2: dict[str, Any] = dict(
    output_size=768,
    attention_heads=4,
    linear_units=3072,
    num_blocks=36,
    dropout_rate=0.1,
    positional_dropout_rate=0.0,
    attention_dropout_rate=0.1,
    conv_dropout_rate=0.3,
    layer_drop_rate=0.1,
    rel_pos_type="latest",
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


class SpeechTransformerEncoder(InSeconds, ConformerEncoder):
    """Convolution, positions in seconds, Transformer layers.

    Put it into a recipe as ``encoder: cape_transformer``; the arguments are ``encoder_conf``. The
    layers are those of ESPnet's Conformer without its convolutions, and so are the options; as in
    the authors' code, dropout falls on the attention weights (``attention_dropout_rate``) and
    after the ReLU (``dropout_rate``), not on what is added to the residual. ``conv_dropout_rate``
    is after the convolution. Norms come before attention and feed-forward, as ESPnet has them;
    the paper's models are post-norm, ``normalize_before: false``.

    Raises:
        ValueError: as :class:`cape_plugins.espnet.encoder.InSeconds`.
    """

    espnets = ConformerEncoder
    defaults = MappingProxyType(SECTION_4_2)
    fixed = MappingProxyType(
        dict(
            input_layer="linear",  # replaced by the convolution
            padding_idx=-1,  # of input_layer: embed
            activation_type="relu",
            use_cnn_module=False,
            cnn_module_kernel=31,
        )
    )
    own_scale = 1.0  # as in the authors' code

    @classmethod
    def make_front(cls, conf: Any) -> nn.Module:
        """The paper's convolution."""
        return ConvolutionalFront(conf.input_size, conf.output_size, conf.conv_dropout_rate)

    def __init__(self, input_size: int, **options: Any) -> None:
        super().__init__(input_size, **options)
        for layer in self.encoders:
            layer.dropout = nn.Identity()
        drop_layers(self.encoders, self.encoders.layer_drop_rate)


class LayerDropTransformerDecoder(TransformerDecoder):
    """ESPnet's Transformer decoder, whose ``layer_drop_rate`` acts.

    Put it into a recipe as ``decoder: cape_transformer``; ``decoder_conf`` is that of
    ``decoder: transformer``, and so are the checkpoints' keys. ESPnet's own
    takes ``layer_drop_rate`` and drops no layer, as it calls them one by one.

    Raises:
        ValueError: as :func:`cape_plugins.espnet.paper.layer_drop.drop_layers`.
    """

    # --print_config reads the signature
    @functools.wraps(TransformerDecoder.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        RELIES.check()
        super().__init__(*args, **kwargs)
        drop_layers(self.decoders, self.decoders.layer_drop_rate)
