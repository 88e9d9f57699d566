"""An option about positions is declared once: as a field of the class that uses it.

    >>> @dataclass(frozen=True)
    ... class Augmentation:
    ...     max_global_shift: float = option(0.0, "Δ is uniform in ± this", unit=POSITION)

What a variant takes is the fields of its classes (:mod:`cape_plugins.variants`). A host makes its
flags, keyword arguments or YAML keys of them, and says once which defaults and which unit it has:

    >>> tokens = Host(axes=1, unit="tokens", defaults={"max_global_shift": 5.0})
    >>> tokens.options()["max_global_shift"].help
    'cape: Δ of a sample is uniform in ± this (section 3.2) (tokens)'
    >>> given, _ = tokens.choose("cape", {"max_global_shift": 3.0})  # ValueError if cape takes none
"""

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from cape_plugins.module import Positions

POSITION = "position"  #: unit of an option that is a length: that of the host's positions
# keys of a field's metadata
_HELP, _UNIT, _AXES, _TAKEN_BY, _TRAINING = "help", "unit", "axes", "taken_by", "training_only"


def option(
    default: Any,
    help: str,
    *,
    unit: str | None = None,
    axes: tuple[int, ...] = (1, 2),
    training_only: bool = False,
    taken_by: Callable[[Any], bool] | None = None,
) -> Any:
    """Declare an option: a field of a dataclass, which checks its values when it is made.

    Args:
        default: used where neither the user nor the host says otherwise.
        help: one line for command lines and tables.
        unit: :data:`POSITION` for a length, which is then in the unit of the host's positions.
        axes: 1 if the option is for sequences, 2 for images.
        training_only: it changes nothing in evaluation, so a checkpoint may have another value.
        taken_by: of a host's own options: whether a :class:`cape_plugins.Variant` takes it.
    """
    metadata = {
        _HELP: help,
        _UNIT: unit,
        _AXES: axes,
        _TAKEN_BY: taken_by,
        _TRAINING: training_only,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Option:
    """An option as :func:`option` declares it, or as a host shows it to its users."""

    name: str
    default: Any
    help: str
    unit: str | None = None
    training_only: bool = False
    kind: Any = field(default=None, compare=False)  #: its annotation
    taken_by: Callable[[Any], bool] | None = field(default=None, compare=False)


def declared(kind: Any, axes: int | None = None) -> Mapping[str, Option]:
    """Name → option that a dataclass declares, for positions with so many axes (default: any).

    It is empty for None and for classes without options.
    """
    if kind is None:
        return MappingProxyType({})
    return _declared(kind, axes)


@functools.cache
def _declared(kind: Any, axes: int | None) -> Mapping[str, Option]:
    hints = typing.get_type_hints(kind)
    found = {}
    for one in dataclasses.fields(kind):
        about = one.metadata
        if _HELP in about and (axes is None or axes in about[_AXES]):
            given = about[_HELP], about[_UNIT], about[_TRAINING], hints[one.name], about[_TAKEN_BY]
            found[one.name] = Option(one.name, one.default, *given)
    return MappingProxyType(found)


Own = TypeVar("Own")


@dataclass(frozen=True, kw_only=True)
class Host(Generic[Own]):
    """What a host says of options, once: its unit, its defaults, its own options.

    Attributes:
        axes: of its positions, 1 or 2.
        unit: what 1 is as a position: ``tokens``, ``seconds``, ``half images``.
        defaults: in place of those of the classes. None: the host decides when it builds a model.
        sets: options that the host sets itself, so that its users have no say.
        own: a dataclass of options that this host alone has; it checks their values.
        spell: writes an option's name as the host's users type it.
        advice: what to do about another variant's checkpoint, besides building that variant.
    """

    axes: int
    unit: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sets: frozenset[str] = frozenset()
    own: type[Own] | None = None
    spell: Callable[[str], str] = str
    advice: str = "give another checkpoint"

    def names(self) -> tuple[str, ...]:
        """The variants."""
        from cape_plugins.variants import names  # which imports the classes that declare options

        return names(self.axes)

    def options(self) -> dict[str, Option]:
        """Name → option of any variant or of the host, as its users see it; not ``pos``."""
        takers: dict[str, list[str]] = {}
        found: dict[str, Option] = {}
        for pos in self.names():
            for name, one in self.taken(pos).items():
                found[name] = one
                takers.setdefault(name, []).append(pos)
        for name, one in declared(self.own).items():
            found.setdefault(name, one)
        if unknown := self.defaults.keys() - found.keys():
            raise ValueError(
                f"defaults are of options that nobody has: {', '.join(sorted(unknown))}"
            )
        shown = {}
        for name, one in found.items():
            help = one.help + (f" ({self.unit})" if one.unit == POSITION else "")
            if len(of := takers.get(name, ())) < len(self.names()):
                help = f"{', '.join(of)}: {help}"
            shown[name] = dataclasses.replace(
                one, default=self.defaults.get(name, one.default), help=help
            )
        return shown

    def choose(self, pos: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], Own | None]:
        """The options of a model, checked.

        Args:
            pos: the variant.
            given: option → value. An option that has its default counts as not given.

        Returns:
            The options for :class:`cape_plugins.Positions`, None where the host decides, and the
            host's own as an instance of ``own``.

        Raises:
            ValueError: unknown variant or option, one that the variant does not take, or a value
                of the host's own options is out of range.
        """
        every, taken = self.options(), self.taken(pos)
        for name in given:
            if name not in every:
                known = ", ".join(self.spell(one) for one in every)
                raise ValueError(f"unknown option {self.spell(name)}: choose one of {known}")
            if name not in taken and given[name] != every[name].default:
                raise ValueError(self._refusal(pos, name, given[name]))
        values = {name: given.get(name, every[name].default) for name in taken}
        mine = declared(self.own).keys()
        own = None
        if self.own is not None:
            own = self.own(**{name: values[name] for name in mine & values.keys()})
        return {name: value for name, value in values.items() if name not in mine}, own

    def positions(
        self,
        pos: str,
        options: Mapping[str, Any],
        sets: Mapping[str, Any] = MappingProxyType({}),
        **sizes: Any,
    ) -> "Positions":
        """The core's module.

        Args:
            pos: the variant.
            options: as :meth:`choose` returns them.
            sets: values that the host sets itself, for whichever variant takes them.
            sizes: ``dim``, ``heads``, ``layers`` and the others of
                :class:`cape_plugins.Positions`, whose errors are raised.
        """
        from cape_plugins.module import Positions
        from cape_plugins.variants import get

        taken = get(pos, self.axes).options(self.axes)
        chosen = {**options, **{name: value for name, value in sets.items() if name in taken}}
        says: dict[str, Any] = dict(axes=self.axes, spell=self.spell, advice=self.advice)
        return Positions(pos, **says, **sizes, **chosen)

    def split(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split one mapping into the options about positions, ``pos`` too, and all others."""
        every = {"pos", *self.options()}
        ours = {name: value for name, value in options.items() if name in every}
        return ours, {name: value for name, value in options.items() if name not in every}

    def taken(self, pos: str) -> dict[str, Option]:
        """The options of a variant that this host's users have."""
        from cape_plugins.variants import get

        variant = get(pos, self.axes)
        own = declared(self.own).items()
        taken = {name: one for name, one in own if one.taken_by is None or one.taken_by(variant)}
        of_variant = variant.options(self.axes)
        return {n: one for n, one in of_variant.items() if n not in self.sets} | taken

    def _refusal(self, pos: str, name: str, value: Any) -> str:
        takers = ", ".join(each for each in self.names() if name in self.taken(each))
        allowed = ", ".join(map(self.spell, self.taken(pos))) or "no options"
        return (
            f"{self.spell(name)} = {value!r} is for {takers}; {pos} takes {allowed}: leave it out, "
            "or choose another variant"
        )
