"""The encoder ``cape_transformer``: a Transformer that knows time in seconds.

Paper: CAPE: Encoding Relative Positions with Continuous Augmented Positional Embeddings,
https://arxiv.org/abs/2106.03143, section 4.2.
"""

import math
from typing import Any

import torch
from espnet2.asr.encoder.abs_encoder import AbsEncoder
from torch import Tensor, nn

from cape_plugins.augment import is_number
from cape_plugins.embedding import PositionalEmbedding1d, check_variant
from cape_plugins.espnet.layers import STRIDE, ConvolutionalFront, TransformerLayer, subsampled
from cape_plugins.positions import can_look_at, check_positions, frame_times

# The paper speeds up the frequencies 30 times, because positions are seconds (section 4.2).
FREQUENCY_SCALE = 30.0


class CapeTransformerEncoder(AbsEncoder):
    """Convolution, positions in seconds, Transformer layers.

    Put it into a recipe as ``encoder: cape_transformer``; the arguments are ``encoder_conf``,
    named as in ESPnet's TransformerEncoder. The defaults are the paper's model (36 layers,
    section 4.2) with its regularisation for TED-LIUM; for WSJ it takes 0.4 for both dropouts.

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
        pos: ``nopos``, ``sinpos``, ``abspos`` (learnable) or ``cape``.
        max_global_shift: Δ in seconds, uniform in ± this; 30 in the authors' code, so that the
            interval covers the paper's 60 s.
        max_local_shift: ε in seconds, uniform in ± this; None is the most that keeps the order,
            half the spacing after the convolution: 15 ms at a frame shift of 10 ms.
        max_global_scale: λ is log-uniform in [1 / this, this]; 1.1 for WSJ, 2 for TED-LIUM.
        abspos_context: seconds covered by the table of ``abspos``, 13.8 in the paper; later
            frames take their index modulo its size.
        frame_shift: seconds between feature frames, the frontend's ``hop_length / fs``. Nothing
            can check it here: ESPnet's frontend does not tell the encoder.

    Raises:
        ValueError: a value is out of range, whatever ``pos`` is.
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
        pos: str = "cape",
        max_global_shift: float = 30.0,
        max_local_shift: float | None = None,
        max_global_scale: float = 1.1,
        abspos_context: float = 13.8,
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
        ):
            if not (is_number(rate) and 0 <= rate < 1):
                raise ValueError(f"{name} must be a number in [0, 1), got {rate!r}")
        if not isinstance(normalize_before, bool):
            raise ValueError(f"normalize_before must be true or false, got {normalize_before!r}")
        _check_pos(pos)
        if not (is_number(frame_shift) and frame_shift > 0):
            raise ValueError(f"frame_shift must be seconds > 0, got {frame_shift!r}")
        if not (max_local_shift is None or is_number(max_local_shift)):  # else one per axis
            raise ValueError(f"max_local_shift must be seconds or null, got {max_local_shift!r}")
        spacing = STRIDE * frame_shift
        if not (is_number(abspos_context) and abspos_context >= spacing):
            raise ValueError(
                f"abspos_context must be seconds ≥ {spacing:g}, one frame after the convolution, "
                f"got {abspos_context!r}"
            )

        self._output_size = output_size
        self.pos = pos
        self.frame_shift = frame_shift
        self.front = ConvolutionalFront(input_size, output_size, conv_dropout_rate)
        self.position = PositionalEmbedding1d(
            output_size,
            pos,
            max_global_shift=max_global_shift,
            max_local_shift=spacing / 2 if max_local_shift is None else max_local_shift,
            max_global_scale=max_global_scale,
            scale=FREQUENCY_SCALE,
            max_length=round(abspos_context / spacing),
            overflow="wrap",
        )
        if pos == "abspos":
            nn.init.uniform_(self.position.table, -0.1, 0.1)  # as in the authors' code
        self.dropout = nn.Dropout(positional_dropout_rate)
        self.layers = nn.ModuleList(
            TransformerLayer(
                output_size,
                attention_heads,
                linear_units,
                dropout_rate,
                attention_dropout_rate,
                normalize_before,
            )
            for _ in range(num_blocks)
        )
        self.after_norm = nn.LayerNorm(output_size) if normalize_before else nn.Identity()

    def output_size(self) -> int:
        """Channels of the output."""
        return self._output_size

    def forward(
        self,
        xs_pad: Tensor,
        ilens: Tensor,
        prev_states: Tensor | None = None,
        ctc: nn.Module | None = None,
        *,
        times: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, None]:
        """Encode.

        Args:
            xs_pad: (B, T, input_size) features; what lies beyond an utterance's end is ignored.
            ilens: (B,) frames of each utterance.
            prev_states: unused, part of ESPnet's interface (streaming).
            ctc: unused, part of ESPnet's interface (intermediate CTC).
            times: (B, T) in seconds, when each feature frame is; NaN is allowed in padding.
                Default: frame i at i · ``frame_shift``.

        Returns:
            (B, ⌈T / 3⌉, output_size), the (B,) frames of each utterance ⌈ilens / 3⌉, and None.

        Raises:
            ValueError: shapes that do not fit; infinite times, or NaN in real frames (both looked
                for on the CPU only).
        """
        features = self.front.conv.in_channels
        if xs_pad.ndim != 3 or xs_pad.shape[2] != features:
            raise ValueError(f"features must be (B, T, {features}), got {tuple(xs_pad.shape)}")
        batch, frames, _ = xs_pad.shape
        if ilens.shape != (batch,):
            raise ValueError(f"ilens must be ({batch},), got {tuple(ilens.shape)}")
        ilens = ilens.to(xs_pad.device)
        if times is None:
            times = frame_times(ilens, self.frame_shift, frames)
        elif times.shape != (batch, frames):
            raise ValueError(f"times must be ({batch}, {frames}), got {tuple(times.shape)}")
        padding = torch.arange(frames, device=xs_pad.device) >= ilens[:, None]  # (B, T)
        olens = subsampled(ilens)

        x = self.front(xs_pad, padding)
        x = self.dropout(self.position(x, self._positions(times, padding)))
        index = torch.arange(x.shape[1], device=x.device)
        # an empty utterance sees its first (empty) frame: attention to nothing could be NaN
        visible = index < olens.clamp(min=1)[:, None]
        visible = visible[:, None, None, :]  # (B, heads, query, key)
        for layer in self.layers:
            x = layer(x, visible)
        return self.after_norm(x), olens, None

    def _positions(self, times: Tensor, padding: Tensor) -> Tensor:
        """Positions after the convolution: seconds, or frame indices for ``abspos``."""
        if can_look_at(times) and bool((times.isnan() & ~padding).any()):
            raise ValueError("times must be numbers in real frames; NaN is for padding only")
        times = times.masked_fill(padding, math.nan)[:, ::STRIDE]
        check_positions(times)
        if self.pos == "abspos":
            return times / (STRIDE * self.frame_shift)
        return times


def _check_pos(pos: Any) -> None:
    try:
        check_variant(pos)
    except ValueError as error:
        raise ValueError(f"encoder_conf pos: {error}") from None
