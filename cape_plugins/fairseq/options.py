"""The models' options: all of fairseq's Transformer, and those about positions, in tokens.

The latter are the options of all variants, those of other packages too: ``HOST`` makes flags of
them. The dataclasses are flat. With fairseq's own nested ``TransformerConfig`` the command line
would ignore the sizes, and checkpoints would need pickled classes. The language model's config is
flat already.
"""

import ast
import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Optional, cast, get_args, get_origin

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from omegaconf import II, OmegaConf

from cape_plugins.augment import Augmentation
from cape_plugins.checks import is_number
from cape_plugins.host import Host
from cape_plugins.module import Positions
from cape_plugins.options import POSITION, Option, alternatives, declared, option
from cape_plugins.sinusoid import Sinusoids
from cape_plugins.variants import Variant, get, tell_of_later

# at this position, neighbouring float32 numbers are 2 ** -7 of a token apart
FURTHEST = 1e5

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


def aligns_source(variant: Variant) -> bool:
    """Whether equal positions are to be equally far into source and target (paper, section 3.3)."""
    return variant.adds is Sinusoids and variant.augments is Augmentation


@dataclass(frozen=True)
class SourceOptions:
    """The options about the source of a translation.

    Raises:
        ValueError: a value is out of range.
    """

    source_scale: float = option(
        0.0,
        "distance between neighbouring source tokens, in units of the distance between target "
        "tokens; 0: target tokens / source tokens, counted in the training set",
        taken_by=aligns_source,
    )
    source_bos: Literal["auto", "true", "false"] = option(
        "auto", "begin the source with BOS, as the target does; auto: for cape only"
    )

    def __post_init__(self) -> None:
        if not (is_number(self.source_scale) and 0 <= self.source_scale <= FURTHEST):
            raise ValueError(
                f"source_scale must be > 0 and at most {FURTHEST:g}, or 0 to count it from the "
                f"training set, got {self.source_scale!r}"
            )
        if self.source_bos not in ("auto", "true", "false"):
            raise ValueError(f"source_bos must be auto, true or false, got {self.source_bos!r}")


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


def _names_of(*configs: Any) -> Iterator[str]:
    """Names of the options in dataclasses of fairseq, and in those that stand in them."""
    for config in configs:
        for one in dataclasses.fields(config):
            yield one.name
            if dataclasses.is_dataclass(one.type):
                yield from _names_of(one.type)


_FlatConfig = _flatten()

#: CAPE's defaults, and relpos' context, are those of the paper's translation experiments (section
#: 4.3). Nothing is centred: sentences of a pair stay aligned at their first tokens, and decoding
#: does not know the length.
HOST = Host(
    axes=1,
    unit="tokens",
    defaults={
        "max_global_shift": 5.0,
        "max_local_shift": 0.5,
        "random_range": 256.0,
        "pose_range": 256.0,
        "relpos_context": 150,
    },
    sets=frozenset({"mean_normalize", "spread", "overflow", "abspos_context", "alibi_unit"}),
    theirs=frozenset(_names_of(_FlatConfig, TransformerLanguageModelConfig, FairseqConfig)),
    own=SourceOptions,
    spell=flag,
    advice=ANOTHER_CHECKPOINT,
)


class Chosen(NamedTuple):
    """A model's options about positions, checked.

    Attributes:
        pos: the variant.
        options: those of the variant.
        source: those of the source; a language model has their defaults.
    """

    pos: str
    options: dict[str, Any]
    source: SourceOptions

    @property
    def aligns_source(self) -> bool:
        """:func:`aligns_source` of the variant."""
        return aligns_source(get(self.pos, HOST.axes))

    @property
    def source_bos(self) -> bool:
        """Whether the source begins with BOS."""
        auto = self.source.source_bos == "auto"
        return self.aligns_source if auto else self.source.source_bos == "true"

    def positions(self, sets: Mapping[str, Any], **sizes: Any) -> Positions:
        """The core's module; arguments and errors are those of :meth:`Host.positions`."""
        always = {"mean_normalize": False, "overflow": "error"}
        return HOST.positions(self.pos, self.options, {**always, **sets}, **sizes)


