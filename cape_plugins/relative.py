"""Attention with learnable relative positions (``relpos``), the paper's baseline in two hosts.

Shaw et al. 2018, https://arxiv.org/abs/1803.02155: query i scores key j by q_i · (k_j + a_(j-i)),
distances beyond the context clipped to it. The vectors are shared by the heads and never laid out
as (T, T, d): queries meet each distance once, and a view shifts the rows of that product in place.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RelativeAttention(nn.Module):
    """Scaled dot-product attention that knows how far each key is from the query.

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
        self.keys = nn.Parameter(torch.empty(2 * context + 1, head_dim))
        self.register_parameter("values", None)
        if values:
            self.values = nn.Parameter(torch.empty(2 * context + 1, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors anew."""
        for table in self.parameters():
            nn.init.uniform_(table, -0.1, 0.1)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Attend.

        Args:
            query: (B, heads, queries, head_dim), at the last of the keys' positions: at all of
                them in an encoder, at one in step-by-step decoding.
            key: (B, heads, keys, head_dim).
            value: (B, heads, keys, head_dim).
            mask: bool, broadcastable to (B, heads, queries, keys); True where a query may see a
                key. Every query must see one.
            dropout: on the attention weights; 0 outside training.

        Returns:
            (B, heads, queries, head_dim).

        Raises:
            ValueError: there are more queries than keys, or head_dim is another.
        """
        scale = self.head_dim**-0.5
        bias = self.logits(query * scale, key.shape[2])
        if mask is not None:
            bias = bias.masked_fill(~mask, -torch.inf)
        if self.values is None:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask=bias, dropout_p=dropout, scale=scale
            )
        scores = (query * scale) @ key.transpose(-2, -1) + bias
        wide = torch.promote_types(scores.dtype, torch.float32)
        weights = F.dropout(scores.softmax(dim=-1, dtype=wide), dropout).to(value.dtype)
        return weights @ value + self.mix(weights)

    def logits(self, query: Tensor, keys: int) -> Tensor:
        """What distances add to the scores: (B, heads, queries, d) → (B, heads, queries, keys).

        The query comes scaled, as it meets the keys. For hosts that score by themselves.
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
