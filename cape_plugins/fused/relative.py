"""Scores of relative positions in one buffer, and long attention in parts.

Plain operations copy all scores for the concatenation, for the mask and for a layout that fused
attention takes, and backward keeps them. Here a matrix product writes into a buffer of which
attention gets a view. In long sequences attention goes through the queries in parts, and backward
makes the scores of a part again: memory grows with the length, not with its square.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cape_plugins.fused.guard import usable

# queries of a part, and from how many scores of a head on attention takes parts
PART, MANY = 384, 2 * 1024 * 1024


def attend_in_parts(
    bias: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
) -> Tensor:
    """Attention of queries (B, heads, queries, d), in parts where there are many scores.

    ``bias(query, key, mask, later)`` is what a part's scores get, with the mask in it. What parts
    save is memory: without them 4,096 tokens take 30 operations in place of 418, and as many bytes
    go in and out, but all scores are kept for backward.
    """
    queries, keys = query.shape[2], key.shape[2]

    def attend(part: Tensor, key: Tensor, value: Tensor, own: Tensor | None, later: int) -> Tensor:
        added = bias(part, key, own, later)
        scale = part.shape[3] ** -0.5
        return F.scaled_dot_product_attention(part, key, value, added, dropout, scale=scale)

    if queries * keys < MANY or queries < 2 * PART:
        return attend(query, key, value, mask, 0)
    found = []
    for start in range(0, queries, PART):
        part = query[:, :, start : start + PART]
        own = mask
        if mask is not None and mask.shape[-2] > 1:
            own = mask[..., start : start + PART, :]
        later = queries - start - part.shape[2]
        found.append(
            checkpoint(
                attend,
                *(part, key, value, own, later),
                use_reentrant=False,
                # backward needs the same dropout, and else no random state
                preserve_rng_state=dropout > 0,
                determinism_check="none",
            )
        )
    return torch.cat(found, dim=2)


def distance_scores(
    plain: Callable[..., Tensor],
    query: Tensor,
    table: Tensor,
    mask: Tensor | None,
    left: int,
    right: int,
) -> Tensor:
    """``plain(query, table, left, right)``, -inf where a bool mask is False.

    ``plain`` is :func:`cape_plugins.relpos.distance_scores`. Without this piece 1,024 tokens read
    and write 80 bytes a score in place of 27.
    """
    return _DistanceScores.apply(plain, query, table, mask, left, right)


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
    """The scores and a bool mask in one buffer, and their gradient in another.

    ``rows`` of a buffer are (B · heads, queries, distances).
    """

    @staticmethod
    def forward(
        ctx: Any,
        plain: Callable[..., Tensor],
        query: Tensor,
        table: Tensor,
        mask: Tensor | None,
        left: int,
        right: int,
    ) -> Tensor:
        ctx.save_for_backward(query, table)
        ctx.plain, ctx.beyond = plain, (left, right)
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
        if torch.is_grad_enabled() or not usable(grad):  # of second order, or batched
            found = _plain_gradients(ctx.plain, query, table, left, right, grad)
            return None, *found, None, None, None
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
        return None, of_query, of_table, None, None, None


def _plain_gradients(
    plain: Callable[..., Tensor], query: Tensor, table: Tensor, left: int, right: int, grad: Tensor
) -> tuple[Tensor, ...]:
    """The gradients of query and table, by operations that have gradients themselves."""
    inputs = [x if x.requires_grad else x.detach().requires_grad_() for x in (query, table)]
    with torch.enable_grad():
        scores = plain(inputs[0], inputs[1], left, right)
        return torch.autograd.grad(scores, inputs, grad, create_graph=True)
