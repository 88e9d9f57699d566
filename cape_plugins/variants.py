"""The table of variants: what each adds at the input, what it puts into self-attention.

Hosts ask this table and compare no names: a new variant is a file of the core and a row here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cape_plugins.alibi import Alibi
from cape_plugins.attention import AttentionSettings, PositionalAttention, RelativeAttention
from cape_plugins.augment import AsGiven, Cape
from cape_plugins.random_positions import Random
from cape_plugins.rotary import MixedRotaryAttention, RotaryAttention


@dataclass(frozen=True)
class Variant:
    """A way to tell a Transformer where its tokens are.

    Attributes:
        number: stands in fairseq checkpoints for the name; only ever append.
        adds: to the content at the input: nothing, rows of a learnable table, or sinusoids.
        augment: what becomes of positions before their sinusoids and before attention sees them.
        attention: what sits in self-attention; None is the host's own attention.
        first_layer_only: whether ``attention`` sits in the first layer only.
        axes: numbers of axes of its positions: 1 in sequences, 2 in images.
        options: the hosts' options that it takes.
        in_images: those of them that do something in images only.
    """

    number: int
    adds: Literal["nothing", "table", "sinusoid"]
    augment: Callable[..., AsGiven] = AsGiven
    attention: Callable[[AttentionSettings], PositionalAttention] | None = None
    first_layer_only: bool = False
    axes: tuple[int, ...] = (1, 2)
    options: frozenset[str] = frozenset()
    in_images: frozenset[str] = frozenset()

    def taken(self, axes: int) -> frozenset[str]:
        """The options that it takes in sequences (1 axis) or images (2 axes)."""
        return self.options if axes == 2 else self.options - self.in_images


_AUGMENTATION = {"max_global_shift", "max_local_shift", "max_global_scale"}
_CAPE_ROPE = frozenset({*_AUGMENTATION, "extent"})
_RANDOM = frozenset({"extent", "random_range", "frequency_scale"})
_SCALE = {"frequency_scale"}  # of sinusoids and rotations
_RELPOS = {"relpos_context", "relpos_values"}

VARIANTS = {
    "nopos": Variant(0, "nothing"),
    "abspos": Variant(1, "table", options=frozenset({"abspos_context"})),
    "sinpos": Variant(2, "sinusoid", options=frozenset({"extent", *_SCALE})),
    "cape": Variant(
        3, "sinusoid", Cape, options=frozenset({*_AUGMENTATION, "extent", "source_scale", *_SCALE})
    ),
    "relpos": Variant(
        4,
        "nothing",
        attention=RelativeAttention.build,
        axes=(1,),
        options=frozenset({*_RELPOS, "relpos_layers"}),
    ),
    "relpos_first": Variant(
        5,
        "nothing",
        attention=RelativeAttention.build,
        first_layer_only=True,
        axes=(1,),
        options=frozenset(_RELPOS),
    ),
    "rope": Variant(
        6, "nothing", attention=RotaryAttention.build, options=frozenset({"extent", *_SCALE})
    ),
    # ε and λ change distances. Δ cancels between tokens with a position, and acts only against
    # those without: timm's class token and registers.
    "cape_rope": Variant(
        7,
        "nothing",
        Cape,
        attention=RotaryAttention.build,
        options=_CAPE_ROPE | _SCALE,
        in_images=frozenset({"max_global_shift"}),
    ),
    "rope_mixed": Variant(
        8,
        "nothing",
        attention=MixedRotaryAttention.build,
        axes=(2,),
        options=frozenset({"extent"}),
    ),
    "cape_rope_mixed": Variant(
        9, "nothing", Cape, MixedRotaryAttention.build, axes=(2,), options=_CAPE_ROPE
    ),
    "alibi": Variant(10, "nothing", attention=Alibi.build, options=frozenset({"extent"})),
    # Δ changes no distance
    "cape_alibi": Variant(
        11,
        "nothing",
        Cape,
        Alibi.build,
        options=frozenset({"max_local_shift", "max_global_scale", "extent"}),
    ),
    "random": Variant(12, "sinusoid", Random, options=_RANDOM),
    "random_rope": Variant(13, "nothing", Random, RotaryAttention.build, options=_RANDOM),
}


def names(axes: int) -> tuple[str, ...]:
    """Names of the variants for sequences (1 axis) or images (2 axes)."""
    return tuple(name for name, variant in VARIANTS.items() if axes in variant.axes)


def get(pos: str, allowed: Sequence[str] | None = None) -> Variant:
    """The row of a variant.

    Args:
        pos: its name.
        allowed: names to choose from. Default: the whole table.

    Raises:
        ValueError: ``pos`` is none of them.
    """
    allowed = tuple(VARIANTS) if allowed is None else allowed
    if pos not in allowed:
        raise ValueError(f"unknown variant {pos!r}: choose one of {', '.join(allowed)}")
    return VARIANTS[pos]


def refuse_options(
    pos: str,
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    spell: Callable[[str], str] = str,
    *,
    axes: int,
) -> None:
    """Raise ValueError for an option that the variant does not take.

    Args:
        pos: the variant.
        given: option → value. Those that no variant takes are not this function's business.
        defaults: option → value that counts as not given.
        spell: writes an option's name as the host's users type it.
        axes: 1 for sequences, 2 for images: whose variants are named.
    """
    every = frozenset[str]().union(*(variant.options for variant in VARIANTS.values()))
    taken = get(pos).taken(axes)
    for name in sorted((every - taken) & given.keys()):
        if given[name] != defaults.get(name):
            takers = ", ".join(n for n in names(axes) if name in VARIANTS[n].taken(axes))
            allowed = ", ".join(spell(n) for n in sorted(taken & given.keys())) or "none of these"
            raise ValueError(
                f"{spell(name)} = {given[name]!r} is for {takers}; {pos} takes {allowed}: leave it "
                "out, or choose another variant"
            )


def attention_for(
    pos: str,
    layer: int,
    *,
    head_dim: int,
    heads: int,
    context: int = 1,
    values: bool = False,
    axes: int = 1,
    frequency_scale: float = 1.0,
    logn: int = 0,
) -> PositionalAttention | None:
    """What sits in the self-attention of a layer; None is the host's own attention.

    Args:
        pos: the variant.
        layer: 0 for the first.
        head_dim, heads, context, values, axes, frequency_scale: see
            :class:`cape_plugins.attention.AttentionSettings`.
        logn: see :class:`cape_plugins.attention.PositionalAttention`, which every layer has
            where this is not 0.

    Raises:
        ValueError: unknown variant, or settings that it refuses.
    """
    variant = get(pos)
    if variant.attention is None or (variant.first_layer_only and layer > 0):
        attention = PositionalAttention() if logn else None
    else:
        settings = AttentionSettings(head_dim, heads, context, values, axes, frequency_scale)
        attention = variant.attention(settings)
    if attention is not None:
        attention.logn = logn
    return attention
