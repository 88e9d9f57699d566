"""The options of our encoders: those about positions, in seconds, and checks of the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from espnet2.asr.encoder.conformer_encoder import TooShortUttError

from cape_plugins.checks import is_number
from cape_plugins.settings import SequenceSettings, option

# Seconds to each side of relative positions: in every layer (section 4.2), in the first (appendix)
RELPOS_CONTEXT, RELPOS_CONTEXT_FIRST = 26.8, 27.6


@dataclass(frozen=True, kw_only=True)
class SecondsSettings(SequenceSettings):
    """The options of ``encoder_conf`` about positions, which all our encoders take.

    Raises:
        ValueError: unknown ``pos``, a value out of range, or an option that ``pos`` does not take
            and that has not its default.
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
        "relpos: seconds to each side, beyond which distances share a vector; null is the paper's, "
        "26.8, and 27.6 for relpos_first. Counted in frames after subsampling",
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

    def frames(self, name: str, seconds: Any, spacing: float) -> int:
        """How many frames, ``spacing`` seconds apart, lie in the seconds of an option.

        Raises:
            ValueError: the variant takes the option, which is less than a frame.
        """
        if self.takes(name) and not (is_number(seconds) and seconds >= spacing):
            raise ValueError(
                f"{name} must be seconds ≥ {spacing:g}, a frame after subsampling, got {seconds!r}"
            )
        return max(1, round(seconds / spacing))


def check_sizes(chosen: Mapping[str, Any]) -> None:
    """Raise ValueError for sizes, rates or layers of intermediate CTC that are out of range."""
    for name in ("output_size", "attention_heads", "linear_units", "num_blocks"):
        check_count(name, chosen.get(name, 1))
    size, heads, blocks = (chosen[n] for n in ("output_size", "attention_heads", "num_blocks"))
    if size % heads or size % 2:
        raise ValueError(
            f"output_size must be even and divisible by attention_heads={heads}, got {size}"
        )
    for name in chosen:
        if name.endswith("_rate"):
            for rate in chosen[name] if isinstance(chosen[name], list) else [chosen[name]]:
                check_rate(name, rate)
    layers = chosen.get("interctc_layer_idx") or ()
    listed = isinstance(layers, Sequence) and not isinstance(layers, str)
    if not listed or not all(type(n) is int and 0 < n < blocks for n in layers):
        raise ValueError(
            f"interctc_layer_idx must list layers as integers from 1 to {blocks - 1}, one below "
            f"num_blocks={blocks}, got {layers!r}"
        )


def check_rate(name: str, rate: Any) -> None:
    """Raise ValueError unless a probability is at least 0 and below 1."""
    if not (is_number(rate) and 0 <= rate < 1):
        raise ValueError(f"{name} must be a number in [0, 1), got {rate!r}")


def check_count(name: str, value: object, *, least: int = 1) -> None:
    """Raise ValueError unless a setting is an integer of at least so much."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer ≥ {least}, got {value!r}")


def check_long_enough(size: int, least: int, unit: str) -> None:
    """Raise TooShortUttError, upon which asr_inference writes an empty result."""
    if size < least:
        message = f"has {size} {unit} and needs at least {least}, return empty results"
        raise TooShortUttError(message, size, least)
