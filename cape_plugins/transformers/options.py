"""Options about positions: fields of a model's configuration, in tokens.

>>> config = CapeLlamaConfig(pos="cape_rope", max_global_scale=1.2)
>>> positions(config, DECODER)                          # the core's module, everything checked
"""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from cape_plugins.added import Added
from cape_plugins.host import Host
from cape_plugins.module import Positions

#: Of a decoder nothing is centred and nothing spread: a step does not know how long a text will be.
#: Δ and ε are those of the paper's translation (section 4.3), relpos' context too; ranges are
#: Llama's length, max_position_embeddings.
DECODER: Host[None] = Host(
    axes=1,
    unit="tokens",
    defaults={
        "max_global_shift": 5.0,
        "max_local_shift": 0.5,
        "random_range": 2048.0,
        "pose_range": 2048.0,
        "relpos_context": 150.0,
        "rope_base": 10_000.0,
    },
    sets=frozenset({"mean_normalize", "spread", "overflow", "abspos_context", "alibi_unit"}),
    advice="load its folder without overriding these",
)
#: An encoder has the whole text.
ENCODER = dataclasses.replace(DECODER, sets=DECODER.sets - {"mean_normalize", "spread"})
_DECODERS = {"mean_normalize": False, "spread": False}


def fields(host: Host) -> type:
    """A dataclass of the fields that a configuration gets: ``pos``, and the options.

    They are of any kind, because the options check their values.
    """
    every = {"pos": "cape_rope", **{name: one.default for name, one in host.options().items()}}
    listed = [(name, Any, dataclasses.field(default=value)) for name, value in every.items()]
    return dataclasses.make_dataclass("PositionFields", listed, eq=False, repr=False, kw_only=True)


def positions(config: Any, host: Host) -> Positions:
    """The core's module for a configuration.

    Raises:
        ValueError: unknown variant; an option that it does not take, or out of range; sizes that it
            cannot serve.
    """
    given = {  # a variant that was registered after the fields were made has none
        name: _plain(getattr(config, name, one.default)) for name, one in host.options().items()
    }
    options, _ = host.choose(config.pos, given)
    sets = {"overflow": "error", "abspos_context": config.max_position_embeddings}
    made = host.positions(
        config.pos,
        options,
        {**{name: value for name, value in _DECODERS.items() if name in host.sets}, **sets},
        dim=config.hidden_size,
        heads=config.num_attention_heads,
        head_dim=config.head_dim,
        layers=config.num_hidden_layers,
    )
    if host is DECODER:
        advice = made.augmentation.needs_whole_sequence(training=False)
        if adds_by_content(made):
            advice = "it adds what depends on the content; use it in cape_eurobert"
        if advice:
            raise ValueError(
                f"{config.pos} needs other tokens, which a decoder's step does not have: {advice}"
            )
    return made


def adds_by_content(positions: Positions) -> bool:
    """Whether what is added depends on the content, and not on positions alone."""
    return positions.added is not None and type(positions.added).embedding is Added.embedding


def check_names(names: Iterable[str], host: Host) -> None:
    """Raise ValueError for a name that is nearly an option's, or an option that is not the user's.

    transformers keeps any name.
    """
    every = ["pos", *host.options()]
    for name in names:
        if name in host.sets:
            raise ValueError(f"{name} is set by the model: leave it out; options are {every}")
        if name in every:  # of a variant that was registered after the fields were made
            continue
        if near := difflib.get_close_matches(name, every, n=1, cutoff=0.8):
            raise ValueError(f"unknown option {name}: did you mean {near[0]}?")


def check_rope(config: Any, options: Mapping[str, Any]) -> None:
    """Raise ValueError if transformers' own settings of rotary positions contradict the options.

    Of a model alone: ``from_pretrained`` sets fields one after the other.
    """
    theirs = config.rope_parameters or {}
    kind, base = theirs.get("rope_type", "default"), theirs.get("rope_theta")
    if kind != "default":
        raise ValueError(
            f"rope_parameters with rope_type {kind} are for transformers' own {config.host_type}: "
            "leave them out, or use that model with cape_plugins.transformers.augment_positions"
        )
    if "rope_base" in options and base is not None and base != options["rope_base"]:
        raise ValueError(
            f"rope_parameters say rope_theta {base:g}, rope_base is {options['rope_base']:g}: set "
            f"rope_base={base:g}"
        )


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value  # JSON has no tuples
