"""What prepared positions have learned, for activation checkpointing of the reentrant kind.

Such checkpointing gives gradients to tensors among a layer's arguments, not to those in a tuple.
:class:`cape_plugins.attention.Given` is a tuple, and what ``prepare`` makes of the parameters of a
variant that is ``one_for_all`` needs gradients. So a host hands them to the layer one by one.
"""

from collections.abc import Mapping

from torch import Tensor

from cape_plugins.attention import Given


def learned(given: Given) -> dict[str, Tensor]:
    """The tensors of ``given`` that need a gradient, by name; of one that is there twice, once."""
    found = {k: x for k, x in given._asdict().items() if x is not None and x.requires_grad}
    if given.keys is given.queries:
        found.pop("keys", None)
    return found


def with_learned(given: Given, found: Mapping[str, Tensor]) -> Given:
    """``given`` with those of :func:`learned` as checkpointing hands them on."""
    again = given._replace(**found)
    return again._replace(keys=again.queries) if given.keys is given.queries else again
