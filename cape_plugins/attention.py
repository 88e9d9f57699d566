"""What positions do in self-attention: the base class of all variants that act there.

>>> attention = Rotary(Sizes(dim=512, heads=8))             # a layer's
>>> where = token_positions([50])[..., None]                # (1, 50, 1)
>>> given = attention.prepare(where, where, None, query.dtype)
>>> out, _ = attention(query, key, value, given)            # (B, heads, queries, head_dim)
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cape_plugins.checks import check_count, is_traced
from cape_plugins.options import option
from cape_plugins.part import Part, Sizes


class Given(NamedTuple):
    """What the attention of every layer gets, made once in a forward.

    Attributes:
        queries: (1 or B, queries, …), a row for each query, as the variant prepares its position;
            None where it needs none.
        keys: (1 or B, keys, …), a row for each key; the same tensor where keys are the queries.
        mask: (1 or B, 1 or heads, 1 or queries, 1 or keys): bool, True where a query sees a key, or
            added to the scores. None: every query sees every key.
        bias: (1 or B, 1 or heads, queries, keys), what every layer adds to the scores, with the
            mask in it; None where a layer makes its own, or adds nothing.
        pairs: (1 or B, queries, keys, …), what a layer's own bias needs of a query and a key.
    """

    queries: Tensor | None = None
    keys: Tensor | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None
    pairs: Tensor | None = None

    def seeing(self, mask: Tensor | None, dtype: torch.dtype) -> "Given":
        """This, with another mask besides: as ``mask`` above; scores are in ``dtype``."""
        if mask is None:
            return self
        bias = None if self.bias is None else merge(self.bias, mask, dtype)
        return self._replace(mask=merge(self.mask, mask, dtype), bias=bias)


NOTHING = Given()

#: new keys and values (B, heads, new, head_dim), keys embedded → all of them, (B, heads, keys, ·)
Cache = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
#: embedded queries, keys and values → what attention gives, and its weights or None
Attend = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]


@dataclass(eq=False, repr=False)
class PositionalAttention(Part):
    """Scaled dot-product attention; subclasses say what positions do in it, here nothing.

    :meth:`prepare` is called once in a forward, of the first layer that has it. Its result goes to
    the attention of every layer as an argument. Queries and keys have positions of their own: the
    same in an encoder, one and all so far in a step of decoding.

    All other methods are called by :meth:`forward`, so that hooks on this module (offload, ZeRO-3,
    pruning) act before its weights are read. How a subclass is written:
    :class:`cape_plugins.part.Part`.

    Attributes:
        prepares: whether :meth:`prepare` is called in :meth:`forward` of each layer, and not once
            before all: of a variant that is ``one_for_all``, whose ``prepare`` may use parameters.
        acts: False in a layer that the variant leaves out, where the mask alone counts.
    """

    _: KW_ONLY
    nopos_every: int = option(
        0, "every n-th layer has no positions, as with 4 in SmolLM3; 0: all layers have them"
    )
    prepares, acts = False, True  # without annotations, which would make them options

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("nopos_every", self.nopos_every, least=0)
        if self.nopos_every == 1:
            raise ValueError("nopos_every must be 0, or 2 and more: with 1 no layer has positions")

    def acts_in(self, layer: int) -> bool:
        """Whether the layer of that number, from 0, has it; others keep the host's own.

        A class that overrides it chooses its layers, so its variant does not take ``nopos_every``.
        """
        return not self.nopos_every or (layer + 1) % self.nopos_every > 0

    def prepare(
        self, queries: Tensor, keys: Tensor, mask: Tensor | None, dtype: torch.dtype
    ) -> Given:
        """What the methods below get, made once for all layers of a forward.

        It may use options and sizes, but no parameters: each layer has its own. Of a variant that
        is ``one_for_all`` it is called in each layer, and may use them. The row of a query or a key
        may depend on its own position alone, and not on the other positions: a cache keeps keys as
        :meth:`embed` has left them.

        Args:
            queries: positions (1 or B, queries, axes), augmented, float32 at least, in the host's
                unit. NaN marks padding and tokens without a position, such as a class token.
            keys: the same of the keys, (1 or B, keys, axes); ``queries`` itself where all tokens of
                a sequence attend to each other.
            mask: as :attr:`Given.mask`, or (1 or B, 1 or queries, 1 or keys).
            dtype: of the layers' queries. A bias may be rounded to it here, and not in every layer;
                positions and phases stay float32.
        """
        return Given(queries, keys, with_heads(mask))

    def embed(self, x: Tensor, rows: Tensor | None) -> Tensor:
        """Put prepared rows into queries or keys (B, ·, N, head_dim), here nothing."""
        return x

    def embed_both(self, query: Tensor, key: Tensor, given: Given) -> tuple[Tensor, Tensor]:
        """:meth:`embed` for queries and keys, each (B, ·, ·, head_dim)."""
        return self.embed(query, given.queries), self.embed(key, given.keys)

    def bias(self, query: Tensor, key: Tensor, given: Given) -> Tensor | None:
        """What this layer adds to the scores, broadcastable to (B, heads, queries, keys), or None.

        ``query`` and ``key`` are (B, heads, ·, head_dim) with positions embedded; the query is not
        yet × head_dim^-½.
        """
        return None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        given: Given = NOTHING,
        dropout: float = 0.0,
        need_weights: bool = False,
        *,
        cache: Cache | None = None,
        attend: Attend | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Embed positions in queries and keys, then attend.

        Args:
            query: (B, heads, queries, head_dim).
            key, value: (B, heads, keys, head_dim), or fewer heads, each shared by as many
                neighbouring heads of the queries (grouped queries).
            given: prepared positions of both, and the mask.
            dropout: on the attention weights; 0 outside training.
            need_weights: also return the weights before dropout.
            cache: in a step of decoding ``key`` and ``value`` are of the new tokens, which stand
                where their queries stand. The cache gets them, keys with positions embedded, and
                returns all so far.
            attend: a host's own function in place of :meth:`attend`, for a variant that adds
                nothing to the scores; it gets no mask from here.

        Returns:
            (B, heads, queries, head_dim), and the weights, float32 at least
            (B, heads, queries, keys), or None. A query that sees no key gets 0.

        Raises:
            ValueError: the number of queries or keys is not that of ``given``, or the heads of the
                keys do not divide those of the queries.
        """
        if not self.acts:
            given = Given(mask=given.mask)
        if self.prepares and given.queries is not None and given.keys is not None:
            given = self.prepare(given.queries, given.keys, given.mask, query.dtype)
        rows = given if cache is None else given._replace(keys=given.queries)
        _check_rows(query, key, rows)
        query, key = self.embed_both(query, key, rows)
        if cache is not None:
            key, value = cache(key, value)
        if attend is not None:
            return attend(query, key, value)
        if cache is not None:
            _check_rows(query, key, given)
        _check_scores(query, key, given)
        return self.attend(query, key, value, given, dropout, need_weights)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        given: Given = NOTHING,
        dropout: float = 0.0,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """:meth:`forward` for queries and keys in which positions are embedded already."""
        every = for_each_head(key, query.shape[1]) if need_weights or self.has_bias else key
        if need_weights:
            weights = weights_of(self.scores(query, every, given))
            value = for_each_head(value, query.shape[1])
            return F.dropout(weights, dropout).to(value.dtype) @ value, weights
        bias = self.bias_and_mask(query, every, given)
        how: dict[str, Any] = dict(scale=query.shape[3] ** -0.5)
        if key.shape[1] != query.shape[1]:
            # CUDA's fused kernels take grouped heads where there is no mask
            if bias is not None and query.device.type != "cpu":
                key, value = (for_each_head(x, query.shape[1]) for x in (key, value))
            else:
                how["enable_gqa"] = True
        return F.scaled_dot_product_attention(query, key, value, bias, dropout, **how), None

    @property
    def changes_scores(self) -> bool:
        """Whether a subclass does more in a layer than embed positions in queries and keys."""
        return self._overrides("bias", "bias_and_mask", "scores", "attend", "forward")

    @property
    def has_bias(self) -> bool:
        """Whether this layer adds something of queries and keys to the scores."""
        return self._overrides("bias", "bias_and_mask")

    def _overrides(self, *methods: str) -> bool:
        own, base = type(self), PositionalAttention
        return any(getattr(own, name) is not getattr(base, name) for name in methods)

    def scores(self, query: Tensor, key: Tensor, given: Given) -> Tensor:
        """What the softmax gets, (B, heads, queries, keys)."""
        bias = self.bias_and_mask(query, key, given)
        scores = (query * query.shape[3] ** -0.5) @ key.transpose(-2, -1)
        if bias is None:
            return scores
        return scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias

    def bias_and_mask(self, query: Tensor, key: Tensor, given: Given) -> Tensor | None:
        """:meth:`bias`, what all layers add and the mask as one: bool, or added to the scores."""
        own = self.bias(query, key, given)
        shared = given.mask if given.bias is None else given.bias
        return merge(own, shared, dtype_of_scores(query.dtype, query.device))


