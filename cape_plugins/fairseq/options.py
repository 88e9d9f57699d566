"""The models' options: all of fairseq's Transformer, and those about positions, in tokens.

``HOST`` makes flags of the options of our variants; those of other packages' are one flag,
``--pos-options``, as ``--eval-bleu-args`` is of fairseq's. The dataclasses are flat. With fairseq's
own nested ``TransformerConfig`` the command line would ignore the sizes, and checkpoints would need
pickled classes. The language model's config is flat already.
"""

import copy
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, Optional, cast

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from omegaconf import II, OmegaConf

from cape_plugins.augment import Augmentation
from cape_plugins.checks import is_number
from cape_plugins.host import TOKEN_DECODER
from cape_plugins.positions import Positions
from cape_plugins.sinusoid import Sinusoids
from cape_plugins.variants import OURS, Variant, get, names

ANOTHER_CHECKPOINT = "give another --save-dir, --restore-file or --finetune-from-model"

# fairseq's own switches of positions, which would contradict --pos
_REPLACED = {
    "no_token_positional_embeddings": "--pos nopos",
    "encoder_learned_pos": "--pos abspos",
    "decoder_learned_pos": "--pos abspos",
}


def flag(name: str) -> str:
    """An option's name as users type it."""
    return f"--{name.replace('_', '-')}"


def spell(name: str) -> str:
    """The same of an option that may be of another package's variant."""
    theirs = HOST.taken(*names(HOST.axes)).keys() - HOST.ours.keys()
    return f"--pos-options {name}" if name in theirs else flag(name)


def aligns_source(variant: Variant) -> bool:
    """Whether equal positions are to be equally far into source and target (paper, section 3.3)."""
    return variant.adds is Sinusoids and variant.augments is Augmentation


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


#: Ranges are a sentence's. Nothing is centred: sentences of a pair stay aligned at their first
#: tokens too.
HOST = dataclasses.replace(
    TOKEN_DECODER,
    defaults={
        **TOKEN_DECODER.defaults,
        "random_range": 256.0,
        "pose_range": 256.0,
        "relpos_context": 150,
    },
    spell=spell,
    advice=ANOTHER_CHECKPOINT,
)


def _flags() -> type[FairseqDataclass]:
    """A flag of fairseq for each option of our variants."""
    flags: list[tuple[str, Any, Any]] = []
    for name, one in HOST.ours.items():
        takers = [pos for pos in OURS[HOST.axes] if name in HOST.taken(pos)]
        default = HOST.default(one)
        # OmegaConf 2.0 knows no `|`
        kind = Optional[float] if default is None else type(default)  # noqa: UP045
        about = {"help": f"{', '.join(takers)}: {HOST.help(one)}"}
        flags.append((name, kind, field(default=default, metadata=about)))
    return dataclasses.make_dataclass("OptionFlags", flags, bases=(FairseqDataclass,))


@dataclass
class PositionFlags(_flags()):  # type: ignore[misc]
    """How positions enter the model."""

    pos: str = field(default="cape", metadata={"help": "the variant of positions"})
    pos_options: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "options of a variant of another package, as JSON: '{\"fire_width\": 16}'"
        },
    )


@dataclass
class SourceFlags(FairseqDataclass):
    """The source of a translation."""

    source_scale: float = field(
        default=0.0,
        metadata={
            "help": "distance between neighbouring source tokens, in units of the distance between "
            "target tokens; 0: target tokens / source tokens, counted in the training set"
        },
    )
    source_bos: ChoiceEnum(["auto", "true", "false"]) = field(  # type: ignore[valid-type]
        default="auto",
        metadata={"help": "begin the source with BOS, as the target does; auto: for cape only"},
    )


@dataclass
class FairseqCapeConfig(PositionFlags, SourceFlags, _flatten()):  # type: ignore[misc]
    """fairseq's Transformer options, flat, and how positions enter the model."""


@dataclass
class FairseqCapeLanguageModelConfig(PositionFlags, TransformerLanguageModelConfig):
    """The options of fairseq's ``transformer_lm``, and how positions enter the model."""


class Chosen(NamedTuple):
    """A model's options about positions, checked.

    Attributes:
        pos: the variant.
        options: those of the variant.
        source_scale: α; 0 is that of the training set.
        aligns_source: :func:`aligns_source` of the variant.
        source_bos: whether the source begins with BOS.
    """

    pos: str
    options: dict[str, Any]
    source_scale: float
    aligns_source: bool
    source_bos: bool

    def positions(self, side: Any, longest: int, **more: Any) -> Positions:
        """The core's module for one side of a model.

        Args:
            side: fairseq's options of the encoder or of the decoder.
            longest: tokens of the longest sentence.
            more: for :meth:`Host.positions`, whose errors are raised.
        """
        sets = {"mean_normalize": False, "overflow": "error", "abspos_context": longest}
        sizes = dict(dim=side.embed_dim, heads=side.attention_heads, layers=side.layers)
        return HOST.positions(self.pos, self.options, sets, **sizes, **more)


def choose(options: Mapping[str, Any]) -> Chosen:
    """Take the options about positions from a model's, name → value.

    Raises:
        ValueError: an option is for another ``pos``, or the source's scale is out of range; a
            variant checks its own options when it is made. Or the variant needs what fairseq cannot
            give.
    """
    pos, scale = options["pos"], options.get("source_scale", 0.0)
    variant = get(pos, HOST.axes)
    if variant.adds is not None and variant.adds.needs_content():
        raise ValueError(
            f"--pos {pos} adds what depends on the content, which fairseq keeps from its embedding "
            "of positions: it is for timm and ESPnet, here choose another variant"
        )
    given = {name: options[name] for name in HOST.ours.keys() & options.keys()}
    given |= _read(options.get("pos_options"))
    if not (is_number(scale) and scale >= 0):
        raise ValueError(f"source_scale must be > 0, or 0 to count it, got {scale!r}")
    aligns = aligns_source(variant)
    if scale and not aligns:
        raise ValueError(
            f"--source-scale {scale:g} is for variants that add CAPE's positions, which {pos} does "
            "not: leave it out"
        )
    bos = str(options.get("source_bos", "auto"))
    bos_first = aligns if bos == "auto" else bos == "true"
    return Chosen(pos, HOST.options(pos, given), scale, aligns, bos_first)


def _read(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"--pos-options must be JSON, such as '{{\"width\": 16}}', got {text!r}")
    return found


def check_options(options: Mapping[str, Any]) -> Chosen:
    """Check the options about positions of a model, name → value, before it is built.

    Raises:
        ValueError: as :func:`choose`; a value is out of range, or the variant cannot serve the
            model's sizes; or an option of fairseq contradicts ``pos``.
    """
    for name, instead in _REPLACED.items():
        if options.get(name):
            raise ValueError(f"{flag(name)} is replaced by {instead} in cape_transformer models")
    chosen = choose(options)
    for side in ("encoder", "decoder"):  # a language model has no encoder
        if f"{side}_embed_dim" in options:
            sizes = {name: options[f"{side}_{name}"] for name in ("embed_dim", "attention_heads")}
            with torch.device("meta"):
                chosen.positions(SimpleNamespace(**sizes, layers=1), longest=1)
    return chosen


def plain_options(cfg: Any) -> dict[str, Any]:
    """Name → value, of plain types."""
    return cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))
