"""The table of variants: what each adds at the input and what it puts into self-attention.

Hosts ask this table instead of comparing names, so a new variant is a file of the core and a row
here.

    >>> names(axes=1)[:5]                       # what sequences can have
    ('nopos', 'abspos', 'sinpos', 'cape', 'relpos')
    >>> sorted(get("rope").taken(axes=2))       # the options that it takes in images
    ['extent', 'frequency_scale']
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from cape_plugins.alibi import Alibi
from cape_plugins.attention import AttentionSettings, Hidden, PositionalAttention
from cape_plugins.augment import Augmentation, Identity
from cape_plugins.random_positions import RandomPositions
from cape_plugins.relpos import RelativeAttention
from cape_plugins.rotary import MixedRotaryAttention, RotaryAttention


@dataclass(frozen=True)
class Variant:
    """A way to tell a Transformer where its tokens are."""

    number: int  #: identifies the variant in checkpoints; never change or reuse one
    adds: Literal["nothing", "table", "sinusoid"]  #: to the content at the input
    augment: type[Identity] = Identity  #: of positions, before sinusoids and attention see them
    attention: type[PositionalAttention] | None = None  #: in self-attention; None: the host's own
    first_layer_only: bool = False  #: whether ``attention`` sits in the first layer only
    axes: tuple[int, ...] = (1, 2)  #: number of axes of positions: 1 in sequences, 2 in images
    options: frozenset[str] = frozenset()  #: options that it takes, of the core and the hosts
    only_in_images: frozenset[str] = frozenset()  #: options without effect, refused, in sequences

    def taken(self, axes: int) -> frozenset[str]:
        """The options that it takes in sequences (1 axis) or images (2 axes)."""
        return self.options if axes == 2 else self.options - self.only_in_images


_EXTENT = frozenset({"extent"})
_SCALE = frozenset({"frequency_scale"})
_SINUSOID = _SCALE | {"base"}
_SHIFT = frozenset({"max_global_shift"})
_CAPE = _EXTENT | _SHIFT | {"max_local_shift", "max_global_scale", "mean_normalize"}
_RANDOM = _EXTENT | _SCALE | {"random_range", "spread"}
_TABLE = frozenset({"abspos_context", "max_length", "overflow"})
_RELPOS = frozenset({"relpos_context"})
_RELATIVE, _ROTARY, _MIXED = RelativeAttention, RotaryAttention, MixedRotaryAttention

VARIANTS = {
    "nopos": Variant(0, "nothing"),
    # for images, timm's own ViT has learned absolute embeddings
    "abspos": Variant(1, "table", axes=(1,), options=_TABLE),
    "sinpos": Variant(2, "sinusoid", options=_SINUSOID | _EXTENT),
    "cape": Variant(3, "sinusoid", Augmentation, options=_CAPE | _SINUSOID | {"source_scale"}),
    "relpos": Variant(4, "nothing", attention=_RELATIVE, axes=(1,), options=_RELPOS),
    "relpos_first": Variant(
        5, "nothing", Identity, _RELATIVE, first_layer_only=True, axes=(1,), options=_RELPOS
    ),
    "rope": Variant(6, "nothing", attention=_ROTARY, options=_EXTENT | _SCALE),
    # ε and λ change distances. Δ cancels between tokens with a position, and acts only against
    # those without: timm's class token and registers.
    "cape_rope": Variant(
        7, "nothing", Augmentation, _ROTARY, options=_CAPE | _SCALE, only_in_images=_SHIFT
    ),
    "rope_mixed": Variant(8, "nothing", attention=_MIXED, axes=(2,), options=_EXTENT),
    "cape_rope_mixed": Variant(9, "nothing", Augmentation, _MIXED, axes=(2,), options=_CAPE),
    "alibi": Variant(10, "nothing", attention=Alibi, options=_EXTENT),
    # Δ changes no distance
    "cape_alibi": Variant(11, "nothing", Augmentation, Alibi, options=_CAPE - _SHIFT),
    "random": Variant(12, "sinusoid", RandomPositions, options=_RANDOM | _SINUSOID),
    "random_rope": Variant(13, "nothing", RandomPositions, _ROTARY, options=_RANDOM),
}


def names(axes: int) -> tuple[str, ...]:
    """Names of the variants for sequences (1 axis) or images (2 axes).

    Raises:
        ValueError: ``axes`` is neither 1 nor 2.
    """
    if axes not in (1, 2):
        raise ValueError(f"axes must be 1 (sequences) or 2 (images), got {axes!r}")
    return tuple(name for name, variant in VARIANTS.items() if axes in variant.axes)


def get(pos: str, allowed: Sequence[str] | None = None) -> Variant:
    """The row of a variant.

    Raises:
        ValueError: its name is not among those allowed (default: all of the table).
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
    """Refuse what the variant does not take.

    Args:
        pos: name of the variant.
        given: option → value. Options that no variant takes are ignored here.
        defaults: option → default. An option with its default counts as not given.
        spell: writes an option's name as the host's users type it.
        axes: 1 for sequences, 2 for images; the error names the variants of these axes.

    Raises:
        ValueError: an option that the variant does not take differs from its default.
    """
    every = frozenset[str]().union(*(variant.options for variant in VARIANTS.values()))
    taken = get(pos).taken(axes)
    for name in sorted((every - taken) & given.keys()):
        if given[name] != defaults.get(name):
            takers = ", ".join(each for each in names(axes) if name in get(each).taken(axes))
            allowed = ", ".join(spell(n) for n in sorted(taken & given.keys())) or "none of these"
            if name in get(pos).only_in_images:
                allowed += f" ({spell(name)} changes no distance between tokens, which is all that "
                allowed += f"{pos} sees in sequences)"
            raise ValueError(
                f"{spell(name)} = {given[name]!r} is for {takers}; {pos} takes {allowed}: "
                "leave it out, or choose another variant"
            )