def without(sizes: Sizes) -> PositionalAttention:
    """Attention of a layer that has no positions: of what is given the mask alone counts."""
    made = PositionalAttention(sizes)
    made.acts = False
    return made


def _check_rows(query: Tensor, key: Tensor, given: Given) -> None:
    """Raise ValueError unless there is a row for each query and for each key."""
    if is_traced():
        return
    for what, of, rows in (("queries", query, given.queries), ("keys", key, given.keys)):
        if rows is not None and rows.shape[1] != of.shape[2]:
            raise ValueError(
                f"{of.shape[2]} {what} have positions for {rows.shape[1]}: give Positions the "
                "positions of the queries, and by keys= those of the keys"
            )


def _check_scores(query: Tensor, key: Tensor, given: Given) -> None:
    """Raise ValueError unless mask, bias and pairs are of the scores.

    One row or one column of a mask may stand for all. Of the others no column may: a step whose
    keys= was forgotten has the distance to one key.
    """
    if is_traced():
        return
    (heads, queries), (of_keys, keys) = query.shape[1:3], key.shape[1:3]
    if heads % of_keys:
        raise ValueError(f"{of_keys} heads of keys do not divide {heads} heads of queries")
    of = (one if one is None else one.shape[-2:] for one in (given.mask, given.bias))
    pairs = None if given.pairs is None else given.pairs.shape[1:3]
    for what, sizes in zip(("mask", "bias", "pairs"), (*of, pairs), strict=True):
        for_all = (1, keys) if what == "mask" else (keys,)
        if sizes is not None and (sizes[0] not in (1, queries) or sizes[1] not in for_all):
            raise ValueError(
                f"the {what} is of {sizes[0]} queries and {sizes[1]} keys, there are {queries} and "
                f"{keys}: it must be (…, {queries}, {keys}), and Positions needs the positions of "
                "the keys, by keys=, where they are others than the queries"
            )


