"""Positions in self-attention: what such a variant may do there, and learnable relative positions.

Rotary positions are in :mod:`cape_plugins.rotary`.

``relpos`` is the paper's baseline in two hosts: Shaw et al. 2018, https://arxiv.org/abs/1803.02155.
Query i scores key j by q_i · (k_j + a_(j-i)), distances beyond the context clipped to it. The
vectors are shared by the heads and never laid out as (T, T, d): queries meet each distance once,
and a view shifts the rows of that product in place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cape_plugins.logn import scale_queries


@dataclass(frozen=True)
class AttentionSettings:
    """What a host tells of its self-attention.

    Attributes:
        head_dim: channels of a head.
        heads: their number.
        context: relpos: distances -context … context have a vector each; those beyond share the
            last.
        values: relpos: also learn vectors that are added to the values (the paper: keys only).
        axes: 1 in sequences, 2 in images.
        frequency_scale: rope: multiplies all frequencies, as those of sinusoids in that host; so
            does alibi with distances in sequences.
    """

    head_dim: int
    heads: int
    context: int
    values: bool
    axes: int = 1
    frequency_scale: float = 1.0


class PositionalAttention(nn.Module):
    """Scaled dot-product attention; subclasses say what positions do in it, here nothing.

    Positions are (B, keys) or (B, keys, 2), or with 1 for B to share them: those of the keys, in
    the host's unit (tokens, seconds, patch coordinates), as the variant's ``augment`` leaves them:
    the same in all layers of a forward. NaN marks padding and tokens without a position. Queries
    are the last of the keys: all of them in an encoder, one in step-by-step decoding.

    Attributes:
        learns_values: whether :meth:`mix` adds something, for which the host needs the weights.
        logn: N_train of :func:`cape_plugins.logn.scale_queries`; 0 leaves queries as they are.
    """

    learns_values: bool = False
    logn: int = 0

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""

    def prepare(self, positions: Tensor) -> Tensor:
        """What the methods below get as ``positions``; hosts ask once for all layers of a forward.

        Args:
            positions: (B, N) or (B, N, 2), see above.

        Returns:
            (B, N, …), a row for each token. Here the positions in float32.
        """
        return positions.to(torch.float32)

    def place(self, x: Tensor, positions: Tensor | None) -> Tensor:
        """Queries or keys (B, heads, N, head_dim) → same, before keys go into a cache.

        Args:
            x: the queries or keys.
            positions: theirs, prepared.
        """
        return x

    def sharpen(self, query: Tensor, keys: int, mask: Tensor | None) -> Tensor:
        """Queries × log N / log N_train where that is on; arguments as there."""
        return scale_queries(query, keys, mask, self.logn) if self.logn else query

    def logits(self, query: Tensor, keys: int, positions: Tensor | None = None) -> Tensor | None:
        """What is added to the scores, broadcastable to (B, heads, queries, keys), or None.

        Args:
            query: (B, heads, queries, head_dim), scaled, as it meets the keys.
            keys: their number.
            positions: those of the keys, prepared.
        """
        return None

    def mix(self, weights: Tensor) -> Tensor | None:
        """What is added to the output: (B, heads, queries, keys) → (B, heads, queries, d)."""
        return None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Attend.

        Args:
            query: (B, heads, queries, head_dim), at the last of the keys' positions.
            key, value: (B, heads, keys, head_dim).
            positions: those of the keys, as :meth:`prepare` gives them.
            mask: bool, broadcastable to (B, heads, queries, keys); True where a query may see a
                key. Every query must see one.
            dropout: on the attention weights; 0 outside training.

        Returns:
            (B, heads, queries, head_dim).

        Raises:
            ValueError: there are more queries than keys, or head_dim is another.
        """
        queries, keys = query.shape[2], key.shape[2]
        last = None if positions is None else positions[:, keys - queries :]
        query, key = self.place(query, last), self.place(key, positions)
        query = self.sharpen(query, keys, mask)
        return self.attend(query, key, value, positions, mask, dropout)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor | None,
        mask: Tensor | None,
        dropout: float,
    ) -> Tensor:
        """:meth:`forward` after :meth:`place` and :meth:`sharpen`.

        Args:
            query, key, value, positions, dropout: as there.
            mask: as there, or added to the scores.
        """
        scale = query.shape[3] ** -0.5
        bias = joined(self.logits(query * scale, key.shape[2], positions), mask, query.dtype)
        if not self.learns_values:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask=bias, dropout_p=dropout, scale=scale
            )
        scores = (query * scale) @ key.transpose(-2, -1)
        if bias is not None and bias.dtype == torch.bool:
            scores = scores.masked_fill(~bias, -torch.inf)
        elif bias is not None:
            scores = scores + bias
        wide = torch.promote_types(scores.dtype, torch.float32)
        weights = F.dropout(scores.softmax(dim=-1, dtype=wide), dropout).to(value.dtype)
        mixed = self.mix(weights)
        assert mixed is not None
        return weights @ value + mixed


