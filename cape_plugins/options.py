"""An option about positions is declared once: as a field of the class that uses it.

    >>> @dataclass(frozen=True)
    ... class Augmentation:
    ...     max_global_shift: float = option(0.0, "Δ is uniform in ± this", unit=POSITION)

What a variant takes is the fields of its classes (:mod:`cape_plugins.variants`). A host makes its
flags, keyword arguments or YAML keys of them (:mod:`cape_plugins.host`).
"""

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

POSITION = "position"  #: unit of an option that is a length: that of the host's positions
# keys of a field's metadata
_HELP, _UNIT, _AXES, _TAKEN_BY, _TRAINING = "help", "unit", "axes", "taken_by", "training_only"
_ASKED = "asked"


def option(
    default: Any,
    help: str,
    *,
    unit: str | None = None,
    axes: tuple[int, ...] = (1, 2),
    training_only: bool = False,
    taken_by: Callable[[Any], bool] | None = None,
    asked: str = "",
) -> Any:
    """Declare an option: a field of a dataclass, which checks its values when it is made.

    Args:
        default: used where neither the user nor the host says otherwise.
        help: one line for command lines and tables.
        unit: :data:`POSITION` for a length, which is then in the unit of the host's positions.
        axes: 1 if the option is for sequences, 2 for images.
        training_only: it changes nothing in evaluation, so a checkpoint may have another value.
        taken_by: of a host's own options: whether a :class:`cape_plugins.Variant` takes it.
        asked: of an option without a default (None), because its right value depends on the unit of
            positions: values to begin with, which the error of :func:`check_asked` shows.
    """
    metadata = {
        _HELP: help,
        _UNIT: unit,
        _AXES: axes,
        _TAKEN_BY: taken_by,
        _TRAINING: training_only,
        _ASKED: asked,
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


def check_asked(part: Any) -> None:
    """Raise ValueError, with values to begin with, if an option that is ``asked`` is None.

    A dataclass's ``__post_init__`` calls it; a host that has a default for its unit never sees it.
    """
    missing = [
        f"{one.name} ({one.metadata[_ASKED]})"
        for one in dataclasses.fields(part)
        if one.metadata.get(_ASKED) and getattr(part, one.name) is None
    ]
    if missing:
        raise ValueError(
            f"{type(part).__name__} needs {', '.join(missing)}: the right value depends on the "
            "unit of your positions, so there is no default"
        )
