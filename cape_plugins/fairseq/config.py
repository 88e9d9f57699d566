"""The options of the models: all of fairseq's Transformer, and those of positions and ADMIN.

Flat dataclasses, so that one definition serves the command line, Hydra and checkpoints. fairseq's
own nested ``TransformerConfig`` cannot be registered: its command line ignores the sizes, and its
checkpoints need pickled classes. That of its language model is flat already.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer.transformer_config import (
    DecoderConfig,
    EncDecBaseConfig,
    QuantNoiseConfig,
)
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from omegaconf import II, OmegaConf

from cape_plugins.embedding import VARIANTS

POSITIONS = (*VARIANTS, "relpos")
RELPOS_LAYERS = ("all", "first")
SOURCE_BOS = ("auto", "true", "false")

_NESTED = {
    "encoder": EncDecBaseConfig,
    "decoder": DecoderConfig,
    "quant_noise": QuantNoiseConfig,
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
class PositionConfig(FairseqDataclass):
    """What translation and language models share beyond fairseq's own options.

    The defaults of CAPE are those of the paper's translation experiments (section 4.3): Δ = 5 and
    ε = 0.5 tokens, no λ. So is the context of ``relpos``.
    """

    pos: ChoiceEnum(list(POSITIONS)) = field(  # type: ignore[valid-type]
        default="cape",
        metadata={"help": "positional embedding; relpos: relative attention (Shaw et al.)"},
    )
    max_global_shift: float = field(
        default=5.0,
        metadata={"help": "CAPE: the shift of a sample is uniform in +- this many tokens"},
    )
    max_local_shift: float = field(
        default=0.5,
        metadata={"help": "CAPE: the shift of each token is uniform in +- this many tokens"},
    )
    max_global_scale: float = field(
        default=1.0,
        metadata={"help": "CAPE: the scale of a sample is log-uniform in [1/this, this]"},
    )
    relpos_context: int = field(
        default=150,
        metadata={"help": "relpos: distances beyond +- this many tokens share a vector"},
    )
    relpos_values: bool = field(
        default=False, metadata={"help": "relpos: also add a vector of the distance to the values"}
    )
    relpos_layers: ChoiceEnum(list(RELPOS_LAYERS)) = field(  # type: ignore[valid-type]
        default="all",
        metadata={"help": "relpos: the layers with relative self-attention; first: of each side"},
    )
    admin_init: bool = field(
        default=False,
        metadata={"help": "ADMIN (Liu et al. 2020): scaled residuals, profiled before training"},
    )
    # OmegaConf 2.0 knows no `str | None`
    admin_scales: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "ADMIN: the scales, comma-separated, the encoder's residuals first; "
            "default: profile them on training data"
        },
    )


@dataclass
class CapeTransformerConfig(PositionConfig, _flatten()):  # type: ignore[misc]
    """fairseq's Transformer options, flat, and how positions enter the model.

    Source positions are scaled by the training set's ratio of lengths (paper, section 3.3).
    """

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


@dataclass
class CapeTransformerLanguageModelConfig(PositionConfig, TransformerLanguageModelConfig):
    """The options of fairseq's ``transformer_lm``, and how positions enter the model."""


def plain_options(cfg: Any) -> dict[str, Any]:
    """Name → value, of plain types; options that came after a checkpoint have their defaults."""
    defaults = OmegaConf.structured(PositionConfig())
    return {
        **OmegaConf.to_container(defaults, enum_to_str=True),
        **OmegaConf.to_container(cfg, resolve=True, enum_to_str=True),
    }


def needs_source_bos(pos: str, source_bos: str) -> bool:
    """Whether the source begins with BOS; ``auto`` means for cape only, as in the paper."""
    return source_bos == "true" or (source_bos == "auto" and pos == "cape")


def store_option(cfg: Any, name: str, value: Any) -> None:
    """Set an option where checkpoints will find it.

    fairseq hands ``build_model`` its own config for a named architecture, but a copy of it for
    the model's own name; a copy has the whole config as its parent.
    """
    cfg[name] = value
    whole = cfg._get_parent()
    if whole is not None and name in (whole.get("model") or {}):
        whole["model"][name] = value
