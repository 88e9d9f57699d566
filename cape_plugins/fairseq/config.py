"""The models' options: all of fairseq's Transformer, and positions.

The dataclasses are flat. With fairseq's own nested ``TransformerConfig`` the command line would
ignore the sizes, and checkpoints would need pickled classes. The language model's config is flat
already.
"""

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Optional, cast, get_args, get_type_hints

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from omegaconf import II, OmegaConf

from cape_plugins import variants
from cape_plugins.attention import AttentionSettings
from cape_plugins.checks import check_count
from cape_plugins.settings import SequenceSettings, option, split_options

# at this position, neighbouring float32 numbers are 2 ** -7 of a token apart
FURTHEST = 1e5


@dataclass(frozen=True, kw_only=True)
class TokenSettings(SequenceSettings):
    """The options about positions, in tokens.

    CAPE's defaults, and relpos' context, are those of the paper's translation experiments (section
    4.3). Nothing is centred: sentences of a pair stay aligned at their first tokens, and decoding
    does not know the length.
    """

    mean_normalize: ClassVar[bool] = False

    max_global_shift: float = option(5.0, "cape: Δ of a sentence is uniform in ± this many tokens")
    max_local_shift: float = option(0.5, "cape: ε of a token is uniform in ± this many tokens")
    random_range: float = option(256.0, "random: in training tokens are drawn from 0 to this")
    relpos_context: int = option(150, "relpos: distances beyond ± this many tokens share a vector")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("relpos_context, in tokens,", self.relpos_context)
        for name in ("max_global_shift", "max_local_shift", "max_global_scale", "random_range"):
            if (value := getattr(self, name)) > FURTHEST:
                raise ValueError(
                    f"{name} must be at most {FURTHEST:g}, got {value:g}: beyond, float32 does not "
                    "tell neighbouring tokens apart; the paper's Δ is 5 to 50 tokens"
                )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "TokenSettings":
        """Take the options about positions from a model's options."""
        return cls(**split_options(cls, options)[0])

    def attention_settings(self, dim: int, heads: int) -> AttentionSettings:
        """Settings of a self-attention with ``dim`` channels and ``heads`` heads."""
        return AttentionSettings(
            head_dim=dim // heads,
            heads=heads,
            frequency_scale=self.frequency_scale,
            context=self.relpos_context,
        )


def _flatten() -> type[FairseqDataclass]:
    """TransformerConfig without nesting: ``encoder.layers`` becomes ``encoder_layers``."""
    flat: list[tuple[str, Any, Any]] = []
    for outer in dataclasses.fields(TransformerConfig):
        kind: Any = outer.type
        nested = dataclasses.is_dataclass(kind)
        prefix = f"{outer.name}_" if nested else ""
        for one in dataclasses.fields(kind) if nested else (outer,):
            made = copy.copy(one)
            if isinstance(made.default, str) and made.default.startswith("${model."):
                made.default = II("model.decoder_embed_dim")  # fairseq interpolates no other option
            flat.append((prefix + one.name, one.type, made))
    flat = [one for one in flat if not one[0].endswith("_name")]
    return dataclasses.make_dataclass("FlatTransformerConfig", flat, bases=(FairseqDataclass,))


def _flags() -> type[FairseqDataclass]:
    """A flag of fairseq for each of the settings."""
    types = get_type_hints(TokenSettings)
    flags: list[tuple[str, Any, Any]] = []
    for one in dataclasses.fields(TokenSettings):
        kind: Any = type(one.default)
        if one.name == "pos":
            kind = ChoiceEnum(list(variants.names(TokenSettings.axes)))
        elif one.default is None:
            # OmegaConf 2.0 knows no `int | None`
            kind = Optional[get_args(types[one.name])[0]]  # noqa: UP045
        flags.append((one.name, kind, field(default=one.default, metadata=one.metadata)))
    return dataclasses.make_dataclass("PositionFlags", flags, bases=(FairseqDataclass,))


PositionFlags = _flags()


@dataclass
class FairseqCapeConfig(PositionFlags, _flatten()):  # type: ignore[misc, valid-type]
    """fairseq's Transformer options, flat, and how positions enter the model."""

    source_scale: float = option(
        0.0,
        "cape: distance between neighbouring source tokens, in units of the distance between "
        "target tokens; 0: target tokens / source tokens, counted in the training set",
    )
    source_bos: ChoiceEnum(["auto", "true", "false"]) = option(  # type: ignore[valid-type]
        "auto", "begin the source with BOS, as the target does; auto: for cape only"
    )


@dataclass
class FairseqCapeLanguageModelConfig(
    PositionFlags,  # type: ignore[misc, valid-type]
    TransformerLanguageModelConfig,
):
    """The options of fairseq's ``transformer_lm``, and how positions enter the model."""


def as_config(cfg: Any) -> Any:
    """A model's options as OmegaConf's DictConfig, which they are already in fairseq's commands."""
    if OmegaConf.is_config(cfg):
        return cfg
    return OmegaConf.create({"model": OmegaConf.structured(cfg)}).model


def plain_options(cfg: Any) -> dict[str, Any]:
    """Name → value, of plain types."""
    return cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))
