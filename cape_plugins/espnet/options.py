"""The options of our encoders, ``encoder_conf``: ours, about positions in seconds, and ESPnet's."""

import dataclasses
import inspect
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from espnet2.asr.encoder.conformer_encoder import TooShortUttError

from cape_plugins import variants
from cape_plugins.checks import is_number
from cape_plugins.settings import SequenceSettings, option

ESPNETS = "espnet_rel_pos"  # ESPnet's own relative positions

# Seconds to each side of relative positions: in every layer (section 4.2), in the first (appendix)
RELPOS_CONTEXT, RELPOS_CONTEXT_FIRST = 26.8, 27.6


@dataclass(frozen=True, kw_only=True)
class SecondsSettings(SequenceSettings):
    """The options of ``encoder_conf`` about positions, which all our encoders take.

    Raises:
        ValueError: a value is out of range, or an option that ``pos`` does not take is given.
    """

    max_global_shift: float = option(
        30.0, "cape: seconds, Δ of an utterance is uniform in ± this; the authors', who cover 60 s"
    )
    max_local_shift: float | None = option(
        None,
        "cape: seconds, ε of a frame is uniform in ± this; null is half the spacing after "
        "subsampling, the most that keeps the order of frames at the nominal hop",
    )
    max_global_scale: float = option(
        1.1, "cape: λ of an utterance is log-uniform in [1/this, this]; 1.1 for WSJ, 2 for TED-LIUM"
    )
    abspos_context: float = option(
        13.8, "abspos: seconds that its table covers; later frames begin again (section 4.2)"
    )
    relpos_context: float | None = option(
        None,
        "relpos: seconds to each side, beyond which distances share a vector; null is the paper's",
    )
    random_range: float = option(
        60.0, "random: seconds; frames are at sorted draws from 0 to this, in evaluation spread"
    )
    frequency_scale: float = option(
        30.0, "multiplies all frequencies of sinusoids and rotations; 30, as positions are seconds"
    )
    content_scale: float | Literal["sqrt"] | None = option(
        None,
        "what the front gives is multiplied by this before positions are added; sqrt is "
        "√output_size. null is 1 in cape_transformer (authors' code), and sqrt in ESPnet's "
        "encoders (its PositionalEncoding)",
    )
    frame_shift: float = option(
        0.01, "seconds between feature frames, hop_length / fs; model cape_asr checks that they are"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_number(self.frame_shift) and 0 < self.frame_shift <= 1):
            raise ValueError(
                f"frame_shift must be seconds > 0 and ≤ 1, such as 0.01, got {self.frame_shift!r}"
            )
        scale: Any = self.content_scale
        if not (scale in (None, "sqrt") or (is_number(scale) and scale > 0)):
            raise ValueError(
                f"content_scale must be a finite number > 0 or sqrt, √output_size, got {scale!r}"
            )
        self.refuse_options()

    def in_seconds(self, spacing: float) -> tuple[float, float]:
        """ε and the context of relative positions, where frames are ``spacing`` seconds apart."""
        local, reach = self.max_local_shift, self.relpos_context
        local = spacing / 2 if local is None else local
        if self.takes("max_local_shift") and local > 0.501 * spacing:
            logging.warning(
                f"encoder_conf max_local_shift: {local:g} s is more than half of the {spacing:g} s "
                f"between frames after subsampling: frames change places. null is {spacing / 2:g} s"
            )
        if reach is None:
            reach = RELPOS_CONTEXT_FIRST if self.variant.first_layer_only else RELPOS_CONTEXT
        return local, reach

    def frames(self, name: str, seconds: Any, spacing: float) -> int:
        """The frames, ``spacing`` seconds apart, in the seconds of the option called ``name``.

        Raises:
            ValueError: the variant takes the option, which is less than a frame.
        """
        if self.takes(name) and not (is_number(seconds) and seconds >= spacing):
            raise ValueError(
                f"{name} must be seconds ≥ {spacing:g}, a frame after subsampling, got {seconds!r}"
            )
        return max(1, round(seconds / spacing))


def parameters(espnets: type) -> dict[str, Any]:
    """The options of ESPnet's class and their defaults."""
    return {name: p.default for name, p in inspect.signature(espnets).parameters.items()}


def encoder_conf(espnets: type, defaults: Mapping[str, Any], fixed: Collection[str]) -> type:
    """The dataclass of an encoder's options: ESPnet's, those of ``defaults``, and ours.

    ``defaults`` go before those of ESPnet's class ``espnets``; ``fixed`` are options of it that
    users cannot give.
    """
    known = parameters(espnets) | dict(defaults) | SecondsSettings.defaults()
    fields: list[Any] = []
    for name, default in known.items():
        if default is inspect.Parameter.empty:
            fields.append((name, Any))
        elif name not in fixed:
            # no default of a dataclass is a list; --print_config writes a tuple as one
            default = tuple(default) if isinstance(default, list) else default
            fields.append((name, Any, dataclasses.field(default=default)))
    return dataclasses.make_dataclass("encoder_conf", fields, kw_only=True)


def position_settings(conf: Any, espnets: type) -> SecondsSettings:
    """What ``encoder_conf`` says about positions; with ``pos: espnet_rel_pos`` as nopos.

    Raises:
        ValueError: a value is out of range, or an option does not go with ``pos``.
    """
    pos, chosen = conf.pos, vars(conf)
    if pos == "rel_pos":
        raise ValueError(
            f"pos: rel_pos is ambiguous: choose {ESPNETS}, ESPnet's own relative positions, or "
            "relpos, the paper's learnable ones"
        )
    ours = {name: chosen[name] for name in SecondsSettings.defaults()}
    refused = {"pos_enc_layer_type", attention_option(parameters(espnets))}
    if pos == ESPNETS:
        refused |= ours.keys() - {"pos", "frame_shift"}
        ours = {"pos": "nopos", "frame_shift": conf.frame_shift}
    else:
        variants.get(pos, (*variants.names(axes=1), ESPNETS))
        refused |= {"zero_triu", "max_pos_emb_len", "ctc_trim"}
    defaults = {field.name: field.default for field in dataclasses.fields(conf)}
    settings = SecondsSettings(**ours)
    for name in sorted(refused & chosen.keys()):
        if chosen[name] != defaults[name]:
            raise ValueError(f"{name} = {chosen[name]!r} does not go with pos: {pos}: leave it out")
    return settings


def attention_option(known: Mapping[str, Any]) -> str:
    """The option of ESPnet's class that says which self-attention it has."""
    return next(name for name in known if name.endswith("attention_layer_type"))


def check_long_enough(size: int, least: int, unit: str) -> None:
    """Raise TooShortUttError, upon which asr_inference writes an empty result."""
    if size < least:
        message = f"has {size} {unit} and needs at least {least}, return empty results"
        raise TooShortUttError(message, size, least)
