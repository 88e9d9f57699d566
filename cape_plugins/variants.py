"""The table of variants, and the way into it for variants of other packages.

A variant is three slots, each a class: what it adds at the input, how it augments positions, what
it does in attention. What it takes is the options that its three classes declare.

    >>> names(axes=1)[:5]                       # what sequences can have
    ('nopos', 'abspos', 'sinpos', 'cape', 'relpos')
    >>> sorted(get("rope", axes=2).options(axes=2))
    ['frequency_scale', 'rope_base', 'rope_fraction']
    >>> register_variant("fire", Variant(attends=Fire))

A package names a module that registers in its entry-point group ``cape_plugins.variants``. Such
modules are imported when the table is first read (docs/adding-a-variant.md).
"""

import dataclasses
import difflib
import importlib
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import Field, dataclass
from itertools import permutations
from typing import Any, NamedTuple

from cape_plugins.added import Added, Table
from cape_plugins.alibi import Alibi
from cape_plugins.attention import PositionalAttention
from cape_plugins.augment import AsGiven, Augmentation, DistanceAugmentation
from cape_plugins.autoload import MEANT_BY_HOSTS, warn
from cape_plugins.options import AXES, Option, declared, problem
from cape_plugins.pose import SkippedPositions
from cape_plugins.random_positions import RandomPositions
from cape_plugins.relpos import RelativePositions
from cape_plugins.rotary import Rotary
from cape_plugins.sinusoid import Sinusoids

_AXES = tuple(of for count in range(1, len(AXES) + 1) for of in permutations(AXES, count))


#: slot of a variant → base class of what stands there
SLOTS: dict[str, type] = {"adds": Added, "augments": AsGiven, "attends": PositionalAttention}


@dataclass(frozen=True)
class Variant:
    """A way to tell a Transformer where its tokens are.

    Attributes:
        adds: what is added to the content at the input; None adds nothing.
        augments: how positions change in training, before ``adds`` and ``attends`` see them.
        attends: what positions do in self-attention; None leaves the host's own.
        first_layer_only: whether ``attends`` sits in the first layer only.
        one_for_all: whether all layers share one module, its parameters too. Then ``prepare`` is
            called in each layer and may use parameters, which get the gradients of all layers.
        axes: for positions with so many axes: 1 in sequences, 2 in images.
    """

    adds: type[Added] | None = None
    augments: type[AsGiven] = AsGiven
    attends: type[PositionalAttention] | None = None
    first_layer_only: bool = False
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
        if (self.first_layer_only or self.one_for_all) and self.attends is None:
            raise ValueError("first_layer_only and one_for_all are of a variant that attends")
        if self.first_layer_only and self.one_for_all:
            raise ValueError("choose one of first_layer_only and one_for_all")
        if self.axes not in _AXES:
            raise ValueError(f"axes must be (1,), (2,) or (1, 2), got {self.axes!r}")

    @property
    def classes(self) -> list[type]:
        """What stands in its slots."""
        return [kind for slot in SLOTS if (kind := getattr(self, slot)) is not None]

    def options(self, axes: int) -> dict[str, Option]:
        """Name → option that it takes, in sequences (1 axis) or images (2 axes)."""
        found: dict[str, Option] = {}
        for kind in self.classes:
            found |= declared(kind, axes)
        return found

    @property
    def has_positions(self) -> bool:
        """Whether positions reach the model at all."""
        return self.adds is not None or self.attends is not None


class Registered(NamedTuple):
    """A row of the table: the variant, and who registered it."""

    variant: Variant
    module: str  #: that called :func:`register_variant`
    loading: str | None  #: the package whose entry point was being loaded

    @property
    def package(self) -> str:
        """The package, or where there is none the module, that registered it."""
        parts = self.module.split(".")
        inner = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        named = next((PACKAGES[one] for one in inner if one in PACKAGES), None)
        return named or self.loading or parts[0]

    @property
    def classes(self) -> list[tuple[str, str]]:
        """The names of its classes, which a second run of the same source has again."""
        return [(kind.__module__, kind.__qualname__) for kind in self.variant.classes]


#: axes of positions → name → what is registered
TABLE: dict[int, dict[str, Registered]] = {axes: {} for axes in AXES}
#: module → package that has an entry point in it; a top-level one where it is of one package alone
PACKAGES: dict[str, str] = {}
_LOADING: ContextVar[str | None] = ContextVar("LOADING", default=None)
_WRITE = threading.RLock()  # held while nothing is imported
#: axes → hosts that have read the table
READERS: dict[int, list[Callable[[str], None]]] = {axes: [] for axes in AXES}


def register_variant(name: str, variant: Variant) -> None:
    """Give a variant its name in all hosts: ``vit_tiny_patch16_NAME_224``, ``--pos NAME``, …

    Hosts read the table when they are imported, so register before that, or from a package with an
    entry point; a host that cannot have it later warns. A name may have one variant for sequences
    and another one for images. The same classes under the same name, from the same module, replace
    those that were registered before: a cell of a notebook that runs again, a module that is
    reloaded.

    Raises:
        ValueError: what is wrong with the declaration, with the variant, the option and what to
            write. The name is taken, or means something else in a host, or is not of small letters,
            digits and underscores; or a class has a field that is no option; or an option means
            something else in another variant, is of a kind that hosts cannot make a flag of, or is
            new and does not begin with the variant's name, so that it could be an option of a host.
    """
    module = sys._getframe(1).f_globals.get("__name__", "")
    if not isinstance(variant, Variant):
        raise ValueError(f"variant {name}: write {_as_variant(name, variant)}, got {variant!r}")
    if not isinstance(name, str) or name in MEANT_BY_HOSTS:
        meant = f" means {MEANT_BY_HOSTS[name]}" if isinstance(name, str) else ""
        raise ValueError(f"a variant cannot be called {name!r}{meant}: choose another name")
    for axes in variant.axes:
        _check_declaration(name, variant, axes)
    _register(name, variant, module)


