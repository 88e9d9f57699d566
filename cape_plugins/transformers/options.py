"""Options about positions: fields of a model's configuration, in tokens.

>>> config = CapeLlamaConfig(pos="cape_rope", max_global_scale=1.2)
>>> positions(config, DECODER)                          # the core's module, everything checked
"""

import dataclasses
import difflib
import inspect
from collections.abc import Iterable, Mapping
from numbers import Number
from typing import Any

from cape_plugins import variants
from cape_plugins.host import TOKEN_DECODER, Host
from cape_plugins.positions import Positions

#: of rotations, where a configuration gives none: transformers' default_theta
LLAMAS_BASE = 10_000.0
DECODER = dataclasses.replace(
    TOKEN_DECODER,
    defaults={**TOKEN_DECODER.defaults, "rope_base": LLAMAS_BASE},
    advice="load its folder without overriding these",
)
#: An encoder has the whole text.
ENCODER = dataclasses.replace(DECODER, sets=DECODER.sets - {"mean_normalize", "spread"})


def fields(host: Host) -> type:
    """A dataclass of the fields that a configuration gets: ``pos``, and our variants' options.

    They are of any kind, because the options check their values. transformers keeps those of other
    packages' variants as it keeps any name.
    """
    every = {"pos": "cape_rope", **{name: host.default(one) for name, one in host.ours.items()}}
    every["rope_base"] = None  # transformers' rope_theta, if that is given
    listed = [(name, Any, dataclasses.field(default=value)) for name, value in every.items()]
    return dataclasses.make_dataclass("PositionFields", listed, eq=False, repr=False, kw_only=True)


def positions(config: Any, host: Host) -> Positions:
    """The core's module for a configuration.

    Raises:
        ValueError: unknown variant; an option that it does not take, or out of range; sizes that it
            cannot serve.
    """
    names = [*host.ours, *host.taken(config.pos)]
    given = {name: getattr(config, name) for name in names if hasattr(config, name)}
    theirs = inspect.signature(type(config).__bases__[-1]).parameters
    options = host.options(config.pos, given, theirs)
    sets = {"overflow": "error", "abspos_context": config.max_position_embeddings}
    return host.positions(
        config.pos,
        options,
        sets,
        dim=config.hidden_size,
        heads=config.num_attention_heads,
        head_dim=config.head_dim,
        layers=config.num_hidden_layers,
        causal=host is DECODER,
    )


def check_names(pos: str, names: Iterable[str], host: Host) -> None:
    """Raise ValueError for a name that is nearly an option's, or an option that is not the user's.

    transformers keeps any name.
    """
    every = {"pos", *host.taken(*variants.names(host.axes))}
    for name in names:
        if name in host.sets:
            raise ValueError(f"{name} is set by the model: leave it out")
        if name in every:
            variants.check_taken([name], pos, host.axes)
        elif near := difflib.get_close_matches(name, every, n=1, cutoff=0.8):
            raise ValueError(f"unknown option {name}: did you mean {near[0]}?")


def settle_rope(config: Any, theirs: float | None) -> None:
    """One base of rotations, whether ``rope_base`` or transformers' ``rope_theta`` was given.

    Args:
        config: with transformers' ``rope_parameters``, in which a default stands by now.
        theirs: the rope_theta that was given; None if none was.

    Raises:
        ValueError: both were given, and differ.
    """
    ours, kept = config.rope_base, config.rope_parameters or {}
    if ours is None:
        takes = "rope_base" in config.host.taken(config.pos)
        config.rope_base = float(theirs if takes and theirs is not None else LLAMAS_BASE)
    elif theirs is None and kept:
        kept["rope_theta"] = ours
    elif theirs is not None and theirs != ours:
        raise _two_bases(ours, theirs)


def check_rope(config: Any, options: Mapping[str, Any]) -> None:
    """Raise ValueError if transformers' own settings of rotary positions contradict the options.

    Of a model alone: ``from_pretrained`` and run_clm.py's ``--config_overrides`` set fields one
    after the other. There a rope_base is enough where rope_theta is the default.
    """
    theirs = config.rope_parameters or {}
    kind, base = theirs.get("rope_type", "default"), theirs.get("rope_theta")
    if kind != "default":
        raise ValueError(
            f"rope_parameters with rope_type {kind} are for transformers' own {config.host_type}: "
            "leave them out, or use that model with cape_plugins.transformers.augment_positions"
        )
    if "rope_base" not in options or base is None or base == options["rope_base"]:
        return
    if base != LLAMAS_BASE:
        raise _two_bases(options["rope_base"], base)
    theirs["rope_theta"] = options["rope_base"]


def _two_bases(ours: float, theirs: float) -> ValueError:
    return ValueError(
        f"rope_base is {ours:g}, and transformers' rope_theta {theirs:g}: they are one number, "
        "give one of them, or both alike"
    )


def plain_numbers(config: Any, host: Host) -> None:
    """Options that are NumPy's numbers become Python's, which JSON has."""
    for name in host.taken(*variants.names(host.axes)):
        value = getattr(config, name, None)
        if isinstance(value, list | tuple):
            setattr(config, name, type(value)(map(_python, value)))
        elif isinstance(value, Number):
            setattr(config, name, _python(value))


def _python(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