def for_each_head(x: Tensor, heads: int) -> Tensor:
    """Keys or values (B, fewer heads, N, d) as (B, heads, N, d): each serves neighbouring heads."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def weights_of(scores: Tensor) -> Tensor:
    """The softmax of scores, float32 at least; 0 for a query that sees no key, as in fused kernels.

    Its gradient is 0 there too.
    """
    none = scores.isneginf().all(dim=-1, keepdim=True)
    dtype = torch.promote_types(scores.dtype, torch.float32)
    return scores.masked_fill(none, 0.0).softmax(dim=-1, dtype=dtype).masked_fill(none, 0.0)


def with_heads(mask: Tensor | None) -> Tensor | None:
    """A mask (B, N, N) for the scores of all heads, (B, 1, N, N)."""
    return mask if mask is None or mask.ndim != 3 else mask[:, None]


def as_bool(mask: Tensor) -> Tensor:
    """A mask that may be added to the scores as bool, True where a query sees a key.

    Hosts hide keys by -1e4, -1e9, the dtype's least number or -inf.
    """
    return mask if mask.dtype == torch.bool else mask > -1000.0


def dtype_of_scores(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Autocast's where it is on, as attention casts to it; else that of the queries, ``dtype``."""
    if dtype != torch.float64 and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return dtype


def merge(bias: Tensor | None, mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Bias and mask, or two masks (True where a query sees a key, or added to the scores), as one.

    It is bool, or in ``dtype``, that of the scores, to be added to them; None adds nothing.
    """
    if bias is None or mask is None:
        found = mask if bias is None else bias
        return found if found is None or found.dtype == torch.bool else found.to(dtype)
    if bias.dtype == torch.bool:
        bias, mask = mask, bias
        if bias.dtype == torch.bool:
            return bias & mask
    if mask.dtype == torch.bool:
        return torch.where(mask, bias.to(dtype), -torch.inf)
    # Hosts hide keys by -inf or by the least number of a dtype, and a query from which all keys are
    # hidden by the latter sees all. Half of it stays a number in dtype when another is added; what
    # is learned holds neither.
    bias, mask = (one if one.requires_grad else _half_the_least(one, dtype) for one in (bias, mask))
    return (bias + mask).to(dtype)


def _half_the_least(added: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores in ``dtype``, in which only -inf is less than half of the least."""
    least = max(torch.finfo(one).min / 2 for one in (added.dtype, dtype))
    return added.clamp(min=least).masked_fill(added.isneginf(), -torch.inf)
