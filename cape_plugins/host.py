"""What a host says once of options about positions: its unit, its defaults, its own options.

>>> tokens = Host(axes=1, unit="tokens", defaults={"max_global_shift": 5.0})
>>> tokens.options()["max_global_shift"].help
'cape: Δ of a sample is uniform in ± this (section 3.2) (tokens)'
>>> given, _ = tokens.choose("cape", {"max_global_shift": 3.0})  # ValueError if cape takes none
"""

import dataclasses
import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from cape_plugins import variants
from cape_plugins.autoload import warn
from cape_plugins.module import Positions
from cape_plugins.options import POSITION, Option, as_declared, declared

Own = TypeVar("Own")


@dataclass(frozen=True, kw_only=True)
class Host(Generic[Own]):
    """What a host says of options, once: its unit, its defaults, its own options.

    Attributes:
        axes: of its positions, 1 or 2.
        unit: what 1 is as a position: ``tokens``, ``seconds``, ``half images``.
        defaults: in place of those of the classes. None: the host decides when it builds a model.
        sets: options that the host sets itself, so that its users have no say.
        theirs: options of the host's own models. A variant whose option has such a name is left
            out, with a warning: its value would go to the model.
        own: a dataclass of options that this host alone has; it checks their values.
        spell: writes an option's name as the host's users type it.
        advice: what to do about another variant's checkpoint, besides building that variant.
    """

    axes: int
    unit: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sets: frozenset[str] = frozenset()
    theirs: frozenset[str] = frozenset()
    own: type[Own] | None = None
    spell: Callable[[str], str] = str
    advice: str = "give another checkpoint"

    def names(self) -> tuple[str, ...]:
        """The variants."""
        return tuple(pos for pos in variants.names(self.axes) if not self._clash(pos))

    def _clash(self, pos: str) -> str:
        """The option of a variant that has the name of one of the host's; empty: none."""
        taken = variants.get(pos, self.axes).options(self.axes).keys() - self.sets
        return min(taken & {*self.theirs, *declared(self.own)}, default="")

    def check_late(self, pos: str, instead: str = "") -> None:
        """Warn of a variant that a host cannot have, or cannot have any more (``instead``)."""
        if clash := self._clash(pos):
            instead = f"its option {self.spell(clash)} is one of the host's own: rename it"
        if instead:
            warn(f"the variant {pos} of {variants.package(pos, self.axes)} is left out: {instead}")

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
                raise ValueError(self.unknown(pos, name))
        found = {name: as_declared(every[name], value, self.spell) for name, value in given.items()}
        for name, value in found.items():
            if name not in taken and value != every[name].default:
                raise ValueError(self._refusal(pos, name, value))
        values = {name: found.get(name, every[name].default) for name in taken}
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
    ) -> Positions:
        """The core's module.

        Args:
            pos: the variant.
            options: as :meth:`choose` returns them.
            sets: values that the host sets itself, for whichever variant takes them.
            sizes: ``dim``, ``heads``, ``layers`` and the others of
                :class:`cape_plugins.Positions`, whose errors are raised, those of training too.
        """
        taken = variants.get(pos, self.axes).options(self.axes)
        chosen = {**options, **{name: value for name, value in sets.items() if name in taken}}
        says: dict[str, Any] = dict(axes=self.axes, spell=self.spell, advice=self.advice)
        return Positions(pos, **says, **sizes, **chosen).train()

    def split(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split one mapping into the options about positions, ``pos`` too, and all others."""
        every = {"pos", *self.options()}
        ours = {name: value for name, value in options.items() if name in every}
        return ours, {name: value for name, value in options.items() if name not in every}

    def taken(self, pos: str) -> dict[str, Option]:
        """The options of a variant that this host's users have."""
        variant = variants.get(pos, self.axes)
        own = declared(self.own).items()
        taken = {name: one for name, one in own if one.taken_by is None or one.taken_by(variant)}
        of_variant = variant.options(self.axes)
        return {n: one for n, one in of_variant.items() if n not in self.sets} | taken

    def unknown(
        self,
        pos: str,
        name: str,
        others: Collection[str] = (),
        taken: Collection[str] | None = None,
    ) -> str:
        """What to say of an option that nobody has.

        Args:
            pos: the variant.
            name: the option.
            others: options of the host's own that it may be a misspelling of.
            taken: the options of ``pos``, where that is no variant but the host's own positions.
        """
        near = difflib.get_close_matches(name, [*(taken or self.options()), *others], n=1)
        guess = f" (did you mean {self.spell(near[0])}?)" if near else ""
        allowed = ", ".join(map(self.spell, taken or self.taken(pos))) or "no options"
        return f"unknown option {self.spell(name)}{guess}: {pos} takes {allowed}"

    def _refusal(self, pos: str, name: str, value: Any) -> str:
        takers = ", ".join(each for each in self.names() if name in self.taken(each))
        allowed = ", ".join(map(self.spell, self.taken(pos))) or "no options"
        return (
            f"{self.spell(name)} = {value!r} is for {takers}; {pos} takes {allowed}: leave it out, "
            "or choose another variant"
        )
