"""T5's buckets, CoPE and conditional convolutions: what FIRE, the other example, does not need.

- ``t5_shared`` is one module in all layers, so that ``prepare`` may use its parameters; ``t5`` has
  a table in each layer (Raffel et al. 2020, https://arxiv.org/abs/1910.10683).
- ``cope`` is a bias of queries and keys (Golovneva et al. 2024, https://arxiv.org/abs/2405.18719).
- ``conditional`` adds what depends on the content (Chu et al. 2021,
  https://arxiv.org/abs/2102.10882).

>>> layer = T5(Sizes(dim=64, heads=4))
>>> where = token_positions([10])[..., None]
>>> given = layer.prepare(where, where, None, query.dtype)
>>> out, _ = layer(query, key, value, given)                # (B, heads, queries, head_dim)
"""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cape_plugins import (
    Added,
    Given,
    PositionalAttention,
    Variant,
    as_bool,
    option,
    register_variant,
)
from cape_plugins.attention import merge, with_heads
from cape_plugins.checks import check_count, check_positive


@dataclass(eq=False, repr=False)
class T5(PositionalAttention):
    """Adds a learned number for the bucket of the distance between query and key.

    Half of the buckets are for keys behind the query, half for those before it; the first half of
    either for single tokens, the others ever wider. On two axes the numbers of both are added.

    Raises:
        ValueError: an option is out of range.
    """

    t5_buckets: int = option(32, "buckets of distances, to both sides together")
    t5_furthest: float = option(128.0, "tokens from which on all distances share a bucket")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("t5_buckets", self.t5_buckets, least=4)
        check_positive("t5_furthest", self.t5_furthest)
        if self.t5_buckets % 4 or self.t5_furthest <= self.t5_buckets // 4:
            raise ValueError(
                "t5_buckets must be a multiple of 4 and t5_furthest more than a quarter of it, got "
                f"{self.t5_buckets} and {self.t5_furthest:g}"
            )
        std = self.sizes.dim**-0.5  # as in transformers
        self.table = nn.Parameter(torch.empty(self.sizes.axes, self.t5_buckets, self.sizes.heads))
        nn.init.normal_(self.table, std=std)

    def prepare(
        self, queries: Tensor, keys: Tensor, mask: Tensor | None, dtype: torch.dtype
    ) -> Given:
        """The bucket of each query and key on each axis, (1 or B, queries, keys, axes)."""
        return Given(pairs=self.buckets(queries, keys), mask=mask)

    def bias(self, query: Tensor, key: Tensor, given: Given) -> Tensor | None:
        """(1 or B, heads, queries, keys)."""
        assert given.pairs is not None, "T5 needs positions"
        return self.numbers(given.pairs)

    def buckets(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Buckets as in T5; a token without a position is at distance 0 of all."""
        apart = (keys[:, None] - queries[:, :, None]) / self.sizes.spacing
        apart = apart.nan_to_num(0.0).round()
        half, single = self.t5_buckets // 2, self.t5_buckets // 4
        far = apart.abs().clamp(min=single).div(single).log() / math.log(self.t5_furthest / single)
        wide = (single + far * (half - single)).clamp(max=half - 1)
        nearness = torch.where(apart.abs() < single, apart.abs(), wide)
        return nearness.long() + half * (apart > 0)

    def numbers(self, buckets: Tensor) -> Tensor:
        """The table's numbers for buckets (…, queries, keys, axes): (…, heads, queries, keys)."""
        found = sum(table[buckets[..., axis]] for axis, table in enumerate(self.table))
        assert isinstance(found, Tensor)
        return found.permute(0, 3, 1, 2)


@dataclass(eq=False, repr=False)
class SharedT5(T5):
    """:class:`T5` in all layers: what is added is made once, by the parameters of the module."""

    def prepare(
        self, queries: Tensor, keys: Tensor, mask: Tensor | None, dtype: torch.dtype
    ) -> Given:
        """What every layer adds to the scores, with the mask in it."""
        numbers = self.numbers(self.buckets(queries, keys))
        return Given(bias=merge(numbers, mask, dtype))

    def bias(self, query: Tensor, key: Tensor, given: Given) -> None:
        """Nothing of its own."""


@dataclass(eq=False, repr=False)
class Cope(PositionalAttention):
    """Positions that are counted by the content: each query counts keys of its choice.

    Query i and key j are Σ σ(q_i · k_l) apart, summed over the keys l between them, j among them;
    the query scores a vector for that distance. Distances are real numbers, between two of which
    the vectors' scores are interpolated. For decoders it is the paper's; here what comes after the
    query counts in the same way.
    """

    cope_most: int = option(64, "distances beyond this share a vector")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("cope_most", self.cope_most, least=2)
        self.vectors = nn.Parameter(torch.zeros(self.sizes.head_dim, self.cope_most))

    def prepare(
        self, queries: Tensor, keys: Tensor, mask: Tensor | None, dtype: torch.dtype
    ) -> Given:
        """Whether a key is at the query or before it, and after it: (1 or B, queries, keys, 2).

        A key that no head sees is neither: it is padding, of another text, or not there yet.
        """
        where, here = keys[:, None, :, 0], queries[:, :, None, 0]
        sides = torch.stack([where <= here, where > here], dim=-1)
        if (seen := with_heads(mask)) is not None:
            sides = sides & as_bool(seen).any(dim=1)[..., None]
        return Given(pairs=sides, mask=mask)

    def bias(self, query: Tensor, key: Tensor, given: Given) -> Tensor:
        """(B, heads, queries, keys), of queries and keys."""
        assert given.pairs is not None, "CoPE needs positions"
        before, after = given.pairs[:, None].unbind(-1)  # (1 or B, 1, queries, keys)
        query = query * query.shape[3] ** -0.5
        gates = (query @ key.transpose(2, 3)).sigmoid()
        total = (gates * before).flip(3).cumsum(3).flip(3) + (gates * after).cumsum(3)
        count = torch.where(before | after, total, 0.0).clamp(max=self.cope_most - 1)
        low = count.floor()
        scores = query @ self.vectors.to(query.dtype)  # (B, heads, queries, most)
        first = scores.gather(3, low.long())
        second = scores.gather(3, count.ceil().long())
        return torch.lerp(first, second, (count - low).to(first.dtype))


@dataclass(eq=False, repr=False)
class Conditional(Added):
    """Adds a convolution of the content: each channel of a token and of its neighbours.

    Neighbours are the nearest tokens on each axis, or diagonally: 2 in a sequence, 8 in an image.
    A token without a position is nobody's neighbour, and gets nothing.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        count = 3**self.sizes.axes
        self.weight = nn.Parameter(torch.empty(count, self.sizes.dim))
        nn.init.uniform_(self.weight, -(count**-0.5), count**-0.5)  # as nn.Conv1d, Conv2d

    def add(self, content: Tensor, positions: Tensor) -> Tensor:
        """(B, N, dim) + the convolution, by positions (1 or B, N, axes)."""
        one, other = positions[:, :, None], positions[:, None]  # of a token, of all others
        previous = torch.where(other < one, other, -torch.inf).amax(dim=2)
        following = torch.where(other > one, other, torch.inf).amin(dim=2)
        steps = torch.stack([previous, positions, following])  # (3, 1 or B, N, axes)
        found = content
        axes = self.sizes.axes
        for weight, offset in zip(
            self.weight, itertools.product(range(3), repeat=axes), strict=True
        ):
            there = torch.stack([steps[step, ..., axis] for axis, step in enumerate(offset)], -1)
            neighbour = (there[:, :, None] == other).all(dim=-1)  # (1 or B, N, N)
            found = found + neighbour.to(content.dtype) @ (content * weight.to(content.dtype))
        return found


register_variant("t5", Variant(attends=T5))
register_variant("t5_shared", Variant(attends=SharedT5, one_for_all=True))
register_variant("cope", Variant(attends=Cope, axes=(1,)))
register_variant("conditional", Variant(adds=Conditional))
