"""The table of variants, and the way into it for variants of other packages.

A variant is three slots, each a class: what it adds at the input, how it augments positions, what
it does in attention. What it takes is the options that its three classes declare.

    >>> names(axes=1)[:5]                       # what sequences can have
    ('nopos', 'abspos', 'sinpos', 'cape', 'relpos')
    >>> sorted(get("rope", axes=2).options(axes=2))
    ['frequency_scale']
    >>> register_variant("fire", Variant(attends=Fire))

A package names a module that registers in its entry-point group ``cape_plugins.variants``. Such
modules are imported when the table is first read (docs/adding-a-variant.md).
"""

import re
from dataclasses import Field, dataclass
from importlib.metadata import entry_points
from types import UnionType
from typing import Any, Union, get_args, get_origin

from cape_plugins.added import Added, Table
from cape_plugins.alibi import Alibi
from cape_plugins.attention import PositionalAttention
from cape_plugins.augment import AsGiven, Augmentation, DistanceAugmentation
from cape_plugins.autoload import warn
from cape_plugins.options import Option, declared
from cape_plugins.pose import SkippedPositions
from cape_plugins.random_positions import RandomPositions
from cape_plugins.relpos import RelativePositions
from cape_plugins.rotary import Rotary
from cape_plugins.sinusoid import Sinusoids

GROUP = "cape_plugins.variants"  # of entry points
_KINDS = {int, float, bool, str, type(None)}  # of options: what all hosts make flags of


@dataclass(frozen=True)
class Variant:
    """A way to tell a Transformer where its tokens are.

    Attributes:
        adds: what is added to the content at the input; None adds nothing.
        augments: how positions change in training, before ``adds`` and ``attends`` see them.
        attends: what positions do in self-attention; None leaves the host's own.
        first_layer_only: whether ``attends`` sits in the first layer only.
        axes: for positions with so many axes: 1 in sequences, 2 in images.
    """

    adds: type[Added] | None = None
    augments: type[AsGiven] = AsGiven
    attends: type[PositionalAttention] | None = None
    first_layer_only: bool = False
    axes: tuple[int, ...] = (1, 2)

    def __post_init__(self) -> None:
        for name, kind, base in (
            ("adds", self.adds, Added),
            ("augments", self.augments, AsGiven),
            ("attends", self.attends, PositionalAttention),
        ):
            if kind is None:
                continue
            if not (isinstance(kind, type) and issubclass(kind, base)):
                raise ValueError(f"{name} must be a subclass of {base.__name__}, got {kind!r}")
            # without the decorator a field is no option; torch modules must have a hash
            fields = [one for each in kind.__mro__ for one in vars(each).values()]
            if any(isinstance(one, Field) for one in fields) or kind.__hash__ is None:
                how = "frozen=True" if base is AsGiven else "eq=False, repr=False"
                raise ValueError(f"decorate {kind.__name__} with @dataclass({how})")
        if not self.axes or not {*self.axes} <= {1, 2}:
            raise ValueError(f"axes must be (1,), (2,) or (1, 2), got {self.axes!r}")

    def options(self, axes: int) -> dict[str, Option]:
        """Name → option that it takes, in sequences (1 axis) or images (2 axes)."""
        found: dict[str, Option] = {}
        for kind in (self.adds, self.augments, self.attends):
            found |= declared(kind, axes)
        return found

    @property
    def has_positions(self) -> bool:
        """Whether positions reach the model at all."""
        return self.adds is not None or self.attends is not None


#: axes of positions → name → variant
_TABLE: dict[int, dict[str, Variant]] = {1: {}, 2: {}}
_loaded: list[str] = []  # entry points, once they have been looked for


