"""Wrong options fail before any data is read, saying what is allowed."""

from collections.abc import Mapping
from typing import Any

from fairseq.dataclass import FairseqDataclass

from cape_plugins.augment import Augmentation
from cape_plugins.embedding import check_variant
from cape_plugins.fairseq.admin import parse_scales
from cape_plugins.fairseq.config import POSITIONS, RELPOS_LAYERS, SOURCE_BOS
from cape_plugins.positions import is_number
from cape_plugins.sinusoid import check_dim

# fairseq's own switches of positions, which would contradict --pos
_REPLACED = {
    "no_token_positional_embeddings": "--pos nopos",
    "encoder_learned_pos": "--pos abspos",
    "decoder_learned_pos": "--pos abspos",
}

# these attend in ways that know no distances
_NOT_WITH_RELPOS = (
    "cross_self_attention",
    "encoder_xformers_att_config",
    "decoder_xformers_att_config",
)


def check_options(options: Mapping[str, Any], defaults: FairseqDataclass) -> None:
    """Check the options that our models add or restrict, whatever ``pos`` is.

    Args:
        options: name → value; what is absent has its default.
        defaults: a config of the model; only the options that it has are looked at.

    Raises:
        ValueError: a value is out of range, or two contradict each other.
    """
    values = {name: getattr(defaults, name) for name in defaults.__dataclass_fields__}
    values |= {k: v for k, v in options.items() if k in values and v is not None}
    check_variant(str(values["pos"]), POSITIONS)
    Augmentation(values["max_global_shift"], values["max_local_shift"], values["max_global_scale"])
    _check_relpos(values)
    _check_admin(values)
    if "source_scale" in values:
        _check_source(values)
    for name in ("encoder_embed_dim", "decoder_embed_dim"):
        if name in values:
            try:
                check_dim(values[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
    for name, instead in _REPLACED.items():
        if values.get(name):
            raise ValueError(
                f"{_flag(name)} is replaced by {instead} in the cape_transformer models"
            )


def _check_relpos(values: Mapping[str, Any]) -> None:
    context = values["relpos_context"]
    if isinstance(context, bool) or not isinstance(context, int) or context < 1:
        raise ValueError(f"relpos_context must be an integer ≥ 1, in tokens, got {context!r}")
    _check_choice("relpos_layers", values["relpos_layers"], RELPOS_LAYERS)
    if str(values["pos"]) == "relpos":
        for name in _NOT_WITH_RELPOS:
            if values.get(name):
                raise ValueError(
                    f"{_flag(name)} does not go with --pos relpos, which has a self-attention of "
                    "its own: leave it out, or choose another --pos"
                )


def _check_admin(values: Mapping[str, Any]) -> None:
    if values["admin_scales"] and not values["admin_init"]:
        raise ValueError("--admin-scales are for --admin-init: give both, or neither")
    if not values["admin_init"]:
        return
    for name in ("encoder_normalize_before", "decoder_normalize_before"):
        if values.get(name):
            raise ValueError(
                f"--admin-init is for post-norm models, {_flag(name)} makes this one pre-norm: "
                "leave out one of the two"
            )
    if values["admin_scales"]:
        parse_scales(values["admin_scales"])


def _check_source(values: Mapping[str, Any]) -> None:
    scale = values["source_scale"]
    if not (is_number(scale) and scale >= 0):
        raise ValueError(
            f"source_scale must be a finite number > 0, or 0 to count it from the training set, "
            f"got {scale!r}"
        )
    _check_choice("source_bos", values["source_bos"], SOURCE_BOS)


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if str(value) not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
