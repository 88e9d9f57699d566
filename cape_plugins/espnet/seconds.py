"""What our encoders share: options that say how frames know their time, and seconds of frames."""

import dataclasses
import logging
import math
from dataclasses import dataclass
from typing import Any

import torch
from espnet2.asr.encoder.abs_encoder import AbsEncoder
from torch import Tensor, nn

from cape_plugins import variants
from cape_plugins.attention import PositionalAttention
from cape_plugins.embedding import PositionalEmbedding1d
from cape_plugins.espnet.mark import VariantMark
from cape_plugins.logn import check_logn
from cape_plugins.positions import (
    can_look_at,
    check_positive,
    check_values,
    frame_times,
    is_number,
    widest,
)
from cape_plugins.ranks import generator_of_rank

try:
    from espnet.nets.pytorch_backend.transformer.subsampling import TooShortUttError
except ImportError:  # ESPnet after 202511
    from espnet2.legacy.nets.pytorch_backend.transformer.subsampling import TooShortUttError

# The paper speeds up the frequencies 30 times, because positions are seconds (section 4.2).
FREQUENCY_SCALE = 30.0

# Seconds to each side: of relative positions in every layer (section 4.2), and in the first layer
# only (appendix).
RELPOS_CONTEXT, RELPOS_CONTEXT_FIRST = 26.8, 27.6


@dataclass(frozen=True, kw_only=True)
class PositionSettings:
    """The options of ``encoder_conf`` about positions, which all our encoders take.

    Attributes:
        pos: a variant of :mod:`cape_plugins.variants`: ``nopos``, ``sinpos``, ``abspos``
            (learnable), ``relpos`` (learnable, in each layer), ``relpos_first`` (in the first layer
            only), ``cape``, ``rope`` (rotary), ``cape_rope`` (rotary, positions augmented), …
            Of the options below it takes those that the table lists for it; the others must have
            their defaults.
        max_global_shift: Δ in seconds, uniform in ± this; 30 in the authors' code, so that the
            interval covers the paper's 60 s. A recording of more than twice the interval is
            warned of, once, unless Δ is 0. Refused in ``cape_rope``, whose attention sees
            distances alone.
        max_local_shift: ε in seconds, uniform in ± this; None is half the spacing after the
            convolution, 15 ms at a frame shift of 10 ms and stride 3: the most that keeps the
            order at the nominal hop (``cape_fbank`` shortens some in training). More is warned of.
        max_global_scale: λ is log-uniform in [1 / this, this]; 1.1 for WSJ, 2 for TED-LIUM.
        abspos_context: seconds covered by the table of ``abspos``, 13.8 in the paper; later
            frames take their index modulo its size.
        relpos_context: seconds to each side in which ``relpos`` tells distances apart; those
            beyond count as the last. None is the paper's: 26.8, and 27.6 for ``relpos_first``.
            Distances are frames after the convolution, whatever ``times`` say.
        relpos_values: let ``relpos`` add learned vectors to the values too; the paper does not.
        random_range: seconds: in training ``random`` puts frames at sorted draws from 0 … this,
            and in evaluation spreads them over it.
        frequency_scale: multiplies all frequencies of sinusoids and rotations, 30 (section 4.2).
        attention_logn: with every ``pos``: multiply the logits of self-attention by log N / log
            of this, N the frames of an utterance after the convolution, see
            :mod:`cape_plugins.logn`; this is N in training. None: off, as in the paper.
        frame_shift: seconds between feature frames, the frontend's ``hop_length / fs``. Nothing
            can check it here, because ESPnet's frontend does not tell the encoder; the model
            ``cape_asr`` does.

    Raises:
        ValueError: a value is out of range, whatever ``pos`` is.
    """

    pos: str = "cape"
    max_global_shift: float = 30.0
    max_local_shift: float | None = None
    max_global_scale: float = 1.1
    abspos_context: float = 13.8
    relpos_context: float | None = None
    relpos_values: bool = False
    random_range: float = 60.0
    frequency_scale: float = FREQUENCY_SCALE
    attention_logn: int | None = None
    frame_shift: float = 0.01

    def __post_init__(self) -> None:
        try:
            variants.get(self.pos, variants.names(axes=1))
        except ValueError as error:
            raise ValueError(f"encoder_conf pos: {error}") from None
        if not isinstance(self.relpos_values, bool):
            raise ValueError(f"relpos_values must be true or false, got {self.relpos_values!r}")
        if not (is_number(self.frame_shift) and self.frame_shift > 0):
            raise ValueError(f"frame_shift must be seconds > 0, got {self.frame_shift!r}")
        # else one per axis
        if not (self.max_local_shift is None or is_number(self.max_local_shift)):
            raise ValueError(
                f"max_local_shift must be seconds or null, got {self.max_local_shift!r}"
            )
        check_positive("random_range", self.random_range, unit=" seconds")
        check_positive("frequency_scale", self.frequency_scale)
        check_logn(self.attention_logn)

    @property
    def variant(self) -> variants.Variant:
        """The row of the table."""
        return variants.get(self.pos)

    def refuse_options(self) -> None:
        """Raise ValueError for an option that ``pos`` does not take."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        variants.refuse_options(
            self.pos, dataclasses.asdict(self), defaults, "encoder_conf {}".format, axes=1
        )

    def unit(self, spacing: float) -> float:
        """Seconds of a position as the embedding counts them: a learnable table holds frames."""
        return spacing if self.variant.adds == "table" else 1.0

    def embedding(self, channels: int, spacing: float) -> PositionalEmbedding1d:
        """What is added to frames ``spacing`` seconds apart."""
        self._check_context("abspos_context", self.abspos_context, spacing)
        local = self.max_local_shift
        if "max_local_shift" in self.variant.options and (local or 0) > 0.501 * spacing:
            logging.warning(
                f"encoder_conf max_local_shift: {local:g} s is more than half of the "
                f"{spacing:g} s between frames after the convolution: frames change places. null "
                f"is {spacing / 2:g} s"
            )
        return PositionalEmbedding1d(
            channels,
            self.pos,
            max_global_shift=self.max_global_shift,
            max_local_shift=spacing / 2 if local is None else local,
            max_global_scale=self.max_global_scale,
            frequency_scale=self.frequency_scale,
            max_length=round(self.abspos_context / spacing),
            overflow="wrap",
            random_range=self.random_range,
        )

    def attentions(
        self, layers: int, *, head_dim: int, heads: int, spacing: float
    ) -> list[PositionalAttention | None]:
        """What sits in the self-attention of each layer; None is the host's own."""
        reach = self.relpos_context
        if reach is None:
            reach = RELPOS_CONTEXT_FIRST if self.variant.first_layer_only else RELPOS_CONTEXT
        self._check_context("relpos_context", reach, spacing)
        return [
            variants.attention_for(
                self.pos,
                layer,
                head_dim=head_dim,
                heads=heads,
                context=round(reach / spacing),
                values=self.relpos_values,
                frequency_scale=self.frequency_scale,
                logn=check_logn(self.attention_logn),
            )
            for layer in range(layers)
        ]

    def mark(self, embedding: PositionalEmbedding1d) -> VariantMark:
        """What tells the variant in a checkpoint."""
        return VariantMark(
            self.pos,
            max_global_shift=self.max_global_shift,
            max_local_shift=embedding.max_local_shift,
            max_global_scale=self.max_global_scale,
            random_range=self.random_range,
            frequency_scale=self.frequency_scale,
        )

    def longest(self) -> float:
        """Seconds of a recording that is far beyond Δ."""
        takes = "max_global_shift" in self.variant.taken(axes=1)
        return 4 * self.max_global_shift if takes and self.max_global_shift > 0 else math.inf

    def _check_context(self, name: str, seconds: Any, spacing: float) -> None:
        if not (is_number(seconds) and seconds >= spacing):
            raise ValueError(
                f"{name} must be seconds ≥ {spacing:g}, one frame after the convolution, "
                f"got {seconds!r}"
            )


