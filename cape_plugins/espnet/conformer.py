"""ESPnet's own encoders with our positions: Conformer, E-Branchformer, Branchformer.

They stay ESPnet's classes, options and weights; what changes is done to the modules they built:

- its positional encoding gives way to ours, of the seconds that frames have after subsampling;
- so does its attention, whose weights stay;
- what runs along time sees no padding: convolutions, lengths, and the statistics of batch norm.
"""

import functools
import inspect
import logging
import math
from typing import Any

import torch
from espnet2.asr.encoder.abs_encoder import AbsEncoder
from espnet2.asr.encoder.branchformer_encoder import BranchformerEncoder
from espnet2.asr.encoder.conformer_encoder import (
    ConformerEncoder,
    PositionalEncoding,
)
from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoder
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cape_plugins import variants
from cape_plugins.attention import AttentionSettings, PositionalAttention
from cape_plugins.checks import check_values
from cape_plugins.embedding import PositionalEmbedding
from cape_plugins.espnet.layers import EspnetAttention, MultiHeadedAttention, replace
from cape_plugins.espnet.padding import hide_padding
from cape_plugins.espnet.seconds import (
    RELPOS_CONTEXT,
    RELPOS_CONTEXT_FIRST,
    SecondsSettings,
    check_long_enough,
    check_sizes,
)
from cape_plugins.mark import VariantMark
from cape_plugins.positions import frame_times, widest
from cape_plugins.ranks import generator_of_rank
from cape_plugins.settings import split_options

OWN = "rel_pos"  # ESPnet's own relative positions


