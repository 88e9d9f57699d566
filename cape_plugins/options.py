"""An option about positions is declared once: as a field of the class that uses it.

    >>> @dataclass(frozen=True)
    ... class Augmentation:
    ...     max_global_shift: float = option(0.0, "Δ is uniform in ± this", unit=POSITION)
    >>> declared(Augmentation)["max_global_shift"].default
    0.0

What a variant takes is the fields of its classes (:mod:`cape_plugins.variants`). A host makes its
flags, keyword arguments or YAML keys of them (:mod:`cape_plugins.host`).
"""

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from itertools import repeat
from numbers import Integral, Real
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

#: How many axes positions may have: 1 in sequences, 2 in images. docs/adding-a-variant.md says what
#: a third would take.
AXES = (1, 2)
POSITION = "position"  #: unit of an option that is a length: that of the host's positions
# keys of a field's metadata
_HELP, _UNIT, _AXES, _TAKEN_BY, _TRAINING = "help", "unit", "axes", "taken_by", "training_only"
_ASKED = "asked"


def option(
    default: Any,
    help: str,
    *,
    unit: str | None = None,
    axes: tuple[int, ...] = AXES,
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

    Raises:
        ValueError: there is no help, or the unit or the axes are none of those above.
    """
    if not (isinstance(help, str) and help):
        raise ValueError(f"the second argument of option() is its help, a line, got {help!r}")
    if unit not in (None, POSITION):
        raise ValueError(f"unit must be POSITION, a length, or None, got {unit!r}")
    if not (isinstance(axes, tuple) and axes and {*axes} <= {*AXES}):
        raise ValueError(f"axes must be (1,), (2,) or (1, 2), got {axes!r}")
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


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The annotations that an option's is a union of: ``int | None`` → int, NoneType."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def problem(one: Option) -> str:
    """What is wrong with a declaration, and what to write instead; empty: nothing."""
    kind, wanted = one.kind, {int, float, bool, str}
    of = [each for each in alternatives(kind) if each is not NoneType]
    for each in of:
        inner = [item for item in get_args(each) if item is not ...]
        is_tuple = get_origin(each) is tuple and {*inner} <= wanted
        is_words = get_origin(each) is Literal and all(isinstance(item, str) for item in inner)
        if not (is_tuple or is_words or each in wanted):
            of = []
            break
    if not of:
        return (
            f"is of kind {_written(kind)}: choose int, float, bool, str, a tuple of these or a "
            "Literal of words, and | None for what the class decides"
        )
    if one.default is MISSING:
        return "has no default: write option(default, help)"
    if _fitting(one.default, kind) is _NO:
        fitting = f"{_written(kind)} | None" if one.default is None else "that of the default"
        return f"has the default {one.default!r}, which is not {_written(kind)}: write {fitting}"
    return ""


def as_declared(one: Option, value: Any, spell: Callable[[str], str] = str) -> Any:
    """A value of the option's kind: a list, as YAML and JSON have it, becomes a tuple.

    None is the default of any option. ``spell`` writes the option's name as the user types it.

    Raises:
        ValueError: the value is of another kind.
    """
    if value is None or one.kind is None:
        return value
    found = _fitting(value, one.kind)
    if found is _NO:
        raise ValueError(f"{spell(one.name)} must be {_written(one.kind)}, got {value!r}")
    return found


_NO = object()  # of no fitting kind


def _fitting(value: Any, kind: Any) -> Any:
    """The value as a kind that a declaration may have; ``_NO`` if it is of another one."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return next((it for one in inner if (it := _fitting(value, one)) is not _NO), _NO)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return _NO
        if inner[1:] != (...,) and len(inner) != len(value):
            return _NO
        each = repeat(inner[0]) if inner[1:] == (...,) else inner
        found = tuple(map(_fitting, value, each))
        return _NO if any(one is _NO for one in found) else found
    if origin is Literal:
        return value if isinstance(value, str) and value in inner else _NO
    if kind in (int, float):
        number = Integral if kind is int else Real
        return value if isinstance(value, number) and not isinstance(value, bool) else _NO
    return value if isinstance(kind, type) and isinstance(value, kind) else _NO


def _written(kind: Any) -> str:
    """An annotation as people write it; None is not told, because nobody has to give it."""
    of = [one for one in alternatives(kind) if one is not NoneType] or [NoneType]
    words = [
        one.__name__ if isinstance(one, type) and not get_args(one) else str(one) for one in of
    ]
    return " | ".join(word.replace("typing.", "") for word in words)


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


def check_asked(part: Any, *, training: bool = False) -> None:
    """Raise ValueError, with values to begin with, if an option that is ``asked`` is None.

    A dataclass's ``__post_init__`` calls it; a host that has a default for its unit never sees it.
    Options of training alone are looked at with ``training``, which :class:`Positions` does when
    training begins: who loads a model to evaluate it need not know them.
    """
    missing = [
        f"{one.name} ({one.metadata[_ASKED]})"
        for one in dataclasses.fields(part)
        if one.metadata.get(_ASKED)
        and one.metadata[_TRAINING] is training
        and getattr(part, one.name) is None
    ]
    if missing:
        raise ValueError(
            f"{type(part).__name__} needs {', '.join(missing)}: the right value depends on the "
            "unit of your positions, so there is no default"
        )
