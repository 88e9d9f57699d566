"""The options of ``cape_transformer``: all of fairseq's Transformer, and CAPE's.

A flat dataclass, so that one definition serves the command line, Hydra and checkpoints. fairseq's
own nested ``TransformerConfig`` cannot be registered: its command line ignores the sizes, and its
checkpoints need pickled classes.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer.transformer_config import (
    DecoderConfig,
    EncDecBaseConfig,
    QuantNoiseConfig,
)
from omegaconf import II

from cape_plugins.augment import Augmentation, is_number
from cape_plugins.embedding import VARIANTS, check_variant
from cape_plugins.sinusoid import check_dim

SOURCE_BOS = ("auto", "true", "false")

_NESTED = {
    "encoder": EncDecBaseConfig,
    "decoder": DecoderConfig,
    "quant_noise": QuantNoiseConfig,
}

# fairseq's own switches of positions, which would contradict --pos
_REPLACED = {
    "no_token_positional_embeddings": "--pos nopos",
    "encoder_learned_pos": "--pos abspos",
    "decoder_learned_pos": "--pos abspos",
}


def _flatten() -> type[FairseqDataclass]:
    """TransformerConfig without nesting: ``encoder.layers`` becomes ``encoder_layers``."""
    flat: list[tuple[str, Any, Any]] = []
    for outer in dataclasses.fields(TransformerConfig):
        if outer.name in _NESTED:
            inner = dataclasses.fields(_NESTED[outer.name])
            flat += [_flat_field(f, f"{outer.name}_") for f in inner if f.name != "_name"]
        elif outer.name != "_name":
            flat.append(_flat_field(outer, ""))
    return dataclasses.make_dataclass("FlatTransformerConfig", flat, bases=(FairseqDataclass,))


def _flat_field(of: Any, prefix: str) -> tuple[str, Any, Any]:
    default = of.default
    if isinstance(default, str) and default.startswith("${model."):
        default = II("model.decoder_embed_dim")  # the one thing that fairseq interpolates
    if of.default_factory is not dataclasses.MISSING:
        made = field(default_factory=of.default_factory, metadata=of.metadata)
    else:
        made = field(default=default, metadata=of.metadata)
    return prefix + of.name, of.type, made


@dataclass
class CapeTransformerConfig(_flatten()):  # type: ignore[misc]
    """fairseq's Transformer options, flat, and how positions enter the model.

    The defaults of CAPE are those of the paper's translation experiments (section 4.3): Δ = 5 and
    ε = 0.5 tokens, no λ, source positions scaled by the training set's ratio of lengths.
    """

    pos: ChoiceEnum(list(VARIANTS)) = field(  # type: ignore[valid-type]
        default="cape", metadata={"help": "positional embedding"}
    )
    max_global_shift: float = field(
        default=5.0,
        metadata={"help": "CAPE: the shift of a sentence pair is uniform in +- this many tokens"},
    )
    max_local_shift: float = field(
        default=0.5,
        metadata={"help": "CAPE: the shift of each token is uniform in +- this many tokens"},
    )
    max_global_scale: float = field(
        default=1.0,
        metadata={"help": "CAPE: the scale of a sentence pair is log-uniform in [1/this, this]"},
    )
    source_scale: float = field(
        default=0.0,
        metadata={
            "help": "CAPE: distance between neighbouring source tokens, that between target "
            "tokens being 1; 0: tokens in target / tokens in source of the training set"
        },
    )
    source_bos: ChoiceEnum(list(SOURCE_BOS)) = field(  # type: ignore[valid-type]
        default="auto",
        metadata={"help": "begin the source with BOS, as the target does; auto: for cape only"},
    )


def check_options(options: Mapping[str, Any]) -> None:
    """Check the options that this model adds or restricts, whatever ``pos`` is.

    Args:
        options: name → value; what is absent has its default.

    Raises:
        ValueError: a value is out of range; says which are allowed.
    """
    defaults = CapeTransformerConfig()
    values = {f.name: getattr(defaults, f.name) for f in dataclasses.fields(defaults)} | {
        name: value for name, value in options.items() if value is not None
    }
    check_variant(str(values["pos"]))
    Augmentation(values["max_global_shift"], values["max_local_shift"], values["max_global_scale"])
    source_scale = values["source_scale"]
    if not (is_number(source_scale) and source_scale >= 0):
        raise ValueError(
            f"source_scale must be a finite number > 0, or 0 to count it from the training set, "
            f"got {source_scale!r}"
        )
    if str(values["source_bos"]) not in SOURCE_BOS:
        raise ValueError(
            f"source_bos must be one of {', '.join(SOURCE_BOS)}, got {values['source_bos']!r}"
        )
    for name in ("encoder_embed_dim", "decoder_embed_dim"):
        try:
            check_dim(values[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    for name, instead in _REPLACED.items():
        if values[name]:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} is replaced by {instead} in cape_transformer")


def needs_source_bos(pos: str, source_bos: str) -> bool:
    """Whether the source begins with BOS; ``auto`` means for cape only, as in the paper."""
    return source_bos == "true" or (source_bos == "auto" and pos == "cape")
