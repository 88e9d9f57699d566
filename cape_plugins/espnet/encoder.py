"""ESPnet's Conformer, E-Branchformer and Branchformer with positions in seconds.

Classes, options and weights stay ESPnet's, also in ``cape_transformer`` (paper/transformer.py).
After ESPnet has built its modules, we change them:

- our positional embedding replaces ESPnet's; its positions are the frames' seconds after
  subsampling;
- our attention replaces ESPnet's and keeps its weights;
- convolutions, lengths and the statistics of batch norm leave padding out.
"""

import functools
import inspect
import logging
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from espnet2.asr.encoder.abs_encoder import AbsEncoder
from espnet2.asr.encoder.branchformer_encoder import BranchformerEncoder
from espnet2.asr.encoder.conformer_encoder import ConformerEncoder, PositionalEncoding
from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoder
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cape_plugins import variants
from cape_plugins.attention import AttentionSettings, PositionalAttention
from cape_plugins.checks import check_values, is_traced
from cape_plugins.embedding import PositionalEmbedding
from cape_plugins.espnet.attention import CapeMultiHeadedAttention, MultiHeadedAttention
from cape_plugins.espnet.options import (
    ESPNETS,
    SecondsSettings,
    attention_option,
    check_long_enough,
    encoder_conf,
    parameters,
    position_settings,
)
from cape_plugins.espnet.padding import hide_padding, replace
from cape_plugins.mark import VariantMark
from cape_plugins.positions import exact, frame_times, widest
from cape_plugins.ranks import generator_of_rank


class SignatureOfConf:
    """What --print_config lists of an encoder class: the options of its ``encoder_conf``."""

    def __get__(self, encoder: Any, kind: Any) -> inspect.Signature:
        return inspect.signature(kind.conf())


