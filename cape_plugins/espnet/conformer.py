"""ESPnet's own encoders with our positions: Conformer, E-Branchformer, Branchformer.

They stay ESPnet's classes, options and weights; what changes is done to the modules they built:

- its positional encoding gives way to ours, of the seconds that frames have after subsampling;
- for variants that sit in self-attention, so does its attention;
- what runs along time sees no padding: convolutions, lengths, and the statistics of batch norm.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

from espnet2.asr.encoder.branchformer_encoder import BranchformerEncoder
from espnet2.asr.encoder.conformer_encoder import ConformerEncoder, PositionalEncoding
from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoder
from torch import Tensor, nn

from cape_plugins import variants
from cape_plugins.attention import PositionalAttention
from cape_plugins.embedding import PositionalEmbedding1d
from cape_plugins.espnet.layers import MultiHeadedAttention, PlacedAttention, replace
from cape_plugins.espnet.padding import RealBatchNorm, RealFrames, hide_padding, show_padding
from cape_plugins.espnet.seconds import InSeconds, PositionSettings, augmented

OWN = "rel_pos"  # ESPnet's own relative positions
_OURS = {field.name: field.default for field in dataclasses.fields(PositionSettings)}


class _WithPositions(InSeconds):
    """ESPnet's encoder, with any ``pos`` of the table in place of its own positions.

    ``encoder_conf`` takes the options of ESPnet's class, which mean what they mean there, and those
    of :class:`cape_plugins.espnet.seconds.PositionSettings`. ``pos: rel_pos`` leaves ESPnet's own
    relative positions: then the encoder has ESPnet's weights, and gives what ESPnet's gives.

    - Recipes may keep ``pos_enc_layer_type: rel_pos``, ``rel_pos_type`` and
      ``selfattention_layer_type: rel_selfattn`` (``attention_layer_type``): ``pos`` stands in their
      place. ``zero_triu`` and ``max_pos_emb_len`` are for ``pos: rel_pos``, and so is ``ctc_trim``,
      in which ESPnet takes no other.
    - Content is scaled by √channels before positions are added, as ESPnet does for its own.
    - A frame after subsampling is where the middle of what its convolutions see is.
    - Padding changes nothing, in ESPnet 202511 too, whose convolutions see it. Except: with
      ``pos: rel_pos`` and ``rel_pos_type: legacy`` (Conformer's default) positions are counted from
      the padded end.
    - ``layer_drop_rate`` acts in E-Branchformer; ESPnet's Conformer takes it and ignores it.

    Raises:
        ValueError: a value is out of range, an option is given that ``pos`` does not take, or
            ``input_layer`` has no place for positions.
        TypeError: an option that neither ESPnet's class nor we have.
    """

    def __init_subclass__(cls) -> None:
        # --print_config reads the signature
        theirs = inspect.signature(cls.__bases__[-1]).parameters.values()
        ours = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, default in _OURS.items()
        ]
        cls.__signature__ = inspect.Signature([*theirs, *ours])

    def __init__(self, input_size: int, **options: Any) -> None:
        ours = {name: options.pop(name) for name in _OURS if name in options}
        pos = ours.get("pos", _OURS["pos"])
        own = pos == OWN
        if pos not in (known := (*variants.names(axes=1), OWN)):
            raise ValueError(
                f"encoder_conf pos: unknown variant {pos!r}: choose one of {', '.join(known)}"
            )
        settings = PositionSettings(**(ours | {"pos": "nopos"} if own else ours))
        parameters = inspect.signature(super().__init__).parameters
        attention_type = next(name for name in parameters if name.endswith("attention_layer_type"))
        refused = {"pos_enc_layer_type", attention_type}
        if own:
            refused |= _OURS.keys() - {"pos", "frame_shift"}
        else:
            settings.refuse_options()
            refused |= {"zero_triu", "max_pos_emb_len", "ctc_trim"}
        defaults: dict[str, Any] = {name: p.default for name, p in parameters.items()} | _OURS
        for name, value in (ours | options).items():
            if name in refused and value != defaults[name]:
                raise ValueError(
                    f"encoder_conf {name} = {value!r} does not go with pos: {pos}: leave it out"
                )
        if not own:
            options |= {"pos_enc_layer_type": "abs_pos", attention_type: "selfattn"}
        super().__init__(input_size, **options)

        # after subsampling, frame i sees those from stride · i to stride · i + reach
        self.stride, self.reach = 1, 0
        for module in () if self.embed is None else self.embed.modules():
            if isinstance(module, (nn.Conv1d, nn.Conv2d)):
                self.reach += (module.kernel_size[0] - 1) * self.stride
                self.stride *= module.stride[0]
        if self.reach:
            self.embed.register_forward_hook(RealFrames(self.stride, self.reach))
        for layer in self.encoders:
            layer.register_forward_pre_hook(show_padding)
            replace(layer, nn.BatchNorm1d, lambda theirs: RealBatchNorm(theirs.num_features))
            for module in layer.modules():
                if isinstance(module, nn.Conv1d) and module.kernel_size != (1,):
                    module.register_forward_pre_hook(hide_padding)
        self.takes_masks = "masks" in inspect.signature(super().forward).parameters
        self.frame_shift = settings.frame_shift
        if not own:
            self._place(settings, (defaults | options)["attention_heads"])

    def _place(self, settings: PositionSettings, heads: int) -> None:
        """Put positions where ESPnet's were."""
        size, spacing = self.output_size(), self.stride * settings.frame_shift
        position = settings.embedding(size, spacing)
        relatives = settings.attentions(
            len(self.encoders), head_dim=size // heads, heads=heads, spacing=spacing
        )
        in_attention = any(relative is not None for relative in relatives)
        prepare = (relatives[0] or PositionalAttention()).prepare if in_attention else None

        def place(theirs: PositionalEncoding) -> nn.Module:
            return _Position(position, settings.unit(spacing), prepare, theirs)

        if self.embed is None or not replace(self.embed, PositionalEncoding, place):
            raise ValueError(
                "encoder_conf input_layer: null has no place for positions: choose another"
            )
        if in_attention:
            for layer, relative in zip(self.encoders, relatives, strict=True):
                replace(layer, MultiHeadedAttention, functools.partial(PlacedAttention, relative))
        self.mark = settings.mark(position)
        self.longest = settings.longest()
        self.espnet_initialization_fn()

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
            As ESPnet's: (B, T', output_size), or that and intermediate outputs; (B,) frames; None.

        Raises:
            TooShortUttError: there is no frame after subsampling; ``asr_inference`` then writes an
                empty result.
            ValueError: see :meth:`cape_plugins.espnet.seconds.InSeconds.real_times`.
        """
        times, padding = self.real_times(xs_pad, ilens, times)
        half = self.reach // 2
        seconds = times[:, half : times.shape[1] - half : self.stride]
        seconds = seconds.masked_fill(padding[:, self.reach :: self.stride], math.nan)
        for module in () if self.embed is None else self.embed.modules():
            if isinstance(module, _Position):
                module.seconds = seconds
        if self.takes_masks:
            theirs.setdefault("masks", padding)
        hidden = padding if xs_pad.ndim == 2 else padding[..., None]
        return super().forward(xs_pad.masked_fill(hidden, 0), ilens, prev_states, **theirs)


class CapeConformerEncoder(_WithPositions, ConformerEncoder):
    """``encoder: cape_conformer``, ESPnet's Conformer."""


