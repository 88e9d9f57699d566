"""The encoder ``cape_transformer``: a Transformer that knows time in seconds.

Paper: CAPE: Encoding Relative Positions with Continuous Augmented Positional Embeddings,
https://arxiv.org/abs/2106.03143, section 4.2.
"""

from collections.abc import Sequence
from typing import Any

import torch
from espnet2.asr.ctc import CTC
from torch import Tensor, nn

from cape_plugins.attention import PositionalAttention
from cape_plugins.espnet.layers import STRIDE, ConvolutionalFront, TransformerLayer, subsampled
from cape_plugins.espnet.seconds import (
    FREQUENCY_SCALE,
    InSeconds,
    PositionSettings,
    augmented,
)
from cape_plugins.positions import is_number


class CapeTransformerEncoder(InSeconds):
    """Convolution, positions in seconds, Transformer layers.

    Put it into a recipe as ``encoder: cape_transformer``; the arguments are ``encoder_conf``,
    named as in ESPnet's TransformerEncoder. The defaults are the paper's model (36 layers,
    section 4.2) with its regularisation for TED-LIUM; for WSJ it takes 0.4 for ``dropout_rate``,
    ``attention_dropout_rate`` and ``layer_drop_rate``.

    Args:
        input_size: feature channels; ESPnet passes it.
        output_size: channels of the model, even and divisible by ``attention_heads``.
        attention_heads: heads of each self-attention.
        linear_units: hidden channels of each feed-forward network.
        num_blocks: Transformer layers.
        dropout_rate: after each feed-forward network's ReLU.
        positional_dropout_rate: on the sum of content and position; the paper has none.
        attention_dropout_rate: on the attention weights.
        conv_dropout_rate: after the convolution; 0.3 in the paper.
        normalize_before: pre-norm, as ESPnet's default, with a LayerNorm at the end. The paper's
            models are post-norm: ``false``.
        interctc_layer_idx: layers, counted from 1, after which ESPnet's model adds a CTC loss;
            each below ``num_blocks``. Their outputs pass the last LayerNorm, as in ESPnet.
        interctc_use_conditioning: feed the CTC posteriors at those layers back into the next one
            (self-conditioned CTC); needs ``interctc_layer_idx``.
        layer_drop_rate: in training a layer is dropped with this probability, one draw per layer
            and batch; nothing is rescaled in evaluation (authors). The paper takes the same
            value as for ``dropout_rate``. It saves no time: dropped layers are multiplied by 0.
        pos, max_global_shift, max_local_shift, max_global_scale, abspos_context, relpos_context,
            relpos_values, random_range, frequency_scale, attention_logn, frame_shift: see
            :class:`cape_plugins.espnet.seconds.PositionSettings`.

    Raises:
        ValueError: a value is out of range, whatever ``pos`` is; in :meth:`train`, an option is
            given that ``pos`` does not take.
    """

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
        pos: str = "cape",
        max_global_shift: float = 30.0,
        max_local_shift: float | None = None,
        max_global_scale: float = 1.1,
        abspos_context: float = 13.8,
        relpos_context: float | None = None,
        relpos_values: bool = False,
        random_range: float = 60.0,
        frequency_scale: float = FREQUENCY_SCALE,
        attention_logn: int | None = None,
        frame_shift: float = 0.01,
    ) -> None:
        super().__init__()
        for name, count in (
            ("input_size", input_size),
            ("output_size", output_size),
            ("attention_heads", attention_heads),
            ("linear_units", linear_units),
            ("num_blocks", num_blocks),
        ):
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise ValueError(f"{name} must be an integer ≥ 1, got {count!r}")
        if output_size % attention_heads or output_size % 2:
            raise ValueError(
                f"output_size must be even and divisible by attention_heads={attention_heads}, "
                f"got {output_size}"
            )
        for name, rate in (
            ("dropout_rate", dropout_rate),
            ("positional_dropout_rate", positional_dropout_rate),
            ("attention_dropout_rate", attention_dropout_rate),
            ("conv_dropout_rate", conv_dropout_rate),
            ("layer_drop_rate", layer_drop_rate),
        ):
            if not (is_number(rate) and 0 <= rate < 1):
                raise ValueError(f"{name} must be a number in [0, 1), got {rate!r}")
        for name, flag in (
            ("normalize_before", normalize_before),
            ("interctc_use_conditioning", interctc_use_conditioning),
        ):
            if not isinstance(flag, bool):
                raise ValueError(f"{name} must be true or false, got {flag!r}")
        _check_interctc(interctc_layer_idx, interctc_use_conditioning, num_blocks)
        settings = PositionSettings(
            pos=pos,
            max_global_shift=max_global_shift,
            max_local_shift=max_local_shift,
            max_global_scale=max_global_scale,
            abspos_context=abspos_context,
            relpos_context=relpos_context,
            relpos_values=relpos_values,
            random_range=random_range,
            frequency_scale=frequency_scale,
            attention_logn=attention_logn,
            frame_shift=frame_shift,
        )
        spacing = STRIDE * frame_shift
        self._output_size = output_size
        self.pos = pos
        self.frame_shift = frame_shift
        self.front = ConvolutionalFront(input_size, output_size, conv_dropout_rate)
        self.position = settings.embedding(output_size, spacing)
        self.mark = settings.mark(self.position)
        self.longest = settings.longest()
        self.refusal = ""
        try:
            settings.refuse_options()
        except ValueError as error:
            self.refusal = str(error)
        self.position_unit = settings.unit(spacing)
        self.dropout = nn.Dropout(positional_dropout_rate)
        self.layer_drop_rate = layer_drop_rate
        relatives = settings.attentions(
            num_blocks,
            head_dim=output_size // attention_heads,
            heads=attention_heads,
            spacing=spacing,
        )
        self.prepare = (relatives[0] or PositionalAttention()).prepare
        self.layers = nn.ModuleList(
            TransformerLayer(
                output_size,
                attention_heads,
                linear_units,
                dropout_rate,
                attention_dropout_rate,
                normalize_before,
                relative,
            )
            for relative in relatives
        )
        self.after_norm = nn.LayerNorm(output_size) if normalize_before else nn.Identity()
        # ESPnet's model reads the next two, and sets the third to a Linear if the second is true
        self.interctc_layer_idx = list(interctc_layer_idx)
        self.interctc_use_conditioning = interctc_use_conditioning
        self.conditioning_layer: nn.Module | None = None
        self.espnet_initialization_fn()

    def train(self, mode: bool = True) -> "CapeTransformerEncoder":
        """As nn.Module's, but refuses options that ``pos`` does not take.

        Not the constructor: models trained when such options were ignored still load.

        Raises:
            ValueError: training with an option that ``pos`` does not take.
        """
        if mode and self.refusal:
            raise ValueError(self.refusal)
        return super().train(mode)

    def output_size(self) -> int:
        """Channels of the output."""
        return self._output_size

    def forward(
        self,
        xs_pad: Tensor,
        ilens: Tensor,
        prev_states: Tensor | None = None,
        ctc: CTC | None = None,
        *,
        times: Tensor | None = None,
    ) -> tuple[Tensor | tuple[Tensor, list[tuple[int, Tensor]]], Tensor, None]:
        """Encode.

        Args:
            xs_pad: (B, T, input_size) features; what lies beyond an utterance's end is ignored.
            ilens: (B,) frames of each utterance; ESPnet wants the longest to have T.
            prev_states: unused, part of ESPnet's interface (streaming).
            ctc: the model's CTC, needed for ``interctc_use_conditioning``; ESPnet's model
                passes it then.
            times: (B, T) in seconds, when each feature frame is; NaN is allowed in padding.
                Give them in float64, whose precision is used: an hour needs it.
                Default: frame i at i · ``frame_shift``.

        Returns:
            (B, ⌈T / 3⌉, output_size), the (B,) frames of each utterance ⌈ilens / 3⌉, and None.
            With ``interctc_layer_idx`` the first is a pair: that, and for each of these layers
            its number and its output.

        Raises:
            TooShortUttError: there is no frame at all (on a GPU: T is 0); ``asr_inference`` then
                writes an empty result.
            ValueError: shapes that do not fit; conditioning without ``ctc`` or outside ESPnet's
                model; lengths beyond T, or times of real frames that are NaN or infinite (on CUDA
                see :func:`cape_plugins.positions.check_values`).
        """
        features = self.front.conv.in_channels
        if xs_pad.ndim != 3 or xs_pad.shape[2] != features:
            raise ValueError(f"features must be (B, T, {features}), got {tuple(xs_pad.shape)}")
        times, padding = self.real_times(xs_pad, ilens, times)
        olens = subsampled(ilens.to(xs_pad.device))

        x = self.front(xs_pad, padding)
        positions = augmented(self.position, times[:, ::STRIDE])
        x = self.dropout(self.position.add(x, positions / self.position_unit))
        positions = self.prepare(positions)
        index = torch.arange(x.shape[1], device=x.device)
        # an empty utterance sees its first (empty) frame: attention to nothing could be NaN
        visible = index < olens.clamp(min=1)[:, None]
        visible = visible[:, None, None, :]  # (B, heads, query, key)
        kept = self._draw_kept(x.device)
        intermediate = []
        for number, layer in enumerate(self.layers, start=1):
            x = layer(x, visible, kept[number - 1], positions)
            if number in self.interctc_layer_idx:
                normed = self.after_norm(x)
                intermediate.append((number, normed))
                if self.interctc_use_conditioning:
                    x = x + self._condition(normed, ctc)
        x = self.after_norm(x)
        return ((x, intermediate) if intermediate else x), olens, None

    def _draw_kept(self, device: torch.device) -> Sequence[Tensor | None]:
        """For each layer whether it is kept, drawn on the device; None where all are."""
        if not (self.training and self.layer_drop_rate):
            return [None] * len(self.layers)
        return (torch.rand(len(self.layers), device=device) >= self.layer_drop_rate).unbind()

    def _condition(self, x: Tensor, ctc: CTC | None) -> Tensor:
        """What the CTC makes of a layer's output, as channels."""
        if ctc is None or self.conditioning_layer is None:
            missing = "ctc" if ctc is None else "conditioning_layer, a Linear(vocabulary, channels)"
            raise ValueError(
                f"interctc_use_conditioning needs {missing}: ESPnet's ASR model gives it, "
                "outside of it do so yourself"
            )
        return self.conditioning_layer(ctc.softmax(x))


def _check_interctc(layers: Any, conditioning: bool, num_blocks: int) -> None:
    listed = isinstance(layers, Sequence) and not isinstance(layers, str)
    if not listed or not all(type(n) is int and 0 < n < num_blocks for n in layers):
        raise ValueError(
            f"interctc_layer_idx must list layers as integers from 1 to {num_blocks - 1}, one "
            f"below num_blocks={num_blocks}, got {layers!r}"
        )
    if conditioning and not layers:
        raise ValueError(
            "interctc_use_conditioning needs layers in interctc_layer_idx, got "
            f"interctc_use_conditioning=True and interctc_layer_idx={layers!r}"
        )
