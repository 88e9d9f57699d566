"""The options of our encoders, ``encoder_conf``: ours, about positions in seconds, and ESPnet's."""

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from espnet2.asr.encoder.conformer_encoder import TooShortUttError, get_activation

from cape_plugins import variants
from cape_plugins.checks import check_count, is_number
from cape_plugins.settings import SequenceSettings, option, split_options

OWN = "rel_pos"  # ESPnet's own relative positions

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


def split(
    espnets: type, options: Mapping[str, Any]
) -> tuple[SecondsSettings, dict[str, Any], dict[str, Any]]:
    """What ``encoder_conf`` says to one of our encoders, made of ESPnet's class ``espnets``.

    Returns:
        Our settings (with ``pos: rel_pos`` those of nopos); what ESPnet's class is built with; all
        options of both, with their defaults where they are not given.

    Raises:
        ValueError: a value is out of range, or an option does not go with ``pos``.
    """
    ours, theirs = split_options(SecondsSettings, options)
    known = {n: p.default for n, p in inspect.signature(espnets).parameters.items()}
    defaults = SecondsSettings.defaults() | known
    chosen = defaults | dict(options)
    pos = chosen["pos"]
    attention_type = next(name for name in known if name.endswith("attention_layer_type"))
    refused = {"pos_enc_layer_type", attention_type}
    if pos == OWN:
        settings = SecondsSettings(pos="nopos", frame_shift=chosen["frame_shift"])
        refused |= SecondsSettings.defaults().keys() - {"pos", "frame_shift"}
    else:
        variants.get(pos, (*variants.names(axes=1), OWN))
        settings = SecondsSettings(**ours)
        refused |= {"zero_triu", "max_pos_emb_len", "ctc_trim"}
        theirs |= {"pos_enc_layer_type": "abs_pos", attention_type: "selfattn"}
    for name in sorted(refused & options.keys() & defaults.keys()):
        if options[name] != defaults[name]:
            raise ValueError(
                f"{name} = {options[name]!r} does not go with pos: {pos}: leave it out"
            )
    check_espnets({name: chosen[name] for name in known})
    for name, value in theirs.items():
        if type(value) is int and isinstance(known.get(name), float):
            theirs[name] = float(value)  # YAML's 0, of which ESPnet asks the length
    if "interctc_layer_idx" in known:
        theirs["interctc_layer_idx"] = list(chosen["interctc_layer_idx"] or ())
    return settings, theirs, chosen


_COUNTS = ("output_size", "attention_heads", "linear_units", "num_blocks", "cgmlp_linear_units")


def check_espnets(chosen: Mapping[str, Any]) -> None:
    """Raise ValueError for what ESPnet's classes check late, without its name, or not at all."""

    def check(name: str, ok: bool, words: str) -> None:
        if not ok:
            raise ValueError(f"{name} must be {words}, got {chosen[name]!r}")

    kernels = [name for name in chosen if "kernel" in name]  # along time
    for name in (*_COUNTS, *kernels):
        check_count(name, chosen.get(name, 1))
    size, heads, blocks = (chosen[n] for n in ("output_size", "attention_heads", "num_blocks"))
    fits = f"even and divisible by attention_heads={heads}"
    check("output_size", size % heads == size % 2 == 0, fits)
    units = chosen.get("cgmlp_linear_units", 2)
    check("cgmlp_linear_units", units % 2 == 0, "even, as half of them are gates")
    for name in kernels:  # an even one would take a frame away
        check(name, chosen[name] % 2 == 1, "odd")
    for name, least, most in (
        ("interctc_layer_idx", 1, blocks - 1),
        ("gradient_checkpoint_layers", 0, blocks),
    ):
        layers, some = chosen.get(name), range(least, most + 1)
        listed = layers is None or isinstance(layers, Sequence)
        ok = listed and all(type(layer) is int and layer in some for layer in layers or ())
        check(name, ok, f"a list of integers from {least} to {most} (num_blocks={blocks})")
    for name, value in chosen.items():
        if "activation" in name:
            ok = _is_activation(value) or (name, value) == ("gate_activation", "identity")
            check(name, ok, "an activation of ESPnet, such as swish or relu")
        for each in value if isinstance(value, list) else [value]:
            if name.endswith("_rate"):
                check_rate(name, each)
            elif name == "cgmlp_weight":
                check(name, is_number(each) and 0 <= each <= 1, "a number in [0, 1]")


def _is_activation(name: Any) -> bool:
    try:
        return bool(get_activation(name))
    except (KeyError, TypeError):
        return False


def check_rate(name: str, rate: Any) -> None:
    """Raise ValueError unless a probability is at least 0 and below 1."""
    if not (is_number(rate) and 0 <= rate < 1):
        raise ValueError(f"{name} must be a number in [0, 1), got {rate!r}")


def check_long_enough(size: int, least: int, unit: str) -> None:
    """Raise TooShortUttError, upon which asr_inference writes an empty result."""
    if size < least:
        message = f"has {size} {unit} and needs at least {least}, return empty results"
        raise TooShortUttError(message, size, least)