def choose(options: Mapping[str, Any]) -> Chosen:
    """Take the options about positions from a model's, name → value.

    Raises:
        ValueError: an option is for another ``pos``, or a value is out of range; a variant checks
            the values of its own when it is made. Or the variant needs what fairseq cannot give.
    """
    ours, _ = HOST.split(options)
    pos, every = ours.pop("pos"), HOST.options()
    adds = get(pos, HOST.axes).adds
    if adds is not None and adds.needs_content():
        raise ValueError(
            f"--pos {pos} adds what depends on the content, which fairseq keeps from its embedding "
            "of positions: it is for timm and ESPnet, here choose another variant"
        )
    ours = {name: _read(value, every[name]) for name, value in ours.items()}
    chosen, source = HOST.choose(pos, ours)
    assert source is not None  # the host has options of its own
    for name, value in chosen.items():
        if every[name].unit == POSITION and is_number(value) and value > FURTHEST:
            raise ValueError(
                f"{name} must be at most {FURTHEST:g}, got {value:g}: beyond, float32 does not "
                "tell neighbouring tokens apart; the paper's Δ is 5 to 50 tokens"
            )
    return Chosen(pos, chosen, source)


def _read(value: Any, one: Option) -> Any:
    """The value of a word of a command line, where the flag takes any."""
    if not isinstance(value, str) or _type_of(one) is not Any:
        return value
    words = {"true": True, "false": False} if bool in alternatives(one.kind) else {}
    if value.lower() in words:
        return words[value.lower()]
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


def check_options(options: Mapping[str, Any]) -> Chosen:
    """Check the options about positions of a model before it is built.

    ``options`` are all of the model's, name → value.

    Raises:
        ValueError: as :func:`choose`; a value is out of range, or the variant cannot serve the
            model's sizes; or an option of fairseq contradicts ``pos``.
    """
    for name, instead in _REPLACED.items():
        if options.get(name):
            raise ValueError(f"{flag(name)} is replaced by {instead} in cape_transformer models")
    chosen = choose(options)
    for stack in ("encoder", "decoder"):  # a language model has no encoder
        if f"{stack}_embed_dim" in options:
            dim, heads = options[f"{stack}_embed_dim"], options[f"{stack}_attention_heads"]
            with torch.device("meta"):
                chosen.positions({"abspos_context": 1}, dim=dim, heads=heads, layers=1)
    return chosen


def flags_of_options(options: Iterable[Option]) -> type[FairseqDataclass]:
    """A flag of fairseq for ``--pos`` and for each option."""
    about = {"help": "the variant of positions"}
    variants = ChoiceEnum(list(HOST.names()))
    flags: list[tuple[str, Any, Any]] = [("pos", variants, field(default="cape", metadata=about))]
    for one in options:
        type_, help = _type_of(one), one.help
        if type_ is Any and bool in alternatives(one.kind):
            help += "; true or false"
        made = field(default=one.default, metadata={"help": help})
        flags.append((one.name, type_, made))
    return dataclasses.make_dataclass("PositionFlags", flags, bases=(FairseqDataclass,))


def _type_of(one: Option) -> Any:
    """The type of a flag, of those that OmegaConf and argparse know; Any for a word to be read.

    fairseq's flag of a bool has no value, and switches a default of True off.
    """
    of = [kind for kind in alternatives(one.kind) if kind is not type(None)]
    if get_origin(one.kind) is Literal:
        return ChoiceEnum(list(get_args(one.kind)))
    if isinstance(one.default, float):  # one for all axes, of which a text has one
        return float
    if one.name in HOST.defaults:
        return type(HOST.defaults[one.name])
    if len(of) > 1 or of[0] not in (int, float, bool, str):
        return Any
    if one.default is None:
        return Any if of == [bool] else Optional[of[0]]  # noqa: UP045 - OmegaConf 2.0 knows no `|`
    return Any if one.default is True else of[0]


_EVERY = HOST.options()
PositionFlags = flags_of_options(_EVERY.values())
_FlagsWithoutSource = flags_of_options(
    one for name, one in _EVERY.items() if name not in declared(SourceOptions)
)


def _warn_of_later(pos: str) -> None:
    HOST.check_late(
        pos,
        f"fairseq has made its flags, so it has no --pos {pos}: register the variant before "
        "fairseq is imported, or by an entry point of a package that does not import fairseq",
    )


tell_of_later(HOST.axes, _warn_of_later)


@dataclass
class FairseqCapeConfig(PositionFlags, _FlatConfig):  # type: ignore[misc, valid-type]
    """fairseq's Transformer options, flat, and how positions enter the model."""


@dataclass
class FairseqCapeLanguageModelConfig(
    _FlagsWithoutSource,  # type: ignore[misc, valid-type]
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