class CapeEBranchformerEncoder(_WithPositions, EBranchformerEncoder):
    """``encoder: cape_e_branchformer``, ESPnet's E-Branchformer."""


class CapeBranchformerEncoder(_WithPositions, BranchformerEncoder):
    """``encoder: cape_branchformer``, ESPnet's Branchformer."""


class _Position(nn.Module):
    """Stands in the place of ESPnet's positional encoding.

    Args:
        position: what adds positions.
        unit: seconds of one of its positions.
        prepare: what attention makes of the seconds, which then go on beside the content, as from
            ESPnet's relative encoding; None where attention is ESPnet's.
        theirs: what stood here; its scale of the content and its dropout stay.

    Attributes:
        seconds: (B, T), to be set before each forward; kept until the next, because activation
            checkpointing runs this again.
    """

    def __init__(
        self,
        position: PositionalEmbedding1d,
        unit: float,
        prepare: Callable[[Tensor], Tensor] | None,
        theirs: PositionalEncoding,
    ) -> None:
        super().__init__()
        self.position = position
        self.unit = unit
        self.prepare = prepare
        self.scale: float = theirs.xscale
        self.dropout = theirs.dropout
        self.seconds: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        assert self.seconds is not None
        seconds = augmented(self.position, self.seconds)
        x = self.dropout(self.position.add(x * self.scale, seconds / self.unit))
        return x if self.prepare is None else (x, self.prepare(seconds))