class InSeconds(AbsEncoder):
    """ESPnet's encoder, with any ``pos`` of the table in place of its own positions.

    A subclass has ESPnet's class as the base after this one, and names it in ``espnets``.

    Args:
        input_size: feature channels; ESPnet passes it.
        options: ``encoder_conf``: the options of ESPnet's class, and the fields of
            :class:`cape_plugins.espnet.options.SecondsSettings`.

    Attributes:
        espnets: ESPnet's class.
        defaults: of options, in place of ESPnet's or besides them.
        fixed: options of ESPnet's class that users cannot give, and their values.
        own_scale: ``content_scale`` unless given; None is ESPnet's, √channels.

    Raises:
        ValueError: a value is out of range, or an option is given that ``pos`` does not take.
        TypeError: an option that neither ESPnet's class nor we have.
    """

    __signature__ = SignatureOfConf()
    espnets: ClassVar[type[AbsEncoder]]
    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    fixed: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    own_scale: ClassVar[float | None] = None
    embed: nn.Module
    frame_shift: float  # seconds between feature frames, where no times are given
    longest: float = math.inf  # seconds, beyond which a recording is far longer than Δ covers

    @classmethod
    def conf(cls) -> type:
        """The dataclass of ``encoder_conf``."""
        return encoder_conf(cls.espnets, cls.defaults, cls.fixed)

    @classmethod
    def make_front(cls, conf: Any) -> nn.Module | None:
        """Subsampling in place of ESPnet's, features (B, T, channels) → content; None keeps it."""
        return None

    def __init__(self, input_size: int, **options: Any) -> None:
        conf: Any = self.conf()(input_size=input_size, **options)
        known = parameters(self.espnets)
        try:
            settings = position_settings(conf, self.espnets)
            front = self.make_front(conf)
            theirs = {**self.defaults, **options, **self.fixed}
            if conf.pos != ESPNETS:
                theirs |= {"pos_enc_layer_type": "abs_pos", attention_option(known): "selfattn"}
            super().__init__(input_size, **{k: v for k, v in theirs.items() if k in known})
            self._adapt(input_size, front, conf)
            if self.pos != ESPNETS:
                self.install_positions(settings, conf.attention_heads)
        except ValueError as error:
            raise ValueError(f"encoder_conf: {error}") from None

    def _adapt(self, input_size: int, front: nn.Module | None, conf: Any) -> None:
        """Change ESPnet's encoder as every ``pos`` needs it."""
        unfit = input_size != self.output_size() or self.embed is None
        if getattr(conf, "input_layer", "linear") is None and unfit:
            raise ValueError(
                "input_layer: null leaves features as they are, to which no positions can be "
                "added: choose another, such as conv2d or linear"
            )
        if front is not None:
            encoding = list(self.embed.children())[-1]  # ESPnet's, of positions
            self.embed = nn.Sequential(front, encoding)
        # ESPnet's subsampling takes a mask, a Sequential takes none
        self.embed_takes_mask = not isinstance(self.embed, nn.Sequential)
        self.stride, self.reach = measure(self.embed)
        hide_padding(self.encoders)
        self.takes_masks = "masks" in parameters(self.espnets.forward)
        self.pos, self.frame_shift = conf.pos, conf.frame_shift

    def install_positions(self, settings: SecondsSettings, heads: int) -> None:
        """Put our positions and attention where ESPnet's were."""
        (theirs,) = (m for m in self.embed.modules() if isinstance(m, PositionalEncoding))
        replace(self.embed, PositionalEncoding, lambda _: nn.Identity())
        self.dropout, root = theirs.dropout, theirs.xscale
        own_scale = root if self.own_scale is None else self.own_scale
        scale = own_scale if settings.content_scale is None else settings.content_scale
        self.scale = root if scale == "sqrt" else float(scale)

        channels, spacing = self.output_size(), self.stride * settings.frame_shift
        local, reach = settings.in_seconds(spacing)
        rows = settings.frames("abspos_context", settings.abspos_context, spacing)
        self.position = settings.embedding(channels, max_local_shift=local, max_length=rows)
        # a learnable table counts frames
        self.unit = spacing if settings.variant.adds == "table" else 1.0
        self.attention_settings = AttentionSettings(
            channels // heads,
            heads,
            unit=1 / settings.frequency_scale,
            frequency_scale=settings.frequency_scale,
            context=settings.frames("relpos_context", reach, spacing),
        )
        attentions = settings.attention_layers(len(self.encoders), self.attention_settings)
        for layer, attention in zip(self.encoders, attentions, strict=True):
            make = functools.partial(CapeMultiHeadedAttention.made_of, positional=attention)
            replace(layer, MultiHeadedAttention, make)
        self.mark = VariantMark(
            settings.pos,
            {**vars(settings), "max_local_shift": local, "relpos_context": reach},
            "encoder_conf {}:".format,
            advice="give another checkpoint or --output_dir (to start from its weights all the "
            "same: --init_param FILE:::encoder.mark)",
            added={"content_scale": (self.scale, own_scale)},
        )
        if settings.takes("max_global_shift") and settings.max_global_shift > 0:
            self.longest = 4 * settings.max_global_shift
        self.espnet_initialization_fn()

    def espnet_initialization_fn(self) -> None:
        """Draw the learnable positions anew, uniform in ± 0.1 as the authors do.

        ESPnet calls this by its name after the option ``init``, which draws all weights anew.
        """
        for module in self.modules():
            if isinstance(module, PositionalEmbedding) and module.table is not None:
                nn.init.uniform_(module.table, -0.1, 0.1)
            elif isinstance(module, PositionalAttention):
                module.reset_parameters()

    def forward(
        self,
        xs_pad: Tensor,
        ilens: Tensor,
        prev_states: Tensor | None = None,
        *,
        times: Tensor | None = None,
        **theirs: Any,
    ) -> tuple[Any, Tensor, None]:
        """Encode.

        Args:
            xs_pad: (B, T, input_size) features; what lies beyond an utterance's end is ignored.
            ilens: (B,) frames of each utterance; ESPnet wants the longest to have T.
            prev_states: unused, part of ESPnet's interface (streaming).
            times: (B, T), the time of each feature frame in seconds; use float64 for recordings of
                an hour. NaN is allowed in padding. Default: frame i at i · ``frame_shift``.
            theirs: other arguments of ESPnet's forward, such as ``ctc``.

        Returns:
            As ESPnet's: (B, T', output_size), with intermediate CTC a tuple of that and a list of
            (layer number, output); (B,) frames; None.

        Raises:
            TooShortUttError: T is too short for subsampling; asr_inference writes an empty result.
            ValueError: shapes do not fit; a length exceeds T, or the time of a real frame is not
                finite (on CUDA: :func:`cape_plugins.checks.check_values`).
        """
        times, padding = self._real_times(xs_pad, ilens, times)  # (B, T) both
        features = xs_pad.masked_fill(padding if xs_pad.ndim == 2 else padding[..., None], 0)
        if 0 in getattr(self, "gradient_checkpoint_layers", ()):
            x = checkpoint(self._subsample, features, use_reentrant=False)
        else:
            x = self._subsample(features)  # (B, T', output_size)
        padding = padding[:, self.reach :: self.stride]  # (B, T')
        if self.pos != ESPNETS:
            middle = self.reach // 2  # of the feature frames that a frame is made of
            seconds = times[:, middle : times.shape[1] - middle : self.stride]
            seconds = seconds.masked_fill(padding, math.nan)
            x, positions = self.embed_seconds(x * self.scale, seconds)
            x = self.dropout(x)
            x = x if positions is None else (x, positions)
        if self.takes_masks:
            theirs.setdefault("masks", padding)
        lengths = (~padding).sum(1)
        return self.espnets.forward(_Subsampled(self, x), features, lengths, prev_states, **theirs)

    def _subsample(self, features: Tensor) -> Any:
        """(B, T, input_size) → (B, T', output_size), with ``espnet_rel_pos`` and its encoding."""
        return self.embed(features, None)[0] if self.embed_takes_mask else self.embed(features)

    def embed_seconds(self, x: Tensor, seconds: Tensor) -> tuple[Tensor, Tensor | None]:
        """Augment positions, with draws of this process alone, and add their embedding.

        ``x`` is (B, N, channels), ``seconds`` (B, N) with NaN in padding. Returns ``x`` with
        positions, and the positions for the attention of each layer, or None.
        """
        generator = generator_of_rank(seconds.device) if self.training else None
        # the batch's size as a shape: len() would fix it in torch.export
        moved = self.position.augment(seconds, seconds.shape[0], generator=generator)
        prepared = variants.prepare(
            self.pos,
            moved,
            self.attention_settings,
            hidden=lambda: seconds.isnan()[:, None],
            dtype=x.dtype,
        )
        return self.position.add(x, moved / self.unit), prepared

    def _real_times(
        self, features: Tensor, ilens: Tensor, times: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(B, T) times of feature frames, NaN in padding, and a bool (B, T), True in padding."""
        batch, frames = features.shape[:2]
        if ilens.shape != (batch,):
            raise ValueError(f"ilens must be ({batch},), got {tuple(ilens.shape)}")
        check_long_enough(frames, self.reach + 1, "frames")
        check_values(
            ilens, lambda: (ilens >= 0) & (ilens <= frames), f"ilens must lie in [0, T={frames}]"
        )
        ilens = ilens.to(features.device)
        padding = torch.arange(frames, device=features.device) >= ilens[:, None]
        if not is_traced():
            self._warn_of_length(frames * self.frame_shift)
        if times is None:
            dtype = widest(features.device)
            return frame_times(ilens, self.frame_shift, frames, dtype=dtype), padding
        if times.shape != (batch, frames):
            raise ValueError(f"times must be ({batch}, {frames}), got {tuple(times.shape)}")
        times = exact(times)
        check_values(
            times,
            lambda: times.isfinite() | padding,
            "times of real frames must be numbers, not infinite; NaN is for padding only",
        )
        return times.masked_fill(padding, math.nan), padding

    def _warn_of_length(self, seconds: float) -> None:
        """Warn once of a recording that is far longer than what Δ covers."""
        if seconds > self.longest:
            logging.warning(
                f"a recording of {seconds:.0f} s reaches ± {seconds / 2:.0f} s around its centre, "
                f"far beyond encoder_conf max_global_shift: {self.longest / 4:g}: train with "
                f"max_global_shift ≥ {seconds / 2:.0f}"
            )
            self.longest = math.inf


class _Subsampled:
    """Passed as ``self`` to ESPnet's forward; its ``embed`` returns our subsampled input.

    ESPnet's forward subsamples by ``embed``, and knows no times. It passes the result of ``embed``,
    content or (content, positions), through the layers. Each layer hands the positions to its
    attention, as it does with ESPnet's relative encoding. All else is the encoder's.
    """

    def __init__(self, encoder: nn.Module, x: Any) -> None:
        self.encoder, self.x = encoder, x

    def embed(self, features: Tensor) -> Any:
        """(B, T', channels), or that and the positions (B, T', …)."""
        return self.x

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)


def measure(embed: nn.Module) -> tuple[int, int]:
    """Stride and reach of a subsampling: output i sees inputs stride · i … stride · i + reach."""
    stride, reach = 1, 0
    for module in embed.modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d)):
            reach += (module.kernel_size[0] - 1 - 2 * int(module.padding[0])) * stride
            stride *= module.stride[0]
    return stride, reach


class CapeConformerEncoder(InSeconds, ConformerEncoder):
    """``encoder: cape_conformer``."""

    espnets = ConformerEncoder


class CapeEBranchformerEncoder(InSeconds, EBranchformerEncoder):
    """``encoder: cape_e_branchformer``."""

    espnets = EBranchformerEncoder


class CapeBranchformerEncoder(InSeconds, BranchformerEncoder):
    """``encoder: cape_branchformer``."""

    espnets = BranchformerEncoder