class InSeconds(AbsEncoder):
    """ESPnet's encoder, with any ``pos`` of the table in place of its own positions.

    ``encoder_conf`` takes the options of ESPnet's class, which mean what they mean there, and those
    of :class:`cape_plugins.espnet.seconds.SecondsSettings`. ``pos: rel_pos`` leaves ESPnet's own
    relative positions: then the encoder has ESPnet's weights, and gives what ESPnet's gives.

    - Recipes may keep ``pos_enc_layer_type: rel_pos``, ``rel_pos_type`` and ``rel_selfattn``:
      ``pos`` counts, they do not. ``zero_triu``, ``max_pos_emb_len`` and ``ctc_trim`` are for
      ``pos: rel_pos`` alone.
    - Content is scaled by √channels before positions are added, as ESPnet does for its own;
      ``content_scale`` is another factor.
    - A frame after subsampling is where the middle of what its convolutions see is.
    - Padding changes nothing, except with ``pos: rel_pos`` and ``rel_pos_type: legacy``
      (Conformer's default): then positions are counted from the padded end.

    A subclass names ESPnet's class as its last base. A constructor of its own names its options,
    in place of ``**options``; ``--print_config`` reads its signature, to which ours are added.

    Args:
        input_size: feature channels; ESPnet passes it.
        front: subsampling in place of ESPnet's, features (B, T, channels) → content.
        options: ``encoder_conf``.

    Raises:
        ValueError: a value is out of range, an option is given that ``pos`` does not take, or
            ``input_layer`` leaves the width of the features as it is.
        TypeError: an option that neither ESPnet's class nor we have.
    """

    espnets: type[AbsEncoder]
    embed: nn.Module
    frame_shift: float  # seconds between feature frames, where no times are given
    own_scale: float | None = None  # content_scale unless given; None is ESPnet's, √channels
    longest: float = math.inf  # seconds, beyond which a recording is far longer than Δ covers

    def __init_subclass__(cls) -> None:
        cls.espnets = cls.__bases__[-1]
        own = "__init__" in vars(cls)
        parameters = inspect.signature(cls if own else cls.espnets).parameters.values()
        ours = SecondsSettings.defaults()
        kinds = inspect.Parameter
        named = [p for p in parameters if p.kind is not kinds.VAR_KEYWORD and p.name not in ours]
        named += [kinds(name, kinds.KEYWORD_ONLY, default=ours[name]) for name in ours]
        cls.__signature__ = inspect.Signature(named)

    def __init__(self, input_size: int, front: nn.Module | None = None, **options: Any) -> None:
        try:
            self._build(input_size, front, options)
        except ValueError as error:
            raise ValueError(f"encoder_conf: {error}") from None

    def _build(self, input_size: int, front: nn.Module | None, options: dict[str, Any]) -> None:
        ours, theirs = split_options(SecondsSettings, options)
        parameters = inspect.signature(self.espnets).parameters
        if unknown := sorted(theirs.keys() - parameters.keys()):
            raise TypeError(f"encoder_conf: {type(self).__name__} has no {', '.join(unknown)}")
        defaults = SecondsSettings.defaults()
        defaults |= {name: parameter.default for name, parameter in parameters.items()}
        chosen = defaults | options
        pos = chosen["pos"]
        attention_type = next(name for name in parameters if name.endswith("attention_layer_type"))
        refused = {"pos_enc_layer_type", attention_type}
        if own := pos == OWN:
            refused |= SecondsSettings.defaults().keys() - {"pos", "frame_shift"}
            settings = SecondsSettings(pos="nopos", frame_shift=chosen["frame_shift"])
        else:
            variants.get(pos, (*variants.names(axes=1), OWN))
            refused |= {"zero_triu", "max_pos_emb_len", "ctc_trim"}
            settings = SecondsSettings(**ours)
            theirs |= {"pos_enc_layer_type": "abs_pos", attention_type: "selfattn"}
        for name in sorted(refused & options.keys()):
            if options[name] != defaults[name]:
                raise ValueError(
                    f"{name} = {options[name]!r} does not go with pos: {pos}: leave it out"
                )
        check_sizes(chosen)
        if "interctc_layer_idx" in theirs:
            theirs["interctc_layer_idx"] = list(theirs["interctc_layer_idx"] or ())
        super().__init__(input_size, **theirs)
        unequal = input_size != self.output_size()
        if chosen["input_layer"] is None and (unequal or self.embed is None):
            raise ValueError(
                "input_layer: null leaves features as they are, to which no positions can be "
                "added: choose another, such as conv2d or linear"
            )
        if front is not None:
            encoding = list(self.embed.children())[-1]  # ESPnet's, of positions
            self.embed = nn.Sequential(front, encoding)
        self.embed_takes_mask = not isinstance(self.embed, nn.Sequential)
        # after subsampling, frame i sees those from stride · i to stride · i + reach
        self.stride, self.reach = 1, 0
        for module in self.embed.modules():
            if isinstance(module, (nn.Conv1d, nn.Conv2d)):
                beyond = module.kernel_size[0] - 1 - 2 * int(module.padding[0])
                self.reach += beyond * self.stride
                self.stride *= module.stride[0]
        for layer in self.encoders:
            hide_padding(layer)
        self.takes_masks = "masks" in inspect.signature(self.espnets.forward).parameters
        self.pos, self.frame_shift = pos, settings.frame_shift
        self.scale, self.dropout = 1.0, nn.Identity()
        if not own:
            self._replace_positions(settings, chosen["attention_heads"])

    def _replace_positions(self, settings: SecondsSettings, heads: int) -> None:
        """Put our positions and attention where ESPnet's were."""
        (theirs,) = (m for m in self.embed.modules() if isinstance(m, PositionalEncoding))
        own_scale = theirs.xscale if self.own_scale is None else self.own_scale  # ESPnet's is √d
        scale = own_scale if settings.content_scale is None else settings.content_scale
        self.scale = theirs.xscale if scale == "sqrt" else float(scale)
        self.dropout = theirs.dropout
        replace(self.embed, PositionalEncoding, lambda _: nn.Identity())
        channels, spacing = self.output_size(), self.stride * settings.frame_shift
        local, reach = settings.max_local_shift, settings.relpos_context
        local = spacing / 2 if local is None else local
        if settings.takes("max_local_shift") and local > 0.501 * spacing:
            logging.warning(
                f"encoder_conf max_local_shift: {local:g} s is more than half of the {spacing:g} s "
                f"between frames after subsampling: frames change places. null is {spacing / 2:g} s"
            )
        if reach is None:
            reach = RELPOS_CONTEXT_FIRST if settings.variant.first_layer_only else RELPOS_CONTEXT
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
            replace(layer, MultiHeadedAttention, functools.partial(EspnetAttention, attention))
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
            times: (B, T) in seconds, when each feature frame is; NaN is allowed in padding.
                Give them in float64, whose precision is used: an hour needs it.
                Default: frame i at i · ``frame_shift``.
            theirs: what ESPnet's forward takes beside, such as ``ctc``.

        Returns:
            As ESPnet's: (B, T', output_size), or that and for each layer of intermediate CTC its
            number and its output; (B,) frames; None.

        Raises:
            TooShortUttError: T is too short for subsampling; asr_inference writes an empty result.
            ValueError: shapes that do not fit; lengths beyond T, or times of real frames that are
                NaN or infinite (on CUDA see :func:`cape_plugins.checks.check_values`).
        """
        times, padding = self._real_times(xs_pad, ilens, times)
        hidden = padding if xs_pad.ndim == 2 else padding[..., None]
        given: list[Any] = [xs_pad.masked_fill(hidden, 0)]
        given += [None] if self.embed_takes_mask else []  # we make masks ourselves
        if 0 in getattr(self, "gradient_checkpoint_layers", ()):
            x = checkpoint(self.embed, *given, use_reentrant=False)
        else:
            x = self.embed(*given)
        x = x[0] if self.embed_takes_mask else x
        padding = padding[:, self.reach :: self.stride]
        if self.pos != OWN:
            half = self.reach // 2
            seconds = times[:, half : times.shape[1] - half : self.stride]
            seconds = seconds.masked_fill(padding, math.nan)
            x, positions = self.add_positions(x * self.scale, seconds)
            x = self.dropout(x)
            x = x if positions is None else (x, positions)
        if self.takes_masks:
            theirs.setdefault("masks", padding)
        content = x[0] if isinstance(x, tuple) else x
        return self.espnets.forward(
            _Subsampled(self, x), content, (~padding).sum(1), prev_states, **theirs
        )

    def add_positions(self, x: Tensor, seconds: Tensor) -> tuple[Tensor, Tensor | None]:
        """Augment positions, each process by draws of its own, and add their embedding.

        Args:
            x: (B, N, channels) content.
            seconds: (B, N), NaN in padding.

        Returns:
            (B, N, channels), and what the attention of each layer gets as positions, or None.
        """
        generator = generator_of_rank(seconds.device) if self.training else None
        moved = self.position.augment(seconds, len(seconds), generator=generator)
        prepared = variants.prepare(self.pos, moved, self.attention_settings)
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
        """Warn once of a recording that is far longer than what Δ covers."""
        seconds = frames * self.frame_shift
        if torch.compiler.is_compiling() or torch.jit.is_tracing() or seconds <= self.longest:
            return
        logging.warning(
            f"a recording of {seconds:.0f} s reaches ± {seconds / 2:.0f} s around its centre, "
            f"far beyond encoder_conf max_global_shift: {self.longest / 4:g}: train with "
            f"max_global_shift ≥ {seconds / 2:.0f}"
        )
        self.longest = math.inf


class _Subsampled:
    """An encoder in ESPnet's forward, after its subsampling: ``embed`` returns what was made of it.

    So positions travel beside the content from here on, as those of ESPnet's relative encoding.

    Args:
        encoder: whose other attributes these are.
        x: (B, T', channels), or that and what the attention of each layer gets.
    """

    def __init__(self, encoder: nn.Module, x: Any) -> None:
        self.encoder = encoder
        self.x = x

    def embed(self, content: Tensor) -> Any:
        return self.x

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)


class CapeConformerEncoder(InSeconds, ConformerEncoder):
    """``encoder: cape_conformer``, ESPnet's Conformer."""


class CapeEBranchformerEncoder(InSeconds, EBranchformerEncoder):
    """``encoder: cape_e_branchformer``, ESPnet's E-Branchformer."""


class CapeBranchformerEncoder(InSeconds, BranchformerEncoder):
    """``encoder: cape_branchformer``, ESPnet's Branchformer."""
