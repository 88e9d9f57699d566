"""The table of variants, and the way into it for variants of other packages.

A variant is three slots, each a class: what it adds at the input, how it augments positions, what
it does in attention. What it takes is the options that its three classes declare.

    >>> names(axes=1)[:5]                       # what sequences can have
    ('nopos', 'abspos', 'sinpos', 'cape', 'relpos')
    >>> sorted(get("rope", axes=2).options(axes=2))
    ['frequency_scale', 'nopos_every', 'rope_base', 'rope_fraction']
    >>> register_variant("fire", Variant(attends=Fire))

A package names a module that registers in its entry-point group ``cape_plugins.variants``. Such
modules are imported when the table is first read (docs/adding-a-variant.md).
"""

import difflib
import importlib
import re
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import Field, dataclass
from dataclasses import fields as fields_of
from typing import Any, NamedTuple, cast

from cape_plugins.added import Added, Table
from cape_plugins.alibi import Alibi
from cape_plugins.attention import PositionalAttention
from cape_plugins.augment import AsGiven, Augmentation, DistanceAugmentation
from cape_plugins.autoload import MEANT_BY_HOSTS
from cape_plugins.options import AXES, check_axes, declared
from cape_plugins.pose import SkippedPositions
from cape_plugins.random_positions import RandomPositions
from cape_plugins.relpos import RelativePositions, RelativePositionsFirst
from cape_plugins.rotary import Rotary
from cape_plugins.sinusoid import Sinusoids

#: slot of a variant → base class of what stands there
SLOTS: dict[str, type] = {"adds": Added, "augments": AsGiven, "attends": PositionalAttention}


@dataclass(frozen=True)
class Variant:
    """A way to tell a Transformer where its tokens are.

    Attributes:
        adds: what is added to the content at the input; None adds nothing.
        augments: how positions change in training, before ``adds`` and ``attends`` see them.
        attends: what positions do in self-attention; None leaves the host's own.
        one_for_all: whether all layers share one module, its parameters too. Then ``prepare`` is
            called in each layer and may use parameters, which get the gradients of all layers.
        axes: for positions with so many axes: 1 in sequences, 2 in images.
    """

    adds: type[Added] | None = None
    augments: type[AsGiven] = AsGiven
    attends: type[PositionalAttention] | None = None
    one_for_all: bool = False
    axes: tuple[int, ...] = (1, 2)

    def __post_init__(self) -> None:
        for slot, base in SLOTS.items():
            kind = getattr(self, slot)
            if kind is None and slot != "augments":
                continue
            if not (isinstance(kind, type) and issubclass(kind, base)):
                raise ValueError(f"{slot} must be a subclass of {base.__name__}, got {kind!r}")
            # without the decorator a field is no option; torch modules must have a hash
            fields = [one for each in kind.__mro__ for one in vars(each).values()]
            if any(isinstance(one, Field) for one in fields) or kind.__hash__ is None:
                how = "frozen=True" if base is AsGiven else "eq=False, repr=False"
                raise ValueError(f"decorate {kind.__name__} with @dataclass({how})")
            given = {one.name for one in fields_of(cast(Any, kind)) if one.init}
            for name in given - {"sizes", *declared(kind)}:
                raise ValueError(
                    f"the field {name} of {kind.__name__} is no option: write "
                    f'{name}: … = option(DEFAULT, "what it is")'
                )
        if self.one_for_all and self.attends is None:
            raise ValueError("one_for_all is of a variant that attends")
        check_axes(self.axes)

    def options(self, axes: int) -> dict[str, Field[Any]]:
        """Name → option that it takes, in sequences (1 axis) or images (2 axes)."""
        found: dict[str, Field[Any]] = {}
        for slot in SLOTS:
            found |= declared(getattr(self, slot), axes)
        if self.attends and self.attends.acts_in is not PositionalAttention.acts_in:
            found.pop("nopos_every", None)  # the class chooses its layers itself
        return found

    @property
    def has_positions(self) -> bool:
        """Whether positions reach the model at all."""
        return self.adds is not None or self.attends is not None


class Registered(NamedTuple):
    """A row of the table: the variant, and the module that called :func:`register_variant`."""

    variant: Variant
    module: str


#: axes of positions → name → what is registered
TABLE: dict[int, dict[str, Registered]] = {axes: {} for axes in AXES}
_LATER: list[Callable[[str, Variant], None]] = []


