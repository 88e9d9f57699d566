"""Positions of cached keys, which what is added to scores needs.

They are one more layer of transformers' cache, which so is cropped, reordered for beams and
repeated as the keys are.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, StaticLayer


def positions_of_keys(cache: Cache | None, index: int, where: Tensor, batch: int) -> Tensor | None:
    """Positions (B, keys) of all keys so far, or None where they are those of the queries.

    They are layer number ``index`` of the cache, keys of one head and one channel.
    """
    if cache is None:
        return None
    new = where.expand(batch, -1)[:, None, :, None]
    while len(cache.layers) < index:  # a cache that was made without a configuration
        cache.layers.append(cache.layer_class_to_replicate())
    if len(cache.layers) == index:
        cache.layers.append(_layer_of_positions(cache, new))
    stored = cache.layers[index].update(new, new)[0][:, 0, :, 0]
    return None if stored.shape[1] == where.shape[1] else stored


def _layer_of_positions(cache: Cache, like: Tensor) -> Any:
    """A layer for positions; keys that are there already (a learned prefix) have none, NaN."""
    first = cache.layers[0]
    if isinstance(first, StaticLayer):
        return StaticLayer(first.max_cache_len)
    layer = DynamicLayer()
    if seen := first.get_seq_length():
        none = like.new_full((len(like), 1, seen, 1), torch.nan)
        layer.update(none, none)
    return layer