def augmented(position: PositionalEmbedding1d, seconds: Tensor) -> Tensor:
    """What the variant makes of the frames' (B, N) seconds: drawn by each process for itself."""
    generator = generator_of_rank(seconds.device) if position.training and position.draws else None
    return position.augmented(seconds, len(seconds), generator=generator)


class InSeconds(AbsEncoder):
    """An encoder that takes the times of its frames; subclasses build and encode.

    Attributes:
        frame_shift: seconds between feature frames, for whom no times are given.
        longest: seconds of a recording to warn of.
    """

    frame_shift: float
    longest: float = math.inf

    def espnet_initialization_fn(self) -> None:
        """Draw the learnable positions anew, uniform in ± 0.1 as the authors do.

        ESPnet calls this by its name after the option ``init``, which draws all weights anew.
        """
        for module in self.modules():
            if isinstance(module, PositionalEmbedding1d) and module.table is not None:
                nn.init.uniform_(module.table, -0.1, 0.1)
            elif isinstance(module, PositionalAttention):
                module.reset_parameters()

    def real_times(
        self, features: Tensor, ilens: Tensor, times: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Seconds of feature frames, checked.

        Args:
            features: (B, T, …).
            ilens: (B,) frames of each utterance.
            times: (B, T), or None for frame i at i · ``frame_shift``.

        Returns:
            (B, T) times, NaN in padding, and a bool (B, T), True in padding.

        Raises:
            TooShortUttError: there is no frame at all (on a GPU: T is 0).
            ValueError: shapes that do not fit, lengths beyond T, or times of real frames that are
                NaN or infinite (on CUDA see :func:`cape_plugins.positions.check_values`).
        """
        batch, frames = features.shape[:2]
        if ilens.shape != (batch,):
            raise ValueError(f"ilens must be ({batch},), got {tuple(ilens.shape)}")
        looks = can_look_at(ilens) and ilens.numel() > 0
        if frames == 0 or (looks and not bool(ilens.any())):
            raise TooShortUttError("has no frame and needs at least 1, return empty results", 0, 1)
        check_values(
            ilens, lambda: (ilens >= 0) & (ilens <= frames), f"ilens must lie in [0, T={frames}]"
        )
        ilens = ilens.to(features.device)
        padding = torch.arange(frames, device=features.device) >= ilens[:, None]
        self._warn_of_length(frames)
        if times is None:
            dtype = widest(features.device)
            return frame_times(ilens, self.frame_shift, frames, dtype=dtype), padding
        if times.shape != (batch, frames):
            raise ValueError(f"times must be ({batch}, {frames}), got {tuple(times.shape)}")
        check_values(
            times,
            lambda: times.isfinite() | padding,
            "times of real frames must be numbers, not infinite; NaN is for padding only",
        )
        return times.masked_fill(padding, math.nan), padding

    def _warn_of_length(self, frames: int) -> None:
        """Say once that recordings are far longer than what Δ covers."""
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return
        seconds = frames * self.frame_shift
        if seconds > self.longest:
            logging.warning(
                f"a recording of {seconds:.0f} s reaches ± {seconds / 2:.0f} s around its centre, "
                f"far beyond encoder_conf max_global_shift: {self.longest / 4:g}: train with "
                f"max_global_shift ≥ {seconds / 2:.0f}"
            )
            self.longest = math.inf
