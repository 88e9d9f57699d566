"""The models' options: all of fairseq's Transformer, positions, ADMIN.

The dataclasses are flat. With fairseq's own nested ``TransformerConfig`` the command line would
ignore the sizes, and checkpoints would need pickled classes. The language model's config is flat
already.
"""

import copy
import dataclasses
import logging
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Optional, cast, get_args, get_type_hints

from fairseq import checkpoint_utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.file_io import PathManager
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from omegaconf import II, OmegaConf

from cape_plugins import variants
from cape_plugins.attention import AttentionSettings
from cape_plugins.checks import check_count
from cape_plugins.settings import SequenceSettings, option, split_options

logger = logging.getLogger(__name__)

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


@dataclass
class PositionConfig(_flags()):  # type: ignore[misc]
    """Options beyond fairseq's own that translation and language models share."""

    admin_init: bool = option(False, "ADMIN: scaled residuals, measured before training")
    # OmegaConf 2.0 knows no `str | None`
    admin_scales: Optional[str] = option(  # noqa: UP045
        None, "ADMIN: the scales, encoder first, with commas; default: measure on training data"
    )


@dataclass
class CapeTransformerConfig(PositionConfig, _flatten()):  # type: ignore[misc]
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
class CapeTransformerLanguageModelConfig(PositionConfig, TransformerLanguageModelConfig):
    """The options of fairseq's ``transformer_lm``, and how positions enter the model."""


def plain_options(cfg: Any) -> dict[str, Any]:
    """Name → value, of plain types."""
    return cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))


def settle(cfg: Any, name: str, measure: Callable[[str], Any]) -> None:
    """Set an option that was not given: from the checkpoint to start from, else by measuring.

    In training ``cfg``, the model's options, is a part of fairseq's whole config, so new
    checkpoints store the value. ``measure`` gets the name of the training set.
    """
    whole = cfg._get_parent() or {}
    split = (whole.get("dataset") or {}).get("train_subset", "train")
    value = checkpoint_options(whole.get("checkpoint")).get(name) or measure(split)
    cfg[name] = value
    if name in (whole.get("model") or {}):
        # without a named architecture cfg is a copy, whose parent is still the whole config
        whole["model"][name] = value
    logger.info(f"{name}: {value}")


def checkpoint_options(checkpoint: Any) -> dict[str, Any]:
    """The model's options in the checkpoint that fairseq-train will start from.

    Empty if there is none, or if it is of another architecture than ours.
    """
    options = stored_options(start_of(checkpoint)[0])
    return options if "pos" in options else {}


def start_of(checkpoint: Any) -> tuple[str | None, bool]:
    """The checkpoint that fairseq-train will start from, and whether it takes only the weights."""
    path = getattr(checkpoint, "restore_file", None)
    finetunes = False
    if path == "checkpoint_last.pt":  # fairseq's default, the only name that it looks for there
        path = f"{checkpoint.save_dir}/{path}"
        if not PathManager.exists(path):
            path = checkpoint.continue_once
            if path is None:
                path, finetunes = checkpoint.finetune_from_model, True
    if path is None or not PathManager.exists(path):
        return None, False
    return path, finetunes


def stored_options(path: str | None) -> dict[str, Any]:
    """The model's options in a checkpoint of fairseq; empty if there is no path.

    Raises:
        ValueError: the file is not a fairseq checkpoint.
    """
    if path is None:
        return {}
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(path)
    except Exception as error:  # whatever torch, pickle or fairseq say of other files
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(
            f"{path} is not a checkpoint that fairseq can read ({reason[:200]}): give one that "
            "fairseq-train wrote"
        ) from None
    # options of architectures that are not dataclasses are a Namespace, of older fairseq as `args`
    options = (state.get("cfg") or {}).get("model") or state.get("args") or {}
    if isinstance(options, Namespace):
        return vars(options)
    return plain_options(options) if OmegaConf.is_config(options) else dict(options)
