"""The encoder and the decoder ``cape_transformer``, as in the paper.

Paper: CAPE: Encoding Relative Positions with Continuous Augmented Positional Embeddings,
https://arxiv.org/abs/2106.03143, section 4.2.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from espnet2.asr.decoder.transformer_decoder import TransformerDecoder
from espnet2.asr.encoder.conformer_encoder import ConformerEncoder
from torch import Tensor, nn

from cape_plugins.checks import check_count
from cape_plugins.espnet.encoder import InSeconds
from cape_plugins.espnet.layers import drop_layers, open_scopes
from cape_plugins.espnet.options import check_rate

KERNEL = 7
STRIDE = 3


class ConvolutionalFront(nn.Module):
    """Features → content at a third of the frame rate: convolution, GLU, dropout (section 4.2).

    The convolution has kernel 7 and stride 3; output frame i is centred at input frame 3 i. Beyond
    the ends it sees zeros, as features have them in padding, so that no utterance is too short.
    """

    def __init__(self, input_size: int, output_size: int, dropout_rate: float) -> None:
        super().__init__()
        self.conv = nn.Conv1d(
            input_size, 2 * output_size, KERNEL, stride=STRIDE, padding=(KERNEL - 1) // 2
        )
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

    The defaults are the paper's model (36 layers, section 4.2) with its regularisation for
    TED-LIUM; for WSJ it takes 0.4 for ``dropout_rate``, ``attention_dropout_rate`` and
    ``layer_drop_rate``.

    Args:
        input_size: feature channels; ESPnet passes it.
        positional_dropout_rate: on the sum of content and position; the paper has none.
        conv_dropout_rate: after the convolution; 0.3 in the paper.
        normalize_before: pre-norm, as ESPnet's default, with a LayerNorm at the end. The paper's
            models are post-norm: ``false``.
        layer_drop_rate: in training a layer is dropped with this probability
            (:func:`cape_plugins.espnet.layers.drop_layers`). The paper takes the same value as for
            ``dropout_rate``. It saves no time: dropped layers are multiplied by 0.
        options: the fields of :class:`cape_plugins.espnet.options.SecondsSettings`, and those of
            ESPnet's Conformer that are not named here.

    Raises:
        ValueError, TypeError: as :class:`cape_plugins.espnet.encoder.InSeconds`.
    """

    own_scale = 1.0  # of the content, as in the authors' code

    def __init__(
        self,
        input_size: int,
        output_size: int = 768,
        attention_heads: int = 4,
        linear_units: int = 3072,
        num_blocks: int = 36,
        dropout_rate: float = 0.1,
        positional_dropout_rate: float = 0.0,
        attention_dropout_rate: float = 0.1,
        conv_dropout_rate: float = 0.3,
        normalize_before: bool = True,
        interctc_layer_idx: Sequence[int] = (),
        interctc_use_conditioning: bool = False,
        layer_drop_rate: float = 0.1,
        **options: Any,
    ) -> None:
        check_count("encoder_conf: output_size", output_size)
        check_rate("encoder_conf: conv_dropout_rate", conv_dropout_rate)
        front = ConvolutionalFront(input_size, output_size, conv_dropout_rate)
        super().__init__(
            input_size,
            front,
            output_size=output_size,
            attention_heads=attention_heads,
            linear_units=linear_units,
            num_blocks=num_blocks,
            dropout_rate=dropout_rate,
            positional_dropout_rate=positional_dropout_rate,
            attention_dropout_rate=attention_dropout_rate,
            normalize_before=normalize_before,
            interctc_layer_idx=interctc_layer_idx,
            interctc_use_conditioning=interctc_use_conditioning,
            layer_drop_rate=layer_drop_rate,
            input_layer="linear",
            activation_type="relu",
            use_cnn_module=False,
            **{"rel_pos_type": "latest", **options},
        )
        for layer in self.encoders:
            layer.dropout = nn.Identity()
        drop_layers(self.encoders, layer_drop_rate)


class CapeTransformerDecoder(TransformerDecoder):
    """ESPnet's Transformer decoder, whose ``layer_drop_rate`` acts.

    Put it into a recipe as ``decoder: cape_transformer``; ``decoder_conf`` is that of
    ``decoder: transformer``, and so are the checkpoints' keys. ESPnet's own takes the option, and
    calls its layers one by one, past what would drop them.

    Raises:
        ValueError: as :func:`cape_plugins.espnet.layers.drop_layers`.
    """

    # --print_config reads the signature
    @functools.wraps(TransformerDecoder.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        open_scopes(self.decoders)
        drop_layers(self.decoders, self.decoders.layer_drop_rate)
