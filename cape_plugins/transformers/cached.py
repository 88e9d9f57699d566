"""What a cache of keys says of positions: where its keys stand, and whether they were drawn.

What is added to scores needs the positions of cached keys. They stand in the first layer of
transformers' cache, which keeps them as it keeps its keys: cropped, reordered for beams, repeated.
The cache's layers are otherwise transformers' own.
"""

import functools
import warnings
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, StaticLayer

from cape_plugins.host import with_class
from cape_plugins.places import counted

#: methods of a layer that move keys, besides update
_MOVES = ("reset", "crop", "reorder_cache", "batch_repeat_interleave", "batch_select_indices")
_DRAWN = "cape_plugins_drawn"  # of a cache whose keys have positions that were drawn in training


def draws(training: bool, cache: Cache | None, use_cache: bool | None) -> bool:
    """Whether a forward draws positions, in a model whose variant augments them.

    In training mode it does, as dropout does. It does not where the cache holds keys, as they keep
    the positions that they got. Nor where it is generation's: without gradients, and told about a
    cache, as all forwards of ``generate`` are.

    Args:
        training: the model is in training mode.
        cache: what the caller hands in.
        use_cache: what the caller says; None if nothing.

    Raises:
        ValueError: the cache holds keys whose positions were drawn.
    """
    drawn = getattr(cache, _DRAWN, False)
    if not (training or drawn):
        return False
    if cache is not None and cache.get_seq_length() > 0:
        if drawn:
            raise ValueError(
                "the cache holds keys whose positions were drawn in training, and which other "
                "tokens cannot share: fill it in model.eval(), or under torch.no_grad()"
            )
        if torch.is_grad_enabled():
            warnings.warn(
                "the cache holds keys: in this forward positions are those of evaluation, in "
                "training too",
                stacklevel=2,
            )
        return False
    return training and (torch.is_grad_enabled() or (cache is None and use_cache is None))


def remember(cache: Cache | None, drawn: bool) -> None:
    """Note whether the positions of a cache's first keys were drawn."""
    if cache is not None and (drawn or hasattr(cache, _DRAWN)):
        setattr(cache, _DRAWN, drawn)


def count(mask: Any, where: Tensor) -> Tensor:
    """Positions of tokens number ``where`` (1, N) of a text, padding left out: (1 or B, N).

    ``mask`` is transformers' (B, all tokens so far), 0 in padding; if it is None or of another
    kind, tokens stand where their number says.
    """
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        return where
    return counted(mask != 0).clamp(min=0).index_select(1, where[0].clamp(max=mask.shape[1] - 1))


@functools.cache
def _keeping(theirs: Any) -> Any:
    """A layer of transformers' cache that moves its ``positions`` as it moves its keys.

    They are the keys of a layer of the same kind, (B, 1, keys, 1).
    """

    def both(name: str) -> Any:
        def method(self: Any, *args: Any) -> None:
            getattr(theirs, name)(self, *args)
            getattr(self.positions, name)(*args)

        return method

    about: dict[str, Any] = {name: both(name) for name in _MOVES if hasattr(theirs, name)}
    about["__reduce__"] = lambda self: (_again, (theirs,), vars(self))  # to pickle and to copy
    # by _layer_type transformers would take it for every layer of such a type
    about |= {"__module__": __name__, "_layer_type": None}
    return type(theirs.__name__, (theirs,), about)


#: made here, as torch.compile knows no class that is made while it looks
_KINDS = {kind: _keeping(kind) for kind in (DynamicLayer, StaticLayer)}


def _again(theirs: Any) -> Any:
    kind = _keeping(theirs)
    return kind.__new__(kind)


def positions_of_keys(
    cache: Cache | None, where: Tensor, batch: int, mask: Any = None
) -> Tensor | None:
    """Positions (B, keys) of all keys so far, or None where they are those of the queries.

    A cache that holds keys alone was not filled by our model: it is rebuilt from another's keys
    and values, or a learned prefix. Its keys stand where ``mask`` counts them.

    A static cache has room for keys that are not there yet: their positions are NaN.

    Args:
        where: positions (1 or B, queries) of the queries.
        mask: transformers', (B, keys).

    Raises:
        ValueError: the number of keys is not that of their positions, as somebody has changed the
            keys alone; or keys without positions are in a cache of a fixed length.
    """
    if cache is None:
        return None
    if not cache.layers:  # a cache that was made without a configuration
        cache.layers.append(cache.layer_class_to_replicate())
    layer: Any = cache.layers[0]
    new = where.expand(batch, -1)[:, None, :, None]
    if not hasattr(layer, "positions"):
        first = _first(layer, new, mask)
        theirs: Any = type(layer)
        kind = _KINDS.get(theirs) or _keeping(theirs)
        layer = cache.layers[0] = with_class(layer, kind)
        layer.positions = first
    if not isinstance(layer, StaticLayer):
        keys, known = layer.get_seq_length(), layer.positions.get_seq_length()
        if keys != known:
            raise ValueError(
                f"the cache holds {keys} keys and {known} positions: change it by its own methods, "
                "crop, reorder_cache, …, which move both"
            )
    stored = layer.positions.update(new, new)[0][:, 0, :, 0]
    if isinstance(layer, StaticLayer):  # keys that are not there yet have no position
        there = torch.arange(stored.shape[1], device=stored.device)
        stored = stored.masked_fill(there >= layer.positions.get_seq_length(), torch.nan)
    return None if stored.shape[1] == where.shape[1] else stored


def _first(layer: Any, like: Tensor, mask: Any) -> DynamicLayer | StaticLayer:
    """What keeps positions: of the layer's kind, with those of keys that are there already."""
    if isinstance(layer, StaticLayer):
        if layer.is_initialized and int(layer.get_seq_length()):
            raise ValueError(
                "a static cache holds keys of which our model knows no positions: let it fill the "
                "cache from the text's first token on"
            )
        return StaticLayer(layer.max_cache_len)
    made = DynamicLayer()
    if seen := layer.get_seq_length():
        old = count(mask, torch.arange(seen, device=like.device)[None]).to(like.dtype)
        old = old.expand(len(like), -1)[:, None, :, None]
        made.update(old, old)
    return made
