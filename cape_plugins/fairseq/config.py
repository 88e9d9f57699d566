"""The models' options: all of fairseq's Transformer, positions, ADMIN; and their checks.

Flat dataclasses, so that one definition serves the command line, Hydra and checkpoints. fairseq's
own nested ``TransformerConfig`` cannot be registered: its command line ignores the sizes, and its
checkpoints need pickled classes. That of its language model is flat already.
"""

import dataclasses
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Optional, cast

from fairseq import checkpoint_utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.file_io import PathManager
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer.transformer_config import (
    DecoderConfig,
    EncDecBaseConfig,
    QuantNoiseConfig,
)
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from hydra.core.hydra_config import HydraConfig
from omegaconf import II, OmegaConf

from cape_plugins import variants
from cape_plugins.augment import Augmentation
from cape_plugins.logn import check_logn
from cape_plugins.positions import check_positive, is_number
from cape_plugins.sinusoid import check_dim

logger = logging.getLogger(__name__)

VARIANTS = variants.names(1)
RELPOS_LAYERS = ("all", "first")
SOURCE_BOS = ("auto", "true", "false")

# positions in float32 are 2 ** -7 of a token apart here
FURTHEST = 1e5

# fairseq's own switches of positions, which would contradict --pos
_REPLACED = {
    "no_token_positional_embeddings": "--pos nopos",
    "encoder_learned_pos": "--pos abspos",
    "decoder_learned_pos": "--pos abspos",
}

# these attend in ways of their own, without room for positions
_OTHER_ATTENTION = (
    "cross_self_attention",
    "encoder_xformers_att_config",
    "decoder_xformers_att_config",
)

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

    pos: ChoiceEnum(list(VARIANTS)) = field(  # type: ignore[valid-type]
        default="cape",
        metadata={"help": "variant of positions; relpos: relative attention (Shaw et al.)"},
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
    random_range: float = field(
        default=256.0,
        metadata={"help": "random: in training tokens are at sorted draws from 0 to this"},
    )
    frequency_scale: float = field(
        default=1.0,
        metadata={"help": "multiply all frequencies of sinusoids and rotations by this"},
    )
    attention_logn: int = field(
        default=0,
        metadata={
            "help": "with every variant: multiply the logits of self-attention by log N / log of "
            "this, N the tokens that a query sees; this is N in training; 0: off"
        },
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
    return {**_plain(OmegaConf.structured(PositionConfig())), **_plain(cfg)}


def _plain(cfg: Any) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))


def forgive_old_options(options: dict[str, Any], defaults: FairseqDataclass) -> dict[str, Any]:
    """Options without those of other variants, if they are of a checkpoint from before refusal.

    Until then a source scale was counted and stored whatever the variant, which tells such a
    checkpoint. (One that is given to Hydra looks the same: there it is ignored with a warning.)

    Args:
        options: all of a translation model's.
        defaults: a config of the model.
    """
    pos = options["pos"]
    if takes(pos, "source_scale") or not options["source_scale"] > 0:
        return options
    logger.warning(f"source_scale {options['source_scale']} has no effect with --pos {pos}")
    every = {name for variant in variants.VARIANTS.values() for name in variant.options}
    others = {name for name in every & options.keys() if not takes(pos, name)}
    return {**options, **{name: getattr(defaults, name) for name in others}}


def takes(pos: str, option: str) -> bool:
    """Whether a variant takes an option."""
    return option in variants.get(pos, VARIANTS).options


def needs_source_bos(pos: str, source_bos: str) -> bool:
    """Whether the source begins with BOS, as the target begins with EOS.

    ``auto`` means where both are placed on one scale: for cape, as in the paper.
    """
    return source_bos == "true" or (source_bos == "auto" and takes(pos, "source_scale"))


def store_option(cfg: Any, name: str, value: Any) -> None:
    """Set an option where checkpoints will find it.

    fairseq hands ``build_model`` its own config for a named architecture, but a copy of it for
    the model's own name; a copy has the whole config as its parent.
    """
    cfg[name] = value
    whole = cfg._get_parent()
    if whole is not None and name in (whole.get("model") or {}):
        whole["model"][name] = value


def checkpoint_options(cfg: Any) -> dict[str, Any]:
    """The model's options in the checkpoint that fairseq-train will start from; none without one.

    Args:
        cfg: the model's options, part of fairseq's whole config.
    """
    checkpoint = (cfg._get_parent() or {}).get("checkpoint")
    if checkpoint is None:
        return {}
    path = checkpoint.restore_file
    if path == "checkpoint_last.pt":  # fairseq's default, the only name that it looks for there
        path = f"{checkpoint.save_dir}/{path}"
        if not PathManager.exists(path):
            path = checkpoint.get("continue_once") or checkpoint.finetune_from_model
    if path is None or not PathManager.exists(path):
        return {}
    return (checkpoint_utils.load_checkpoint_to_cpu(path).get("cfg") or {}).get("model") or {}


