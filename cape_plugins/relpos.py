"""``relpos``: learnable relative positions, the paper's baseline in speech and translation.

Query i scores key j by q_i · (k_j + a_(j-i)), where a is a table of one vector per distance, shared
by the heads; distances beyond the context take the vector of the context (Shaw et al. 2018,
https://arxiv.org/abs/1803.02155). The table is not spread out to (T, T, d), one vector per pair:
each query meets each distance once, and a view shifts the rows of that product to where their keys
stand. In long sequences attention goes through the queries in parts, and backward makes the scores
of a part again: memory grows with the length, not with its square.

    >>> settings = AttentionSettings(head_dim=64, heads=8, context=150)
    >>> attention = RelativeAttention(settings)
    >>> out, _ = attention(query, key, value, mask=mask)    # (B, heads, queries, head_dim)
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cape_plugins.attention import AttentionSettings, PositionalAttention, merge_bias
from cape_plugins.checks import is_plain
from cape_plugins.logn import scale_queries

# queries of a part, and from how many scores of a head on attention takes parts
PART, MANY = 384, 2 * 1024 * 1024


class RelativeAttention(PositionalAttention):
    """Learnable vectors for how far, in tokens, each key is from the query.

    ``keys`` are (2 · context + 1, head_dim), uniform in ± 0.1 at first (authors).
    """

    def __init__(self, settings: AttentionSettings) -> None:
        super().__init__(settings)
        self.context = settings.context
        self.keys = nn.Parameter(torch.empty(2 * self.context + 1, settings.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors anew."""
        nn.init.uniform_(self.keys, -0.1, 0.1)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        dropout: float = 0.0,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """:meth:`PositionalAttention.attend`, in parts where there are many scores."""
        queries, keys = query.shape[2], key.shape[2]
        whole = need_weights or not is_plain(query, key, value)
        if whole or queries * keys < MANY or queries < 2 * PART:
            return super().attend(query, key, value, positions, mask, dropout, need_weights)
        found = []
        for start in range(0, queries, PART):
            part = query[:, :, start : start + PART]
            own = mask
            if mask is not None and mask.shape[-2] > 1:
                own = mask[..., start : start + PART, :]
            later = queries - start - part.shape[2]
            given = (part, key, value, own, dropout, later)
            keep = dropout > 0  # backward needs the same dropout, and else no random state
            found.append(
                checkpoint(
                    self._attend_part,
                    *given,
                    use_reentrant=False,
                    preserve_rng_state=keep,
                    determinism_check="none",
                )
            )
        return torch.cat(found, dim=2), None

    def _attend_part(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        dropout: float,
        later: int,
    ) -> Tensor:
        """Attention of some of the queries; ``later`` more queries follow them."""
        if self.logn:
            query = scale_queries(query, key.shape[2], mask, self.logn)
        bias = self._bias(query, key.shape[2], mask, later)
        scale = query.shape[3] ** -0.5
        return F.scaled_dot_product_attention(query, key, value, bias, dropout, scale=scale)

    def bias(self, query: Tensor, keys: int, positions: Tensor | None = None) -> Tensor:
        """What distances add to the scores: (B, heads, queries, d) → (B, heads, queries, keys).

        Distances are counted in tokens, whatever the positions are.

        Raises:
            ValueError: the queries have another number of channels than the table.
        """
        return self._bias(query, keys, mask=None)

    def _query_and_bias(
        self, query: Tensor, key: Tensor, positions: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if self.logn:
            query = scale_queries(query, key.shape[2], mask, self.logn)
        return query, self._bias(query, key.shape[2], mask)

    def _bias(self, query: Tensor, keys: int, mask: Tensor | None, later: int = 0) -> Tensor:
        """:meth:`bias`, merged with the mask, for queries that ``later`` more queries follow."""
        queries, context, head_dim = query.shape[2], self.context, self.keys.shape[1]
        if query.shape[3] != head_dim:
            raise ValueError(f"queries of {query.shape[3]} channels, built for {head_dim}")
        # the largest distances to the left and to the right
        left, right = keys - later - 1, queries + later - 1
        # those within the context have rows of the table, those beyond it take the last row
        table = self.keys[max(context - left, 0) : context + right + 1].to(query.dtype)
        beyond = max(left - context, 0), max(right - context, 0)
        query = query * head_dim**-0.5
        if is_plain(query, table) and query.device.type in ("cpu", "cuda"):
            hidden = mask if mask is not None and mask.dtype == torch.bool else None
            found = _DistanceScores.apply(query, table, hidden, *beyond)
            mask = None if hidden is not None else mask
        else:
            found = _distance_scores(query, table, *beyond)
        merged = merge_bias(found, mask, query.dtype)
        assert merged is not None  # for mypy
        return merged


def _distance_scores(query: Tensor, table: Tensor, left: int, right: int) -> Tensor:
    """Scores of each query with the key at each distance: plainly, for what sees inside.

    Args:
        query: (B, heads, queries, d).
        table: (rows, d), a row for each distance from the farthest on the left on.
        left, right: how many distances beyond the table share its first row, and its last.

    Returns:
        (B, heads, queries, keys), a view; left + rows + right = queries + keys - 1.
    """
    queries = query.shape[2]
    scores = query @ table.T  # (B, heads, queries, rows)
    nearest = scores[..., :1].expand(*scores.shape[:3], left)
    # one column for each distance, and a filler
    farthest = scores[..., -1:].expand(*scores.shape[:3], right + 1)
    scores = torch.cat([nearest, scores, farthest], dim=-1)
    # a view moves row i by i columns to the left of row 0: column c of row i was
    # queries - 1 - i + c, which is where the distance of key c stands
    width = scores.shape[-1] - 1
    flat = scores.flatten(-2)[..., queries - 1 : queries - 1 + queries * width]
    return flat.unflatten(-1, (queries, width))[..., : width - queries + 1]


class _Shift:
    """A buffer with a column for each distance, and the view of it with a column for each key.

    Row i of the view begins i columns to the left of where row 0 does, so rows of the view are one
    column shorter than those of the buffer. Where they begin is a multiple of 16 columns, so that
    fused attention takes the view as it is; what lies to the left of the first distance is unused.
    """

    def __init__(self, query: Tensor, distances: int) -> None:
        batch, heads, queries, _ = query.shape
        self.start = _up_to_16(queries - 1)  # where row 0 of the view begins
        self.unused = self.start - (queries - 1)
        row = _up_to_16(self.unused + distances)  # of the view
        # rows of samples and heads begin at multiples of 16 too
        self.buffer = query.new_empty(batch * heads, _up_to_16(queries), row + 1)
        self.rows = self.buffer[:, :queries, self.unused : self.unused + distances]
        per_head = self.buffer.stride(0)
        self.view = self.buffer.as_strided(
            (batch, heads, queries, distances - queries + 1),
            (heads * per_head, per_head, row, 1),
            self.start,
        )


def _up_to_16(count: int) -> int:
    return -(-count // 16) * 16


class _DistanceScores(torch.autograd.Function):
    """:func:`_distance_scores`, merged with a bool mask, in one buffer; its gradient likewise.

    ``rows`` of the buffer are (B · heads, queries, distances).
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, table: Tensor, mask: Tensor | None, left: int, right: int
    ) -> Tensor:
        ctx.save_for_backward(query, table)
        ctx.beyond = left, right
        rows = table.shape[0]
        shift = _Shift(query, left + rows + right)
        within = shift.rows[..., left : left + rows]
        flat = query.flatten(0, 1)  # (B · heads, queries, d)
        torch.bmm(flat, table.T.expand(len(flat), -1, -1), out=within)
        shift.rows[..., :left] = within[..., :1]
        shift.rows[..., left + rows :] = within[..., -1:]
        return shift.view if mask is None else shift.view.masked_fill_(~mask, -torch.inf)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        query, table = ctx.saved_tensors
        left, right = ctx.beyond
        if torch.is_grad_enabled() or not is_plain(grad):  # of second order, or batched
            return *_plain_gradients(query, table, left, right, grad), None, None, None
        queries, rows, keys = query.shape[2], table.shape[0], grad.shape[3]
        # keys beyond the context of all queries need no shift
        first, last = max(left - queries + 1, 0), min(left + rows, keys)
        before, after = grad[..., :first], grad[..., last:]
        left, right = left - first, right - (keys - last)
        shift = _Shift(query, left + rows + right)
        # a row has no key in as many columns as there are other queries
        shift.rows[..., : queries - 1] = 0
        shift.rows[..., shift.rows.shape[-1] - queries + 1 :] = 0
        shift.view.copy_(grad[..., first:last])
        within = shift.rows[..., left : left + rows]
        for column, far, near in (
            (0, before, shift.rows[..., :left]),
            (-1, after, shift.rows[..., left + rows :]),
        ):
            within[..., column] += near.sum(dim=-1) + far.sum(dim=-1).flatten(0, 1)
        flat = query.flatten(0, 1)
        of_query = torch.bmm(within, table.expand(len(flat), -1, -1)).view_as(query)
        of_table = torch.bmm(within.transpose(1, 2), flat).sum(dim=0)
        return of_query, of_table, None, None, None


def _plain_gradients(
    query: Tensor, table: Tensor, left: int, right: int, grad: Tensor
) -> tuple[Tensor, ...]:
    """The gradients of query and table, by operations that have gradients themselves."""
    inputs = [x if x.requires_grad else x.detach().requires_grad_() for x in (query, table)]
    with torch.enable_grad():
        scores = _distance_scores(inputs[0], inputs[1], left, right)
        return torch.autograd.grad(scores, inputs, grad, create_graph=True)
