"""A variant whose layers share one module, which prepares positions by its parameters."""

from dataclasses import dataclass

import torch
from torch import nn

from cape_plugins import Given, PositionalAttention, Variant
from cape_plugins.attention import merge, with_heads
from cape_plugins.variants import TABLE, Registered


@dataclass(eq=False, repr=False)
class Shared(PositionalAttention):
    """Adds position · vector to queries and keys, and a distance · slope to the scores."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.vector = nn.Parameter(torch.rand(self.sizes.head_dim))
        self.slope = nn.Parameter(torch.rand(()))

    def prepare(self, queries, keys, mask, dtype):
        where = queries[..., :1].nan_to_num(0.0)
        rows = (where * self.vector).to(dtype)
        of_keys = keys[..., :1].nan_to_num(0.0)
        bias = self.slope * (where - of_keys.transpose(1, 2))[:, None].abs()
        theirs = rows if keys is queries else (of_keys * self.vector).to(dtype)
        return Given(rows, theirs, bias=merge(bias, with_heads(mask), dtype))

    def embed_both(self, query, key, given):
        if query.shape == key.shape:  # of a sequence: one row for both
            assert given.queries is given.keys
        return super().embed_both(query, key, given)

    def embed(self, x, rows):
        return x + rows[:, None]


def register(monkeypatch, name: str = "shared") -> None:
    """Give it a name until the end of a test; hosts that have read the table take a known one."""
    made = Registered(Variant(attends=Shared, one_for_all=True), "cape_plugins")
    for table in TABLE.values():
        monkeypatch.setitem(table, name, made)