def augmentation(pos: str, options: Mapping[str, Any]) -> Identity:
    """The variant's augmentation of positions, built from the options (name → value) it takes."""
    kind = get(pos).augment
    fields = {field.name for field in dataclasses.fields(kind)} & get(pos).options
    return kind(**{name: options[name] for name in fields & options.keys()})


def attention_layers(
    pos: str, layers: int, settings: AttentionSettings, logn: int = 0
) -> list[PositionalAttention | None]:
    """The positional attention of each layer; None leaves the host's own attention.

    Where ``logn`` (see :class:`PositionalAttention`) is not 0, no entry is None.

    Raises:
        ValueError: the variant is unknown, or cannot serve the settings.
    """
    variant = get(pos)
    own = variant.attention or PositionalAttention
    first = [own] if variant.first_layer_only else [own] * layers
    kinds = first + [PositionalAttention] * (layers - len(first))
    built = [kind(settings) if logn or kind is not PositionalAttention else None for kind in kinds]
    for attention in built:
        if attention is not None:
            attention.logn = logn
    return built


def remembers(pos: str) -> frozenset[str]:
    """Fields of :class:`AttentionSettings` that checkpoints of the variant store."""
    return (get(pos).attention or PositionalAttention).remembers


def prepare(
    pos: str,
    positions: Tensor,
    settings: AttentionSettings,
    *,
    hidden: Hidden = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor | None:
    """Positions for the attention of every layer; None if the variant leaves attention alone.

    ``positions`` (1 or B, N[, 2]) are augmented already, and NaN at padding and at tokens without
    a position. ``hidden`` and ``dtype`` are those of
    :meth:`cape_plugins.attention.PositionalAttention.prepare`.
    """
    variant = get(pos)
    if variant.attention is None:
        return None
    return variant.attention.prepare(positions, settings, hidden=hidden, dtype=dtype)