def register_variant(name: str, variant: Variant) -> None:
    """Give a variant its name in all hosts: ``vit_tiny_patch16_NAME_224``, ``--pos NAME``, …

    A name may have one variant for sequences and another one for images. The same name again, from
    the same module, replaces what was there: a cell of a notebook that runs again, a module that is
    reloaded.

    Raises:
        ValueError: it is no :class:`Variant`; or the name is taken, means something in a host, or
            is not of small letters, digits and underscores.
    """
    module = sys._getframe(1).f_globals.get("__name__", "")
    if not isinstance(variant, Variant):
        raise ValueError(f"variant {name}: write Variant(attends=…), got {variant!r}")
    if name in MEANT_BY_HOSTS:
        raise ValueError(f"{name} means {MEANT_BY_HOSTS[name]}: give the variant another name")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", str(name)):
        raise ValueError(f"a variant's name has small letters, digits and single _, got {name!r}")
    for axes in variant.axes:
        old = TABLE[axes].get(name)
        if old is not None and old.module != module:
            raise ValueError(f"there is a variant {name} already, of {old.module}")
    _register(name, variant, module)
    for tell in _LATER:
        tell(name, variant)


def _register(name: str, variant: Variant, module: str = __name__) -> None:
    for axes in variant.axes:
        TABLE[axes][name] = Registered(variant, module)


def names(axes: int) -> tuple[str, ...]:
    """Names of the variants for sequences (1 axis) or images (2 axes).

    Raises:
        ValueError: ``axes`` is neither 1 nor 2.
    """
    if axes not in TABLE:
        raise ValueError(f"axes must be 1 (sequences) or 2 (images), got {axes!r}")
    importlib.import_module("cape_plugins.packages")  # loads them, once
    return tuple(TABLE[axes])


def get(pos: str, axes: int) -> Variant:
    """A variant by its name.

    Raises:
        ValueError: there is none of that name for so many axes.
    """
    if pos not in (known := names(axes)):
        near = difflib.get_close_matches(str(pos), known, n=1)
        guess = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(
            f"unknown variant {pos!r}{guess}: choose one of {', '.join(known)}. One that is not "
            "there may be of a package that is not installed here, or failed: python -m "
            "cape_plugins.env lists variants and their packages"
        )
    return TABLE[axes][pos].variant


def package(pos: str, axes: int) -> str:
    """The top-level module that has registered a variant that is there."""
    return TABLE[axes][pos].module.partition(".")[0]


def check_taken(
    given: Iterable[str],
    pos: str,
    axes: int,
    *,
    sets: Collection[str] = (),
    others: Collection[str] = (),
    spell: Callable[[str], str] = str,
) -> None:
    """Check that a variant takes options.

    Args:
        given: their names.
        pos, axes: the variant.
        sets: options that a host sets itself, so that its users have no say.
        others: of the host's own, which may be misspelt too.
        spell: writes an option's name as the host's users type it.

    Raises:
        ValueError: it does not; the error has the nearest name, or who takes the option, and what
            this variant takes.
    """
    taken = [name for name in get(pos, axes).options(axes) if name not in sets]
    for wrong in given:
        if wrong not in taken:
            of = {each: get(each, axes).options(axes).keys() - {*sets} for each in names(axes)}
            if takers := [each for each, theirs in of.items() if wrong in theirs]:
                allowed = ", ".join(map(spell, taken)) or "no options"
                told = f"{spell(wrong)} is an option of {', '.join(takers)}: {pos} takes {allowed}"
                raise ValueError(told)
            raise ValueError(misspelt(wrong, pos, taken, {*others}.union(*of.values()), spell))


def misspelt(
    name: str,
    pos: str,
    taken: Collection[str],
    known: Collection[str],
    spell: Callable[[str], str] = str,
) -> str:
    """What to say of an option that nobody has; ``pos`` takes ``taken``.

    ``known`` are all that it may be a misspelling of.
    """
    near = difflib.get_close_matches(name, known, n=1)
    guess = f" (did you mean {spell(near[0])}?)" if near else ""
    allowed = ", ".join(map(spell, taken)) or "no options"
    return f"unknown option {spell(name)}{guess}: {pos} takes {allowed}"


def tell_of_later(tell: Callable[[str, Variant], None]) -> None:
    """For a host that reads the names once: ``tell`` gets each variant that comes later."""
    _LATER.append(tell)


_register("nopos", Variant())
_register("abspos", Variant(adds=Table, axes=(1,)))  # for images: timm's own ViT
_register("sinpos", Variant(adds=Sinusoids))
_register("cape", Variant(adds=Sinusoids, augments=Augmentation))
_register("relpos", Variant(attends=RelativePositions, axes=(1,)))
_register("relpos_first", Variant(attends=RelativePositionsFirst, axes=(1,)))
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

#: axes → the variants above, of this package; the options of these alone can be told beforehand
OURS = {axes: tuple(TABLE[axes]) for axes in AXES}