def refuse_torchrun_alone(world_size: int) -> None:
    """Raise ValueError where torchrun has started processes that fairseq will not join.

    Args:
        world_size: fairseq's option, which is 1 by default with no GPU or a single one.
    """
    started = os.environ.get("WORLD_SIZE", "1")
    if "RANK" in os.environ and started != "1" and world_size == 1:
        raise ValueError(
            f"torchrun started {started} processes, but --distributed-world-size is 1, so that "
            "each would train on its own into the same folder: give --distributed-world-size "
            f"{started} on GPUs; on CPUs start processes as in integrations/fairseq/README.md"
        )


@contextmanager
def one_line() -> Iterator[None]:
    """End the process where a ValueError is raised, as argparse ends it: one line and status 2."""
    try:
        yield
    except ValueError as error:
        print(f"{os.path.basename(sys.argv[0])}: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def check_built(options: Mapping[str, Any], defaults: FairseqDataclass) -> None:
    """:func:`check_options` where a model is built; in fairseq-hydra-train, whose command line has
    no other place for it, as :func:`one_line`.
    """
    if HydraConfig.initialized() and HydraConfig.get().job.name == "hydra_train":
        with one_line():
            check_options(options, defaults)
    check_options(options, defaults)


def check_options(options: Mapping[str, Any], defaults: FairseqDataclass) -> None:
    """Check the options that our models add or restrict.

    Args:
        options: name → value; what is absent has its default, a default counts as not given.
        defaults: a config of the model; only the options that it has are looked at.

    Raises:
        ValueError: a value is out of range, whatever ``pos`` is; or it is for another ``pos``; or
            two contradict each other.
    """
    default = {name: getattr(defaults, name) for name in defaults.__dataclass_fields__}
    given = {k: v for k, v in options.items() if k in default and v is not None}
    given = {k: str(v) if isinstance(v, Enum) else v for k, v in given.items()}
    values = {**default, **given}
    pos = values["pos"]
    variants.get(pos, VARIANTS)
    Augmentation(values["max_global_shift"], values["max_local_shift"], values["max_global_scale"])
    check_positive("frequency_scale", values["frequency_scale"])
    _check_attention(values)
    _check_admin(values)
    if "source_scale" in values:
        _check_source(values)
    for name in (
        *("max_global_shift", "max_local_shift", "max_global_scale"),
        *("random_range", "source_scale"),
    ):
        if FURTHEST < values.get(name, 0.0) < float("inf"):
            raise ValueError(
                f"{name} must be at most {FURTHEST:g}, got {values[name]:g}: beyond, float32 does "
                "not tell neighbouring tokens apart; the paper's Δ is 5 to 50 tokens"
            )
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
    variants.refuse_options(pos, given, default, _flag, axes=1)


def _check_attention(values: Mapping[str, Any]) -> None:
    context = values["relpos_context"]
    if isinstance(context, bool) or not isinstance(context, int) or context < 1:
        raise ValueError(f"relpos_context must be an integer ≥ 1, in tokens, got {context!r}")
    _check_choice("relpos_layers", values["relpos_layers"], RELPOS_LAYERS)
    check_positive("random_range", values["random_range"], unit=", in tokens")
    own = f"--pos {values['pos']}" if variants.get(values["pos"]).attention is not None else ""
    if check_logn(values["attention_logn"]):
        own = own or "--attention-logn"
    for name in _OTHER_ATTENTION:
        if own and values.get(name):
            raise ValueError(
                f"{_flag(name)} does not go with {own}, which has a self-attention of its own: "
                f"leave out one of the two{', or choose another --pos' * own.startswith('--pos')}"
            )
    for side in ("encoder", "decoder"):
        dim, heads = (values.get(f"{side}_{size}") for size in ("embed_dim", "attention_heads"))
        if dim and heads and dim % heads == 0:  # else fairseq says so
            try:
                variants.attention_for(values["pos"], 0, head_dim=dim // heads, heads=heads)
            except ValueError as error:
                raise ValueError(
                    f"--pos {values['pos']} with --{side}-embed-dim {dim} and "
                    f"--{side}-attention-heads {heads}: {error}"
                ) from None


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
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def parse_scales(scales: str) -> list[float]:
    """Read ``--admin-scales``.

    Raises:
        ValueError: not positive numbers with commas between them.
    """
    try:
        numbers = [float(number) for number in scales.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number < float("inf") for number in numbers):
        raise ValueError(
            f"--admin-scales must be positive numbers with commas between them, got {scales!r}"
        )
    return numbers
