"""``relpos``: learnable relative positions, the paper's baseline in speech and translation.

Query i scores key j by q_i · (k_j + a_(j-i)), where a is a table of one vector per distance, shared
by the heads; distances beyond the context take the vector of the context (Shaw et al. 2018,
https://arxiv.org/abs/1803.02155). The table is not spread out to (T, T, d), one vector per pair:
each query meets each distance once, and a view shifts the rows of that product to where their keys
stand.

    >>> attention = RelativePositions(Sizes(dim=512, heads=8), relpos_context=150)
    >>> out, _ = attention(query, key, value, Given(mask=mask))  # (B, heads, N, head_dim)
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cape_plugins import fused
from cape_plugins.attention import (
    NOTHING,
    Given,
    PositionalAttention,
    for_each_head,
    merge,
    with_heads,
)
from cape_plugins.checks import check_values, is_traced
from cape_plugins.options import POSITION, check_asked, option


@dataclass(eq=False, repr=False)
class RelativePositions(PositionalAttention):
    """Learnable vectors for how far, in tokens, each key is from the query.

    ``keys`` are (2 · context + 1, head_dim), uniform in ± 0.1 at first (authors); the context is in
    tokens. Within a sequence tokens are counted in their order, which is fast; evaluation refuses
    positions that say something else. Between queries and other keys (a cache) distances are those
    of positions, in tokens.
    """

    relpos_context: float | None = option(
        None,
        "distances beyond this, to either side, share a vector",
        unit=POSITION,
        asked="the paper's: 150 tokens, 26.8 s; less than the longest input of training",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_asked(self)
        assert self.relpos_context is not None
        self.context = self.sizes.tokens("relpos_context", self.relpos_context)
        self.keys = nn.Parameter(torch.empty(2 * self.context + 1, self.sizes.head_dim))
        self.looked = False  # at positions on a GPU
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors anew."""
        nn.init.uniform_(self.keys, -0.1, 0.1)

    def prepare(
        self, queries: Tensor, keys: Tensor, mask: Tensor | None, dtype: torch.dtype
    ) -> Given:
        """Nothing but the mask for a sequence, whose tokens are counted.

        Where keys are others than the queries, how many tokens each key is from each query, by
        their positions: a row of the table for both, (1 or B, queries, keys).

        Raises:
            ValueError: in evaluation, positions of a sequence are not evenly spaced in the order of
                its tokens, or those of other keys not by one ``spacing``. With a mask they may
                begin again at the least: texts packed into one row. (On a GPU the first forward
                alone is checked: each check is kernels.)
        """
        # in training the paper's front end leaves out frames by chance (cape_fbank)
        asked = not (self.training or is_traced())
        if asked and (queries.device.type == "cpu" or not self.looked):
            self.looked = True
            self.check_even(keys[..., 0], mask is not None, keys is queries)
        if keys is queries:
            return Given(mask=with_heads(mask))
        apart = (keys[:, None, :, 0] - queries[:, :, None, 0]) / self.sizes.spacing
        apart = apart.nan_to_num(0.0).round().long().clamp(-self.context, self.context)
        return Given(pairs=apart + self.context, mask=with_heads(mask))

    def check_even(self, positions: Tensor, begin_again: bool, by_any: bool) -> None:
        """Raise ValueError unless tokens at positions (1 or B, N) stand where counting has them.

        ``by_any`` spacing, each sequence by its own (ESPnet's ``cape_fbank``), or by that of sizes.
        """
        if positions.shape[1] < 2:
            return

        def ok() -> Tensor:
            spacing = torch.full_like(positions[:, :1], self.sizes.spacing)
            if by_any:
                spacing = positions.diff(dim=1).nanmedian(dim=1, keepdim=True).values
            where = positions / spacing
            index = torch.arange(where.shape[1], device=where.device)
            start = (~where.isnan()).int().argmax(dim=1, keepdim=True)
            if begin_again:
                least = where == where.nan_to_num(torch.inf).amin(dim=1, keepdim=True)
                start = (index * least).cummax(dim=1).values
            beyond = where - index - (where - index).gather(1, start)
            return ~((beyond.abs() >= 0.5) | (spacing <= 0))  # of NaN too

        by = "evenly spaced" if by_any else f"{self.sizes.spacing:g} apart"
        check_values(
            positions,
            ok,
            f"relpos counts a sequence's tokens in their order, so they must be {by} in it: give "
            "even positions, or choose rope or alibi, which read them",
        )

    def bias(self, query: Tensor, key: Tensor, given: Given = NOTHING) -> Tensor:
        """What distances add to the scores: (B, heads, queries, keys).

        Without ``given`` queries and keys are one sequence.
        """
        if given.pairs is None:
            return distance_scores(*self.distances_of(query, key.shape[2], 0))
        scores = query * query.shape[3] ** -0.5 @ self.keys.T.to(query.dtype)
        return scores.gather(3, given.pairs[:, None].expand(*scores.shape[:3], key.shape[2]))

    def bias_and_mask(self, query: Tensor, key: Tensor, given: Given) -> Tensor:
        """:meth:`bias` and mask as one, to be added to the scores."""
        if given.pairs is None:
            return self.distances_and_mask(query, key, given.mask)
        found = super().bias_and_mask(query, key, given)
        assert found is not None  # for mypy
        return found

    def distances_and_mask(
        self, query: Tensor, key: Tensor, mask: Tensor | None, later: int = 0
    ) -> Tensor:
        """:meth:`bias_and_mask` of a sequence's tokens, after which ``later`` more queries come."""
        scaled, table, left, right = self.distances_of(query, key.shape[2], later)
        if fused.usable(scaled, table):
            hidden = mask if mask is not None and mask.dtype == torch.bool else None
            found = fused.distance_scores(distance_scores, scaled, table, hidden, left, right)
            mask = None if hidden is not None else mask
        else:
            found = distance_scores(scaled, table, left, right)
        merged = merge(found, mask, query.dtype)
        assert merged is not None  # for mypy
        return merged

    def distances_of(self, query: Tensor, keys: int, later: int) -> tuple[Tensor, Tensor, int, int]:
        """Scaled queries, the rows of the table for their distances, and how many lie beyond it."""
        scaled, queries, context = query * query.shape[3] ** -0.5, query.shape[2], self.context
        # the largest distances to the left and to the right
        left, right = keys - later - 1, queries + later - 1
        # those within the context have rows of the table, those beyond it take the last row
        table = self.keys[max(context - left, 0) : context + right + 1].to(query.dtype)
        return scaled, table, max(left - context, 0), max(right - context, 0)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        given: Given = NOTHING,
        dropout: float = 0.0,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """:meth:`PositionalAttention.attend`, in parts where there are many scores."""
        if given.pairs is None:
            if not is_traced() and query.shape[2] != key.shape[2]:
                raise ValueError(
                    f"{query.shape[2]} queries and {key.shape[2]} keys are not one sequence: give "
                    "Positions where the keys are, by keys="
                )
            if not need_weights and fused.usable(query, key, value):
                key, value = (for_each_head(x, query.shape[1]) for x in (key, value))
                return fused.attend_in_parts(
                    self.distances_and_mask, query, key, value, given.mask, dropout
                ), None
        return super().attend(query, key, value, given, dropout, need_weights)


@dataclass(eq=False, repr=False)
class RelativePositionsFirst(RelativePositions):
    """``relpos_first``: in the first layer alone (the paper's appendix, speech)."""

    def acts_in(self, layer: int) -> bool:
        """Whether it is the first."""
        return layer == 0


def distance_scores(query: Tensor, table: Tensor, left: int, right: int) -> Tensor:
    """Scores of each query with the key at each distance.

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
