"""The options of our encoders, ``encoder_conf``: ours, about positions in seconds, and ESPnet's."""

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from espnet2.asr.encoder.conformer_encoder import TooShortUttError

from cape_plugins.checks import is_number
from cape_plugins.host import Host
from cape_plugins.options import POSITION, declared, option
from cape_plugins.variants import misspelt, names

ESPNET_REL_POS = "espnet_rel_pos"  # the pos of ESPnet's own relative positions
_TAKEN_BY_REL_POS = ("frame_shift",)

# Seconds to each side of relative positions: in every layer (section 4.2), in the first (appendix)
RELPOS_CONTEXT, RELPOS_CONTEXT_FIRST = 26.8, 27.6


@dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """The options that ESPnet's encoders alone have.

    Raises:
        ValueError: a value is out of range.
    """

    content_scale: float | Literal["sqrt"] | None = option(
        None,
        "what the front gives is multiplied by this before positions are added; sqrt is "
        "√output_size. null is 1 in cape_transformer (authors' code), and sqrt in ESPnet's "
        "encoders (its PositionalEncoding)",
    )
    frame_shift: float = option(
        0.01,
        "the time between feature frames, hop_length / fs; model cape_asr checks it",
        unit=POSITION,
    )

    def __post_init__(self) -> None:
        if not (is_number(self.frame_shift) and 0 < self.frame_shift <= 1):
            raise ValueError(
                "encoder_conf frame_shift must be seconds > 0 and ≤ 1, such as 0.01, got "
                f"{self.frame_shift!r}"
            )
        scale: Any = self.content_scale
        if not (scale in (None, "sqrt") or (is_number(scale) and scale > 0)):
            raise ValueError(
                "encoder_conf content_scale must be a finite number > 0 or sqrt, √output_size, got "
                f"{scale!r}"
            )


def parameters(function: Any) -> dict[str, Any]:
    """The parameters of a class or function of ESPnet, and their defaults."""
    return {name: one.default for name, one in inspect.signature(function).parameters.items()}


HOST = Host(
    axes=1,
    unit="seconds",
    defaults=MappingProxyType(
        dict(
            max_global_shift=30.0,  # the authors': 60 s are covered
            max_local_shift=None,  # half the spacing of frames, the most that keeps their order
            max_global_scale=1.1,  # WSJ; 2 for TED-LIUM (section 4.2)
            abspos_context=13.8,  # section 4.2; later frames begin again
            relpos_context=None,  # RELPOS_CONTEXT, or that of the first layer
            random_range=60.0,
            pose_range=60.0,
            frequency_scale=30.0,  # section 4.2
        )
    ),
    sets=frozenset({"alibi_unit", "mean_normalize", "overflow", "spread"}),
    spell="encoder_conf {}".format,
    advice="give another checkpoint or --output_dir (to start from its weights all the same: "
    "--init_param FILE:::encoder.positions.mark)",
)


#: our options and their defaults; those of other packages' variants are taken besides
OURS: dict[str, Any] = {
    "pos": "cape",
    **{name: HOST.default(one) for name, one in HOST.ours.items()},
    **{name: one.default for name, one in declared(EncoderOptions).items()},
}


def choose(
    given: Mapping[str, Any], known: Mapping[str, Any], fixed: Collection[str]
) -> tuple[dict[str, Any], EncoderOptions]:
    """What ``encoder_conf`` says about positions.

    Args:
        given: what the user gave.
        known: option of the encoder → default.
        fixed: options of ESPnet's class that users cannot give.

    Returns:
        The options of the variant, for ``HOST.positions``, and ours.

    Raises:
        ValueError: an option that nobody has, or that does not go with ``pos``, or a value is out
            of range.
    """
    pos, variants = given.get("pos", "cape"), (*names(HOST.axes), ESPNET_REL_POS)
    if pos not in variants:
        raise ValueError(
            f"encoder_conf pos: {pos!r} is unknown: choose one of {', '.join(variants)}"
        )
    for name in given.keys() & {*fixed}:
        raise ValueError(
            f"encoder_conf {name} cannot be set in cape_transformer, whose front and layers are "
            "the paper's: leave it out, or choose encoder: cape_conformer, which takes it"
        )
    of_espnet = known.keys() - OURS.keys()
    own = {name: given[name] for name in declared(EncoderOptions) if name in given}
    of_variant = {n: one for n, one in given.items() if n not in {"pos", *own, *of_espnet}}
    refused = {"pos_enc_layer_type", "selfattention_layer_type", "attention_layer_type"}
    if pos == ESPNET_REL_POS:
        refused |= OURS.keys() - {"pos", *_TAKEN_BY_REL_POS}
        for name in of_variant.keys() - known.keys():
            others = {*of_espnet, *_TAKEN_BY_REL_POS}
            raise ValueError(misspelt(name, pos, _TAKEN_BY_REL_POS, others, HOST.spell))
    else:
        refused |= {"zero_triu", "max_pos_emb_len", "ctc_trim"}
    for name in refused & given.keys() & known.keys():
        if given[name] != known[name]:
            raise ValueError(
                f"encoder_conf {name} = {given[name]!r} does not go with pos: {pos}: leave it out"
            )
    of_variant = {} if pos == ESPNET_REL_POS else HOST.options(pos, of_variant, of_espnet)
    return of_variant, EncoderOptions(**own)


def check_long_enough(size: int, least: int, unit: str) -> None:
    """Raise TooShortUttError, upon which asr_inference writes an empty result."""
    if size < least:
        message = f"has {size} {unit} and needs at least {least}, return empty results"
        raise TooShortUttError(message, size, least)