def joined(logits: Tensor | None, mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores, in their dtype; None adds nothing.

    Args:
        logits: of :meth:`PositionalAttention.logits`.
        mask: bool, True where a query sees a key, or added to the scores.
        dtype: of the scores.
    """
    if logits is None or mask is None:
        found = mask if logits is None else logits
        return found if found is None or found.dtype == torch.bool else found.to(dtype)
    if mask.dtype == torch.bool:
        return torch.where(mask, logits.to(dtype), -torch.inf)
    # hosts hide all keys from padding with the least number: beyond it, their softmax is NaN
    return (logits + mask).clamp(min=torch.finfo(dtype).min).to(dtype)


class CurrentPositions:
    """Positions of the batch that is going through a model's layers.

    For hosts that call their layers without them: the model shows them before its layers run, their
    attention reads them. They stay until the next forward, because activation checkpointing runs
    layers again in the backward. Copies and pickles begin without any.

    Attributes:
        prepare: that of the layers' attention; where there is none, nobody reads the positions.
        positions: what it made of those of the batch.
    """

    def __init__(self) -> None:
        self.prepare: Callable[[Tensor], Tensor] = PositionalAttention().prepare
        self.positions: Tensor | None = None

    def show(self, positions: Tensor) -> None:
        """Say where the tokens of the batch are, (B|1, N) or (B|1, N, 2)."""
        self.positions = self.prepare(positions)

    def __getstate__(self) -> dict[str, Any]:
        return {"prepare": self.prepare, "positions": None}


class RelativeAttention(PositionalAttention):
    """Learnable vectors for how far, in tokens, each key is from the query.

    Args:
        head_dim: channels of a head.
        context: distances -context … context have a vector each; those beyond share the last.
        values: also learn vectors that are added to the values (the paper: keys only).

    Attributes:
        keys: (2 · context + 1, head_dim), uniform in ± 0.1 at first (authors).
        values: the same, or None.

    Raises:
        ValueError: ``head_dim`` or ``context`` is below 1.
    """

    def __init__(self, head_dim: int, context: int, *, values: bool = False) -> None:
        super().__init__()
        if head_dim < 1 or context < 1:
            raise ValueError(
                f"head_dim and context must be ≥ 1, got head_dim={head_dim} and context={context}"
            )
        self.head_dim = head_dim
        self.context = context
        self.learns_values = values
        self.keys = nn.Parameter(torch.empty(2 * context + 1, head_dim))
        self.register_parameter("values", None)
        if values:
            self.values = nn.Parameter(torch.empty(2 * context + 1, head_dim))
        self.reset_parameters()

    @classmethod
    def build(cls, settings: AttentionSettings) -> "RelativeAttention":
        """As a host asks for it."""
        return cls(settings.head_dim, settings.context, values=settings.values)

    def reset_parameters(self) -> None:
        """Draw the vectors anew."""
        for table in self.parameters():
            nn.init.uniform_(table, -0.1, 0.1)

    def logits(self, query: Tensor, keys: int, positions: Tensor | None = None) -> Tensor:
        """What distances add to the scores: (B, heads, queries, d) → (B, heads, queries, keys).

        Distances are counted in tokens, whatever the positions are.
        """
        queries = query.shape[2]
        if query.shape[3] != self.head_dim:
            raise ValueError(f"queries of {query.shape[3]} channels, built for {self.head_dim}")
        before, rows, after = self._distances(queries, keys)
        scores = query @ self.keys[rows].to(query.dtype).T  # (B, heads, queries, distances)
        # one column per distance -(keys - 1) … queries - 1, and one more for the shift below
        nearest, farthest = scores[..., :1], scores[..., -1:]
        scores = torch.cat(
            [
                nearest.expand(*nearest.shape[:3], before),
                scores,
                farthest.expand(*farthest.shape[:3], after + 1),
            ],
            dim=-1,
        )
        return _shift_rows(scores)[..., :keys]

    def mix(self, weights: Tensor) -> Tensor:
        """What distances add to the output: (B, heads, queries, keys) → (B, heads, queries, d)."""
        assert self.values is not None
        before, rows, _ = self._distances(*weights.shape[2:])
        table = self.values[rows].to(weights.dtype)
        distances = table.shape[0]
        by_distance = _unshift_rows(weights)  # (B, heads, queries, all distances)
        clipped = by_distance[..., before : before + distances]
        left = by_distance[..., :before].sum(dim=-1, keepdim=True)
        right = by_distance[..., before + distances :].sum(dim=-1, keepdim=True)
        clipped = clipped + F.pad(left, (0, distances - 1)) + F.pad(right, (distances - 1, 0))
        return clipped @ table

    def _distances(self, queries: int, keys: int) -> tuple[int, slice, int]:
        """Rows of the table in reach, and how many distances lie before and after them."""
        if queries > keys:
            raise ValueError(f"{queries} queries are not the last positions of {keys} keys")
        lowest, highest = 1 - keys, queries - 1
        first, last = max(lowest, -self.context), min(highest, self.context)
        rows = slice(first + self.context, last + self.context + 1)
        return first - lowest, rows, highest - last

    def extra_repr(self) -> str:
        """The settings, for ``print(model)``."""
        return f"head_dim={self.head_dim}, context={self.context}, values={self.values is not None}"


def _shift_rows(scores: Tensor) -> Tensor:
    """Row i moves i columns to the left of row 0, by a view; the last column is a filler.

    (…, queries, width + 1) → (…, queries, width): column c of row i was queries - 1 - i + c, which
    is where the distance of key c stands.
    """
    queries, width = scores.shape[-2], scores.shape[-1] - 1
    flat = scores.flatten(-2)[..., queries - 1 : queries - 1 + queries * width]
    return flat.unflatten(-1, (queries, width))


def _unshift_rows(weights: Tensor) -> Tensor:
    """The inverse: (…, queries, keys) → (…, queries, queries + keys - 1), zeros elsewhere."""
    queries, keys = weights.shape[-2:]
    width = queries + keys - 1
    flat = F.pad(weights, (0, width - keys)).flatten(-2)
    return F.pad(flat, (queries - 1, 1)).unflatten(-1, (queries, width + 1))[..., :width]
