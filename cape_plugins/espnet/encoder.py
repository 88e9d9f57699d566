"""ESPnet's Conformer, E-Branchformer and Branchformer with positions in seconds.

Classes, options and weights stay ESPnet's, also in ``cape_transformer`` (transformer.py).
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
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar

import torch
from espnet2.asr.encoder.abs_encoder import AbsEncoder
from espnet2.asr.encoder.branchformer_encoder import BranchformerEncoder
from espnet2.asr.encoder.conformer_encoder import ConformerEncoder, PositionalEncoding
from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoder
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cape_plugins import variants
from cape_plugins.added import Table
from cape_plugins.attention import without
from cape_plugins.checks import check_values, is_number, is_traced
from cape_plugins.espnet.attention import CapeMultiHeadedAttention, MultiHeadedAttention
from cape_plugins.espnet.loading import prepare_loading
from cape_plugins.espnet.options import (
    ESPNET_REL_POS,
    HOST,
    OURS,
    RELPOS_CONTEXT,
    RELPOS_CONTEXT_FIRST,
    EncoderOptions,
    check_long_enough,
    choose,
    parameters,
)
from cape_plugins.espnet.padding import hide_padding, replace
from cape_plugins.espnet.relies import RELIES
from cape_plugins.part import Part
from cape_plugins.places import exact, frame_times, widest
from cape_plugins.positions import Positions
from cape_plugins.relpos import RelativePositionsFirst


class SignatureOfConf:
    """What --print_config lists of an encoder class: the options of its ``encoder_conf``."""

    def __get__(self, encoder: Any, kind: Any) -> inspect.Signature:
        if encoder is not None:  # an instance's is that of its forward
            raise AttributeError
        kinds: Any = inspect.Parameter
        named = [kinds(n, kinds.KEYWORD_ONLY, default=one) for n, one in kind.known().items()]
        return inspect.Signature(named)


class InSeconds(AbsEncoder):
    """ESPnet's encoder, with any ``pos`` of the table in place of its own positions.

    A subclass has ESPnet's class as the base after this one, and names it in ``espnets``.

    Args:
        input_size: feature channels; ESPnet passes it.
        options: ``encoder_conf``: the options of ESPnet's class, and those of
            ``cape_plugins.espnet.options.HOST``.

    Attributes:
        espnets: ESPnet's class.
        defaults: of options, in place of ESPnet's or besides them.
        fixed: options of ESPnet's class that users cannot give, and their values.
        own_scale: ``content_scale`` unless given; None is ESPnet's, √channels.

    Raises:
        ValueError: a value is out of range, or an option is given that ``pos`` does not take.
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
    def known(cls) -> dict[str, Any]:
        """Option of ``encoder_conf`` → default."""
        every = {**parameters(cls.espnets), **cls.defaults, **OURS}
        return {name: default for name, default in every.items() if name not in cls.fixed}

    @classmethod
    def make_front(cls, conf: Any) -> nn.Module | None:
        """Subsampling in place of ESPnet's, features (B, T, channels) → content; None keeps it."""
        return None

    def __init__(self, input_size: int, **options: Any) -> None:
        RELIES.check()
        known = self.known()
        of_variant, own = choose(options, known, self.fixed)
        conf = SimpleNamespace(**{**known, **options, "input_size": input_size})
        front = self.make_front(conf)
        of_espnet = parameters(self.espnets)
        theirs = {**self.defaults, **options, **self.fixed}
        if conf.pos != ESPNET_REL_POS:
            plain = dict.fromkeys(("selfattention_layer_type", "attention_layer_type"), "selfattn")
            theirs |= {"pos_enc_layer_type": "abs_pos", **plain}
        super().__init__(input_size, **{k: v for k, v in theirs.items() if k in of_espnet})
        self.pos, self.frame_shift = conf.pos, own.frame_shift
        self._adapt(conf, front)
        self.positions: Positions | None = None
        if self.pos != ESPNET_REL_POS:
            self._install_positions(of_variant, own, conf.attention_heads)
        prepare_loading(self)

    def _adapt(self, conf: Any, front: nn.Module | None) -> None:
        """Change ESPnet's encoder as every ``pos`` needs it."""
        of_one_size = conf.input_size == conf.output_size and isinstance(self.embed, nn.Sequential)
        if getattr(conf, "input_layer", "linear") is None and not of_one_size:
            raise ValueError(
                "encoder_conf input_layer: null leaves features as they are, to which no positions "
                "can be added: choose another, such as conv2d or linear"
            )
        if front is not None:
            encoding = list(self.embed.children())[-1]  # ESPnet's, of positions
            self.embed = nn.Sequential(front, encoding)
        # ESPnet's subsampling takes a mask, a Sequential takes none
        self.embed_takes_mask = not isinstance(self.embed, nn.Sequential)
        self.stride, self.reach = measure(self.embed)
        hide_padding(self.encoders)
        self.takes_masks = "masks" in parameters(self.espnets.forward)

    def _install_positions(self, options: dict[str, Any], own: EncoderOptions, heads: int) -> None:
        """Put our positions and attention where ESPnet's were."""
        (theirs,) = (m for m in self.embed.modules() if isinstance(m, PositionalEncoding))
        replace(self.embed, PositionalEncoding, lambda _: nn.Identity())
        self.dropout, root = theirs.dropout, theirs.xscale
        own_scale = root if self.own_scale is None else self.own_scale
        scale = own_scale if own.content_scale is None else own.content_scale
        self.scale = root if scale == "sqrt" else float(scale)

        spacing = self.stride * own.frame_shift
        options = self._decide(options, spacing)
        remembers = {"content_scale": self.scale}
        if variants.get(self.pos, axes=1).has_positions:
            remembers["frame_shift"] = own.frame_shift
        try:
            self.positions = HOST.positions(
                self.pos,
                options,
                {"alibi_unit": 1 / 30},  # as sinusoids of seconds × 30 (section 4.2)
                dim=self.output_size(),
                heads=heads,
                layers=len(self.encoders),
                spacing=spacing,
                remembers=remembers,
            )
        except ValueError as error:
            raise ValueError(f"encoder_conf: {error}") from None
        for layer, attends in zip(self.encoders, self.positions.hand_over(), strict=True):
            positional = without(self.positions.sizes) if attends is None else attends
            make = functools.partial(CapeMultiHeadedAttention.made_of, positional=positional)
            replace(layer, MultiHeadedAttention, make)
        self.longest = 4 * (options.get("max_global_shift") or math.inf)
        self.espnet_initialization_fn()

    def _decide(self, options: dict[str, Any], spacing: float) -> dict[str, Any]:
        """The options, with what null means where frames are ``spacing`` seconds apart."""
        found = dict(options)
        if "relpos_context" in found and found["relpos_context"] is None:
            attends = variants.get(self.pos, axes=1).attends
            first = attends is not None and issubclass(attends, RelativePositionsFirst)
            found["relpos_context"] = RELPOS_CONTEXT_FIRST if first else RELPOS_CONTEXT
        if "max_local_shift" in found:
            local = found["max_local_shift"]
            local = found["max_local_shift"] = spacing / 2 if local is None else local
            if is_number(local) and local > 0.501 * spacing:
                logging.warning(
                    f"encoder_conf max_local_shift: {local:g} s is more than half of the "
                    f"{spacing:g} s between frames after subsampling: frames change places. null "
                    f"is {spacing / 2:g} s"
                )
        return found

    def espnet_initialization_fn(self) -> None:
        """Draw what is learned about positions anew; a table uniform in ± 0.1 as the authors do.

        ESPnet calls this by its name after the option ``init``, which draws all weights anew.
        """
        for module in self.modules():
            if isinstance(module, Table):
                nn.init.uniform_(module.table, -0.1, 0.1)
            elif isinstance(module, Part):
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
        mask = ~padding
        lengths = mask.sum(1)
        if self.positions is not None:
            middle = self.reach // 2  # of the feature frames that a frame is made of
            seconds = times[:, middle : times.shape[1] - middle : self.stride]
            seconds = seconds.masked_fill(padding, math.nan)
            mask[:, 0].fill_(True)  # of an empty utterance, whose attention to nothing could be NaN
            x, given = self.positions(x * self.scale, seconds, mask[:, None])
            x = self.dropout(x), given
        if self.takes_masks:
            theirs.setdefault("masks", padding)
        return self.espnets.forward(_Subsampled(self, x), features, lengths, prev_states, **theirs)

    def _subsample(self, features: Tensor) -> Any:
        """(B, T, input_size) → (B, T', output_size), with ``espnet_rel_pos`` and its encoding."""
        return self.embed(features, None)[0] if self.embed_takes_mask else self.embed(features)

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
    attention, as it does with ESPnet's relative encoding. All else is the encoder's. A copy of the
    encoder, as in fairseq, would do too, but torch.export knows no modules of a copy.
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
