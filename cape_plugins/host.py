"""What hosts share: what each says of options, and how a module of theirs becomes one of ours.

A host says its unit, its defaults and how its users type an option. :data:`TOKEN_DECODER` says it
for any decoder of tokens (docs/autoload.md).

>>> given = TOKEN_DECODER.options("cape", {"max_local_shift": 0.2})
>>> given["max_global_shift"]
5.0
>>> positions = TOKEN_DECODER.positions("cape", given, dim=512, causal=True)
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, field
from types import MappingProxyType
from typing import Any

from torch import nn

from cape_plugins import variants
from cape_plugins.options import POSITION
from cape_plugins.positions import Positions


@dataclass(frozen=True, kw_only=True)
class Host:
    """What a host says of options, once.

    Attributes:
        axes: of its positions, 1 or 2.
        unit: what 1 is as a position: ``tokens``, ``seconds``, ``half images``.
        defaults: in place of those of the classes. None: the host decides when it builds a model.
        sets: options that the host sets itself, so that its users have no say.
        spell: writes an option's name as the host's users type it.
        advice: what to do about another variant's checkpoint, besides building that variant.
    """

    axes: int
    unit: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sets: frozenset[str] = frozenset()
    spell: Callable[[str], str] = str
    advice: str = "give another checkpoint"

    def taken(self, *variants_of: str) -> dict[str, Field[Any]]:
        """Name → option that one of the variants takes, and that this host's users have."""
        found: dict[str, Field[Any]] = {}
        for pos in variants_of:
            found |= variants.get(pos, self.axes).options(self.axes)
        return {name: one for name, one in found.items() if name not in self.sets}

    @property
    def ours(self) -> dict[str, Field[Any]]:
        """Name → option of any variant of this package: what flags and fields are made of."""
        return self.taken(*variants.OURS[self.axes])

    def default(self, one: Field[Any]) -> Any:
        """What an option is in this host unless it is given."""
        return self.defaults.get(one.name, one.default)

    def options(
        self, pos: str, given: Mapping[str, Any], others: Collection[str] = ()
    ) -> dict[str, Any]:
        """The options of a variant: those that are given, else this host's defaults.

        One of :attr:`ours` that has its default counts as not given, as flags and fields have it.
        ``others`` are options of the host's own models, which a name may be a misspelling of.

        Raises:
            ValueError: unknown variant; one that has an option of ``others``, which would get its
                value; or an option that it does not take.
        """
        ours, taken = self.ours, self.taken(pos)
        if clash := taken.keys() & {*others}:
            raise ValueError(
                f"{self.spell(min(clash))} is an option of {pos} and of the host's own model, "
                "which would get it: give the variant's another name"
            )
        given = {
            name: value
            for name, value in given.items()
            if name in taken or name not in ours or value != self.default(ours[name])
        }
        says: dict[str, Any] = dict(sets=self.sets, others=others, spell=self.spell)
        variants.check_taken(given, pos, self.axes, **says)
        return {name: given.get(name, self.default(one)) for name, one in taken.items()}

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
            options: as :meth:`options` returns them.
            sets: values that the host sets itself, for whichever variant takes them.
            sizes: ``dim``, ``heads``, ``layers`` and the others of
                :class:`cape_plugins.Positions`, whose errors are raised, those of training too.
        """
        taken = variants.get(pos, self.axes).options(self.axes)
        chosen = {**options, **{name: value for name, value in sets.items() if name in taken}}
        says: dict[str, Any] = dict(axes=self.axes, spell=self.spell, advice=self.advice)
        return Positions(pos, **says, **sizes, **chosen).train()

    def help(self, one: Field[Any]) -> str:
        """What an option is, in this host's unit."""
        unit = f" ({self.unit})" if one.metadata["unit"] == POSITION else ""
        return one.metadata["help"] + unit


#: Of a decoder nothing is centred and nothing spread: a step does not know how long a text will be.
#: Δ and ε are those of the paper's translation (section 4.3), relpos' context too; ranges are the
#: length of a text, which a host gives by ``dataclasses.replace`` if it is another.
TOKEN_DECODER = Host(
    axes=1,
    unit="tokens",
    defaults={
        "max_global_shift": 5.0,
        "max_local_shift": 0.5,
        "random_range": 2048.0,
        "pose_range": 2048.0,
        "relpos_context": 150.0,
    },
    sets=frozenset({"mean_normalize", "spread", "overflow", "abspos_context", "alibi_unit"}),
)


def with_class(theirs: nn.Module, kind: Any, **instead: Any) -> Any:
    """A module of a host's, with all that it holds, as a ``kind``, a subclass of its class.

    ``instead`` are attributes in place of its own: of a copy that is ``self`` in one forward of the
    host's, so that nothing of this forward stands in the module, which other threads use too.
    """
    ours = kind.__new__(kind)
    vars(ours).update(vars(theirs), **instead)
    return ours
