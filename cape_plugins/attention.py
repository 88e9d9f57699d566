"""What positions do in self-attention: the base class of all variants.

>>> settings = AttentionSettings(head_dim=64, heads=8)
>>> attention = PositionalAttention(settings)           # as without positions
>>> out, _ = attention(query, key, value, mask=mask)    # (B, heads, queries, head_dim)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cape_plugins.checks import check_count, check_positive
from cape_plugins.logn import scale_queries

Hidden: TypeAlias = Callable[[], Tensor] | None  #: of :meth:`PositionalAttention.prepare`


@dataclass(frozen=True)
class AttentionSettings:
    """What the classes here must know of a host's self-attention; its layers share it.

    Attributes:
        head_dim, heads: channels of a head, number of heads.
        axes: of a position: 1 in sequences, 2 in images.
        unit: what counts as a distance of one: 1 token, 1/30 s in speech, in images the distance
            between neighbouring patches in training. alibi's slopes are per unit.
        frequency_scale: rope: multiplies all frequencies, as it does those of the host's sinusoids.
        context: relpos: distances -context … context have a vector each; those beyond share the
            last.

    Raises:
        ValueError: a value is out of range.
    """

    head_dim: int
    heads: int
    axes: int = 1
    unit: float = 1.0
    frequency_scale: float = 1.0
    context: int = 1

    def __post_init__(self) -> None:
        for name in ("head_dim", "heads", "axes", "context"):
            check_count(name, getattr(self, name))
        for name in ("unit", "frequency_scale"):
            check_positive(name, getattr(self, name))


class PositionalAttention(nn.Module):
    """Scaled dot-product attention; subclasses say what positions do in it, here nothing.

    A host calls :meth:`prepare` once in a forward and hands the result to the attention of every
    layer as an argument. Queries are the last of the keys: all of them in an encoder, one in
    step-by-step decoding.

    Raises:
        ValueError: settings that the variant cannot serve.
    """

    logn: int = 0  #: N_train of :func:`cape_plugins.logn.scale_queries`; 0: queries stay as given
    #: settings that neither a weight nor a host's option shows, so that checkpoints keep them
    remembers: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, settings: AttentionSettings | None = None) -> None:
        super().__init__()
        self.settings: Any = settings

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""

    @staticmethod
    def prepare(
        positions: Tensor,
        settings: AttentionSettings,
        *,
        hidden: Hidden = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """What the methods below get as ``positions``, made once for all layers of a forward.

        Args:
            positions: (B, N) or (B, N, 2), or with 1 for B to share them, augmented, in the host's
                unit (tokens, seconds, patch coordinates). NaN marks padding and tokens without a
                position, such as a class token.
            settings: of the layers.
            hidden: makes what is hidden, a bool broadcastable to (B, N, N), True where a query
                must not see a key. Only variants for which :attr:`hides` is true call it; here
                nobody does. Default: nothing is hidden.
            dtype: of the layers' queries. A bias is rounded to it here, and not in every layer;
                under autocast to autocast's. Positions and phases stay float32.

        Returns:
            (B, N, …), a row for each token. Here the positions in float32.
        """
        return positions.to(torch.float32)

    @property
    def hides(self) -> bool:
        """Whether prepared positions hide what :meth:`prepare` was told to hide.

        Then the host leaves out its mask, which would make a copy of them in every layer.
        """
        return False

    def embed(self, x: Tensor, positions: Tensor | None) -> Tensor:
        """Put prepared positions into queries or keys (B, heads, N, head_dim), here nothing."""
        return x

    def embed_both(
        self, query: Tensor, key: Tensor, positions: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """:meth:`embed` for queries and keys (B, heads, ·, head_dim); queries are the last keys."""
        last = None if positions is None else positions[:, key.shape[2] - query.shape[2] :]
        return self.embed(query, last), self.embed(key, positions)

    def bias(self, query: Tensor, keys: int, positions: Tensor | None = None) -> Tensor | None:
        """What is added to the scores, broadcastable to (B, heads, queries, keys), or None.

        ``query`` is (B, heads, queries, head_dim), not yet × head_dim^-½; ``keys`` their number,
        and ``positions`` those of the keys, prepared.
        """
        return None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        dropout: float = 0.0,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Embed positions in queries and keys, then attend.

        Args:
            query: (B, heads, queries, head_dim), at the last of the keys' positions.
            key, value: (B, heads, keys, head_dim).
            positions: those of the keys, as :meth:`prepare` gives them.
            mask: broadcastable to (B, heads, queries, keys): bool, True where a query may see a
                key, or added to the scores.
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
        query, key = self.embed_both(query, key, positions)
        return self.attend(query, key, value, positions, mask, dropout, need_weights)

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
        """:meth:`forward` for queries and keys in which positions are embedded already."""
        if need_weights:
            scores = self.scores(query, key, positions, mask)
            weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
            return F.dropout(weights, dropout).to(value.dtype) @ value, weights
        query, bias = self._query_and_bias(query, key, positions, mask)
        scale = query.shape[3] ** -0.5
        return F.scaled_dot_product_attention(query, key, value, bias, dropout, scale=scale), None

    def scores(
        self, query: Tensor, key: Tensor, positions: Tensor | None, mask: Tensor | None
    ) -> Tensor:
        """What the softmax gets, (B, heads, queries, keys); the arguments are :meth:`attend`'s."""
        query, bias = self._query_and_bias(query, key, positions, mask)
        scores = (query * query.shape[3] ** -0.5) @ key.transpose(-2, -1)
        if bias is None:
            return scores
        return scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias

    def _query_and_bias(
        self, query: Tensor, key: Tensor, positions: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Queries, × log N / log N_train where that is on, and what is added to the scores."""
        if self.logn:
            query = scale_queries(query, key.shape[2], mask, self.logn)
        bias = self.bias(query, key.shape[2], positions)
        return query, merge_bias(bias, mask, dtype_of_scores(query))

    def extra_repr(self) -> str:
        """The settings, for ``print(model)``."""
        return "" if self.settings is None else str(self.settings)


def dtype_of_scores(query: Tensor) -> torch.dtype:
    """Autocast's where it is on, as attention casts to it; else the queries' own."""
    device = query.device.type
    if query.dtype == torch.float32 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return query.dtype


def merge_bias(bias: Tensor | None, mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Bias and mask (True where a query sees a key, or added to the scores) as one.

    It is bool, or in ``dtype``, that of the scores, to be added to them; None adds nothing.
    """
    if bias is None or mask is None:
        found = mask if bias is None else bias
        return found if found is None or found.dtype == torch.bool else found.to(dtype)
    if mask.dtype == torch.bool:
        return torch.where(mask, bias.to(dtype), -torch.inf)
    # hosts hide all keys from padding with the least number: beyond it, their softmax is NaN
    return (bias + mask).clamp(min=torch.finfo(dtype).min).to(dtype)


def take_over(kind: Any, theirs: nn.Module) -> Any:
    """A ``kind``, a subclass of a host's, with all that the host's holds: weights, hooks."""
    ours = kind.__new__(kind)
    vars(ours).update(vars(theirs))
    return ours
