"""What the methods of a variant return, checked where a stranger errs: shapes and kinds.

A wrong shape may fit by chance, as a bias (B, queries, keys) does where there are as many samples
as heads. Compiled and traced code is not checked.
"""

from typing import Any

from torch import Tensor

from cape_plugins.checks import is_traced
from cape_plugins.sizes import Part


class Misfit(ValueError):
    """What a method has returned, or done, is not what its base class asks for."""


def check_embedded(part: Part, found: Any, query: Tensor, key: Tensor) -> None:
    """Raise :class:`Misfit` unless ``embed`` or ``embed_both`` has kept the shapes."""
    if is_traced():
        return
    for one, of in zip(found, (query, key), strict=True):
        if not isinstance(one, Tensor) or one.shape != of.shape:
            raise Misfit(
                f"{part.said('embed')} must keep the shape (B, heads, N, head_dim) of queries and "
                f"keys: it got {[*of.shape]}, and gave {_shown(one)}"
            )


def check_bias(part: Part, found: Any, query: Tensor, key: Tensor) -> None:
    """Raise :class:`Misfit` unless a bias broadcasts to the scores, with an axis of heads."""
    if found is None or is_traced():
        return
    wanted = [*query.shape[:3], key.shape[2]]
    if (
        not isinstance(found, Tensor)
        or found.ndim != 4
        or any(is_ not in (1, size) for is_, size in zip(found.shape, wanted, strict=True))
    ):
        raise Misfit(
            f"{part.said('bias')} must give (B or 1, heads or 1, queries or 1, keys or 1), here "
            f"{wanted} or 1 in their places, or None: it gave {_shown(found)}"
        )


def check_embedding(part: Part, found: Any, positions: Tensor, dim: int) -> None:
    """Raise :class:`Misfit` unless an embedding has a row of ``dim`` channels for each position."""
    wanted = [*positions.shape[:2], dim]
    if not is_traced() and not (isinstance(found, Tensor) and [*found.shape] == wanted):
        raise Misfit(
            f"{part.said('embedding')} must give (1 or B, N, dim), here {wanted}: it gave "
            f"{_shown(found)}"
        )


def check_given(part: Part, found: Any, kind: type) -> None:
    """Raise :class:`Misfit` unless ``prepare`` has returned what every layer is to get."""
    if not isinstance(found, kind):
        raise Misfit(
            f"{part.said('prepare')} must return {kind.__name__}(queries, keys, mask), as "
            f"`return super().prepare(queries, keys, mask, dtype)` does: it gave {_shown(found)}"
        )


def _shown(found: Any) -> str:
    return f"{[*found.shape]}" if isinstance(found, Tensor) else f"{type(found).__name__}"