def register_variant(name: str, variant: Variant) -> None:
    """Give a variant its name in all hosts: ``vit_tiny_patch16_NAME_224``, ``--pos NAME``, …

    Hosts read the table when they are imported, so register before that, or from a package with an
    entry point. A name may have one variant for sequences and another one for images.

    Raises:
        ValueError: the name is taken, or is not of small letters, digits and underscores; or an
            option means something else in another variant, is of a kind that hosts cannot make a
            flag of, or is new and does not begin with the variant's name, so that it could be an
            option of a host.
    """
    for axes in variant.axes:
        known = {option for other in _TABLE[axes].values() for option in other.options(axes)}
        for option, declared_ in variant.options(axes).items():
            if option not in known and not option.startswith(f"{name}_"):
                raise ValueError(
                    f"option {option} of variant {name}: call it {name}_{option}, so that it is no "
                    "option of a host"
                )
            if not kinds(declared_.kind) <= _KINDS:
                raise ValueError(
                    f"option {option} of variant {name} is of kind {declared_.kind}: choose int, "
                    "float, bool, str, or a tuple of these"
                )
    _register(name, variant)


def kinds(annotation: Any) -> set[type]:
    """The types that an option's annotation is made of: ``float | tuple[int, ...]`` → both."""
    if get_origin(annotation) not in (Union, UnionType, tuple):
        return {annotation}
    inner = [one for one in get_args(annotation) if one is not ...]
    return set().union(*(kinds(one) for one in inner))


def _register(name: str, variant: Variant) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise ValueError(f"a variant's name has small letters, digits and single _, got {name!r}")
    for axes in variant.axes:
        if name in _TABLE[axes]:
            raise ValueError(f"there is a variant {name} already: choose another name")
        for option, mine in variant.options(axes).items():
            for other, known in _TABLE[axes].items():
                theirs = known.options(axes).get(option, mine)
                if theirs != mine:
                    raise ValueError(
                        f"option {option} of variant {name} means something else in {other} "
                        f"({theirs.help}; default {theirs.default!r}): give it another name"
                    )
    for axes in variant.axes:
        _TABLE[axes][name] = variant


def names(axes: int) -> tuple[str, ...]:
    """Names of the variants for sequences (1 axis) or images (2 axes).

    Raises:
        ValueError: ``axes`` is neither 1 nor 2.
    """
    if axes not in _TABLE:
        raise ValueError(f"axes must be 1 (sequences) or 2 (images), got {axes!r}")
    _load_packages()
    return tuple(_TABLE[axes])


def get(pos: str, axes: int) -> Variant:
    """A variant by its name.

    Raises:
        ValueError: there is none of that name for so many axes.
    """
    if pos not in names(axes):
        raise ValueError(f"unknown variant {pos!r}: choose one of {', '.join(names(axes))}")
    return _TABLE[axes][pos]


def _load_packages() -> None:
    """Import what other packages have in the group; a failure becomes one warning that names it."""
    if _loaded:
        return
    _loaded.append(GROUP)  # first: a package may ask for names while it is loaded
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:
            package = point.dist.name if point.dist else point.value
            warn(
                f"cape_plugins could not load the variants of {package} "
                f"({point.name} = {point.value}; {type(error).__name__}: {error}); all others work"
            )


_register("nopos", Variant())
_register("abspos", Variant(adds=Table, axes=(1,)))  # for images: timm's own ViT
_register("sinpos", Variant(adds=Sinusoids))
_register("cape", Variant(adds=Sinusoids, augments=Augmentation))
_register("relpos", Variant(attends=RelativePositions, axes=(1,)))
_register("relpos_first", Variant(attends=RelativePositions, first_layer_only=True, axes=(1,)))
_register("rope", Variant(attends=Rotary))
# Between tokens Δ cancels. In images it acts against the class token, which has no position.
_register("cape_rope", Variant(augments=DistanceAugmentation, attends=Rotary, axes=(1,)))
_register("cape_rope", Variant(augments=Augmentation, attends=Rotary, axes=(2,)))
_register("alibi", Variant(attends=Alibi))
_register("cape_alibi", Variant(augments=DistanceAugmentation, attends=Alibi))
_register("random", Variant(adds=Sinusoids, augments=RandomPositions))
_register("random_rope", Variant(augments=RandomPositions, attends=Rotary))
# For sequences alone: an image spans [-1, 1] whatever its size, so none is longer than another.
_register("pose_rope", Variant(augments=SkippedPositions, attends=Rotary, axes=(1,)))