def _as_variant(name: str, given: Any) -> str:
    """How a variant of a class is written."""
    for slot, base in SLOTS.items():
        if isinstance(given, type) and issubclass(given, base):
            return f"register_variant({name!r}, Variant({slot}={given.__name__}))"
    return f"register_variant({name!r}, Variant(attends=…))"


def _check_declaration(name: str, variant: Variant, axes: int) -> None:
    """Raise ValueError for the first thing that is wrong with a variant's options."""
    for kind in variant.classes:
        try:
            options = declared(kind)
        except Exception as error:  # of an annotation that names what is not there
            raise ValueError(
                f"variant {name}: the annotations of {kind.__name__} cannot be read "
                f"({type(error).__name__}: {error}): import what they name where the class is"
            ) from error
        fields = dataclasses.fields(kind)
        if plain := [f for f in fields if f.init and f.name != "sizes" and f.name not in options]:
            wrong, default = plain[0].name, plain[0].default
            shown = "DEFAULT" if default is dataclasses.MISSING else repr(default)
            raise ValueError(
                f"variant {name}: the field {wrong} of {kind.__name__} is no option: write "
                f'{wrong}: … = option({shown}, "what it is")'
            )
    known = {one for each in TABLE[axes].values() for one in each.variant.options(axes)}
    for option, one in variant.options(axes).items():
        if found := problem(one):
            raise ValueError(f"option {option} of variant {name} {found}")
        if option not in known and not option.startswith(f"{name}_"):
            raise ValueError(
                f"option {option} of variant {name}: call it {name}_{option}, so that it is no "
                "option of a host"
            )


def _register(name: str, variant: Variant, module: str = __name__) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise ValueError(f"a variant's name has small letters, digits and single _, got {name!r}")
    made = Registered(variant, module, _LOADING.get())
    with _WRITE:
        old = [TABLE[axes][name] for axes in variant.axes if name in TABLE[axes]]
        again = all((one.module, one.classes) == (module, made.classes) for one in old)
        if not again:
            said = f"there is a variant {name} already, of {old[0].package}"
            if made.loading is None:
                raise ValueError(f"{said}: choose another name")
            warn(f"cape_plugins: {said}; that of {made.package} is left out, its others are not")
            return
        for axes in variant.axes:
            for option, mine in variant.options(axes).items():
                for other, known in TABLE[axes].items():
                    if old and known.module == module:  # about to run again too
                        continue
                    theirs = known.variant.options(axes).get(option, mine)
                    if theirs != mine:
                        raise ValueError(
                            f"option {option} of variant {name} means something else in {other} "
                            f"({theirs.help}; default {theirs.default!r}): give it another name"
                        )
        for axes in variant.axes:
            TABLE[axes][name] = made
    for axes in variant.axes:
        if not old or any(one.variant.options(axes) != variant.options(axes) for one in old):
            for tell in READERS[axes]:
                tell(name)


def names(axes: int) -> tuple[str, ...]:
    """Names of the variants for sequences (1 axis) or images (2 axes).

    Raises:
        ValueError: ``axes`` is neither 1 nor 2.
    """
    if axes not in TABLE:
        raise ValueError(f"axes must be 1 (sequences) or 2 (images), got {axes!r}")
    load_packages()
    return tuple(TABLE[axes])


def get(pos: str, axes: int) -> Variant:
    """A variant by its name.

    Raises:
        ValueError: there is none of that name for so many axes.
    """
    return _find(pos, axes).variant


def package(pos: str, axes: int) -> str:
    """The package that a variant is from, or the module if there is none; errors as :func:`get`."""
    return _find(pos, axes).package


def root(pos: str, axes: int) -> str:
    """The top-level module that the classes of a variant are in; ours where it has none else."""
    roots = [kind.__module__.partition(".")[0] for kind in get(pos, axes).classes]
    return next((one for one in roots if one not in ("cape_plugins", "__main__")), "cape_plugins")


def _find(pos: str, axes: int) -> Registered:
    if pos not in (known := names(axes)):
        near = difflib.get_close_matches(str(pos), known, n=1)
        guess = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(
            f"unknown variant {pos!r}{guess}: choose one of {', '.join(known)}. One that is not "
            "there may be of a package that is not installed here, or failed: python -m "
            "cape_plugins.env lists variants and their packages"
        )
    return TABLE[axes][pos]


def tell_of_later(axes: int, tell: Callable[[str], None]) -> None:
    """For a host that reads the table once: ``tell`` is called with each name that comes later."""
    READERS[axes].append(tell)


def load_packages() -> None:
    """Import what other packages have in the entry-point group, once.

    It is the import of a module, so that other threads wait for the first. A lock of our own could
    wait for ever: of a package whose import, in another thread, waits for this one.
    """
    importlib.import_module("cape_plugins.packages")


@contextmanager
def of_package(name: str) -> Iterator[None]:
    """Register variants in a package's name: all that it registers, or none if it fails."""
    token = _LOADING.set(name)
    try:
        yield
    except BaseException:
        with _WRITE:
            for table in TABLE.values():
                for pos in [pos for pos, one in table.items() if one.package == name]:
                    del table[pos]
        raise
    finally:
        _LOADING.reset(token)


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
