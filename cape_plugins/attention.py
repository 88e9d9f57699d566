"""What positions do in self-attention: the base class of all variants that act there.

>>> attention = Rotary(Sizes(dim=512, heads=8))             # a layer's
>>> given = attention.prepare(token_positions([50])[..., None], None, query.dtype)
>>> out, _ = attention(query, key, value, given)            # (B, heads, queries, head_dim)
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cape_plugins.sizes import Part


class Given(NamedTuple):
    """What the attention of every layer gets, made once in a forward.

    Attributes:
        prepared: (1 or B, N, …), a row for each token, as the variant prepares its positions; None
            where it leaves attention alone.
        mask: broadcastable to (B, heads, N, N): bool, True where a query sees a key, or added to
            the scores. None: every query sees every key, or what is prepared hides them.
    """

    prepared: Tensor | None = None
    mask: Tensor | None = None


NOTHING = Given()


@dataclass(eq=False, repr=False)
class PositionalAttention(Part):
    """Scaled dot-product attention; subclasses say what positions do in it, here nothing.

    :meth:`prepare` is called once in a forward, of the first layer that has it. Its result goes to
    the attention of every layer as an argument. Queries are the last of the keys: all of them in an
    encoder, one in step-by-step decoding.

    How a subclass is written: :class:`cape_plugins.sizes.Part`.
    """

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""

    def prepare(self, positions: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Given:
        """What the methods below get, made once for all layers of a forward.

        It may use options and sizes, but no parameters: each layer has its own.

        Args:
            positions: (1 or B, N, axes), augmented, float32 at least, in the host's unit. NaN marks
                padding and tokens without a position, such as a class token.
            mask: broadcastable to (B, N, N): bool, True where a query sees a key, or added to the
                scores.
            dtype: of the layers' queries. A bias may be rounded to it here, and not in every layer;
                positions and phases stay float32.
        """
        return Given(positions, with_heads(mask))

    def embed(self, x: Tensor, prepared: Tensor | None) -> Tensor:
        """Put prepared positions into queries or keys (B, heads, N, head_dim), here nothing."""
        return x

    def embed_both(
        self, query: Tensor, key: Tensor, prepared: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """:meth:`embed` for queries and keys (B, heads, ·, head_dim); queries are the last keys."""
        last = None if prepared is None else prepared[:, key.shape[2] - query.shape[2] :]
        return self.embed(query, last), self.embed(key, prepared)

    def bias(self, query: Tensor, keys: int, prepared: Tensor | None) -> Tensor | None:
        """What is added to the scores, broadcastable to (B, heads, queries, keys), or None.

        ``query`` is (B, heads, queries, head_dim), not yet × head_dim^-½; ``keys`` their number,
        and ``prepared`` has the rows of the keys.
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
    ) -> tuple[Tensor, Tensor | None]:
        """Embed positions in queries and keys, then attend.

        Args:
            query: (B, heads, queries, head_dim), at the last of the keys' positions.
            key, value: (B, heads, keys, head_dim).
            given: prepared positions of the keys, and the mask.
            dropout: on the attention weights; 0 outside training.
            need_weights: also return the weights before dropout.

        Returns:
            (B, heads, queries, head_dim), and the weights, float32 at least
            (B, heads, queries, keys), or None.

        Raises:
            ValueError: there are more queries than keys, or head_dim is another.
        """
        queries, keys = query.shape[2], key.shape[2]
        if queries > keys:
            raise ValueError(f"{queries} queries are not the last positions of {keys} keys")
        query, key = self.embed_both(query, key, given.prepared)
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
        if need_weights:
            scores = self.scores(query, key, given)
            weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
            return F.dropout(weights, dropout).to(value.dtype) @ value, weights
        bias = self.bias_and_mask(query, key.shape[2], given)
        scale = query.shape[3] ** -0.5
        return F.scaled_dot_product_attention(query, key, value, bias, dropout, scale=scale), None

    def scores(self, query: Tensor, key: Tensor, given: Given) -> Tensor:
        """What the softmax gets, (B, heads, queries, keys)."""
        bias = self.bias_and_mask(query, key.shape[2], given)
        scores = (query * query.shape[3] ** -0.5) @ key.transpose(-2, -1)
        if bias is None:
            return scores
        return scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias

    def bias_and_mask(self, query: Tensor, keys: int, given: Given) -> Tensor | None:
        """:meth:`bias` and mask as one: bool, or added to the scores."""
        return merge(self.bias(query, keys, given.prepared), given.mask, dtype_of_scores(query))


def with_heads(mask: Tensor | None) -> Tensor | None:
    """A mask (B, N, N) for the scores of all heads, (B, 1, N, N)."""
    return mask if mask is None or mask.ndim != 3 else mask[:, None]


def as_bool(mask: Tensor) -> Tensor:
    """A mask that may be added to the scores as bool, True where a query sees a key.

    Hosts hide keys by -1e4, -1e9, the dtype's least number or -inf.
    """
    return mask if mask.dtype == torch.bool else mask > -1000.0


def dtype_of_scores(query: Tensor) -> torch.dtype:
    """Autocast's where it is on, as attention casts to it; else the queries' own."""
    device = query.device.type
    if query.dtype == torch.float32 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return query.dtype


def merge(bias: Tensor | None, mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Bias and mask (True where a query sees a key, or added to the scores) as one.

    It is bool, or in ``dtype``, that of the scores, to be added to them; None adds nothing.
    """
    if bias is None or mask is None:
        found = mask if bias is None else bias
        return found if found is None or found.dtype == torch.bool else found.to(dtype)
    if mask.dtype == torch.bool:
        return torch.where(mask, bias.to(dtype), -torch.inf)
    both = bias + mask
    both = both.to(torch.promote_types(both.dtype, dtype))  # autocast may have made it narrower
    # hosts hide all keys from padding with the least number: beyond it, their softmax is NaN
    return both.clamp(min=torch.finfo(dtype).min).to(dtype)


def with_class(theirs: nn.Module, kind: Any) -> Any:
    """A module of a host's, with all that it holds, as a ``kind``, a subclass of its class."""
    ours = kind.__new__(kind)
    vars(ours).update(vars(theirs))
    return ours
