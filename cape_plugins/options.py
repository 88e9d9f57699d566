"""An option about positions is declared once: as a field of the class that uses it and checks it.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Augmentation:
    ...     max_global_shift: float = option(0.0, "Δ is uniform in ± this", unit=POSITION)
    >>> declared(Augmentation)["max_global_shift"].default
    0.0

What a variant takes is the fields of its classes (:mod:`cape_plugins.variants`). Nobody between the
user and the class knows what an option means.
"""

import dataclasses
from dataclasses import Field, field
from typing import Any

#: How many axes positions may have: 1 in sequences, 2 in images. docs/adding-a-variant.md says what
#: a third would take.
AXES = (1, 2)
POSITION = "position"  #: unit of an option that is a length: that of the host's positions


def option(
    default: Any,
    help: str,
    *,
    unit: str | None = None,
    axes: tuple[int, ...] = AXES,
    training_only: bool = False,
    asked: str = "",
) -> Any:
    """Declare an option: a field of a dataclass, whose ``__post_init__`` checks its value.

    Args:
        default: used where neither the user nor the host says otherwise.
        help: one line for command lines and tables.
        unit: :data:`POSITION` for a length, which is then in the unit of the host's positions.
        axes: 1 if the option is for sequences, 2 for images.
        training_only: it changes nothing in evaluation, so a checkpoint may have another value.
        asked: of an option without a default (None), because its right value depends on the unit of
            positions: values to begin with, which the error of :func:`check_asked` shows.

    Raises:
        ValueError: there is no help, or the unit or the axes are none of those above.
    """
    if not (isinstance(help, str) and help):
        raise ValueError(f"the second argument of option() is its help, a line, got {help!r}")
    if unit not in (None, POSITION):
        raise ValueError(f"unit must be POSITION, a length, or None, got {unit!r}")
    check_axes(axes)
    about = dict(help=help, unit=unit, axes=axes, training_only=training_only, asked=asked)
    return field(default=default, metadata=about)


def check_axes(axes: Any) -> None:
    """Raise ValueError unless it is a tuple of some of :data:`AXES`."""
    if not (isinstance(axes, tuple) and axes and {*axes} <= {*AXES}):
        raise ValueError(f"axes must be (1,), (2,) or (1, 2), got {axes!r}")


def declared(kind: Any, axes: int | None = None) -> dict[str, Field[Any]]:
    """Name → option that a dataclass declares, for positions with so many axes (default: any).

    An option is a field, whose ``metadata`` has the arguments of :func:`option`. It is empty for
    None and for classes without options.
    """
    every = () if kind is None else dataclasses.fields(kind)
    options = {one.name: one for one in every if "asked" in one.metadata}
    return {n: one for n, one in options.items() if axes is None or axes in one.metadata["axes"]}


def check_asked(part: Any, *, training: bool = False) -> None:
    """Raise ValueError, with values to begin with, if an option that is ``asked`` is None.

    A dataclass's ``__post_init__`` calls it; a host that has a default for its unit never sees it.
    Options of training alone are looked at with ``training``, which :class:`Positions` does when
    training begins: who loads a model to evaluate it need not know them.
    """
    missing = [
        f"{name} ({one.metadata['asked']})"
        for name, one in declared(type(part)).items()
        if one.metadata["asked"]
        and one.metadata["training_only"] is training
        and getattr(part, name) is None
    ]
    if missing:
        raise ValueError(
            f"{type(part).__name__} needs {', '.join(missing)}: the right value depends on the "
            "unit of your positions, so there is no default"
        )
