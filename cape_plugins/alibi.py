"""``alibi``: scores fall with the distance between query and key, by a slope of each head.

Press et al. 2022, https://arxiv.org/abs/2108.12409; slopes as in their code,
ofirpress/attention_with_linear_biases at a35aaca, fairseq/models/transformer.py. Here distances are
those of real positions: tokens with gaps, seconds, Euclidean between patches. They are symmetric;
where queries see no later keys (decoders) they are the paper's.

    >>> attention = Alibi(Sizes(dim=512, heads=8))
    >>> where = token_positions([50])[..., None]
    >>> given = attention.prepare(where, where, None, query.dtype)
    >>> out, _ = attention(query, key, value, given)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from cape_plugins import fused
from cape_plugins.attention import (
    Given,
    PositionalAttention,
    dtype_of_scores,
    merge,
    with_heads,
)
from cape_plugins.checks import check_count, check_positive
from cape_plugins.options import POSITION, option
from cape_plugins.places import Device, widest


@dataclass(eq=False, repr=False)
class Alibi(PositionalAttention):
    """Adds - slope · distance to the scores; 0 where a token has no position (class token).

    What is added is made once for all layers, with the mask in it: CUDA's attention copies a mask
    in every layer. It takes (heads, N, N) where samples share their positions, else
    (B, heads, N, N), as ``cape_alibi`` in training: in autocast's dtype, which the scores are in,
    or in that of the layers.
    """

    alibi_unit: float | None = option(
        None,
        "the distance that counts as 1; by default that between neighbouring tokens",
        unit=POSITION,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alibi_unit is None:
            self.alibi_unit = self.sizes.spacing
        check_positive("alibi_unit", self.alibi_unit)

    def prepare(
        self, queries: Tensor, keys: Tensor, mask: Tensor | None, dtype: torch.dtype
    ) -> Given:
        """The bias, (1 or B, heads, queries, keys), in ``dtype`` or what autocast is on for.

        Distances are taken in the positions' dtype: an hour from the start float32 is too coarse.
        """
        apart = distances(queries[:, :, None], keys[:, None])  # (1 or B, queries, keys)
        assert self.alibi_unit is not None
        apart = (apart / self.alibi_unit)[:, None]
        mask = rest = with_heads(mask)
        if mask is not None and mask.dtype == torch.bool and mask.shape[1] == 1:  # of all heads
            apart, rest = torch.where(mask, apart, torch.inf), None
        slopes = fused.constant(_falling, self.sizes.heads, like=queries)[:, None, None]
        dtype = dtype_of_scores(dtype, queries.device)
        if fused.usable(apart) and not apart.requires_grad:
            bias = fused.rows(slopes, apart, dtype)
        else:
            bias = (slopes * apart).to(dtype)
        return Given(mask=mask, bias=merge(bias, rest, dtype))


def alibi_slopes(heads: int, device: Device = None) -> Tensor:
    """The slope of each head, (heads,) float32.

    For n heads, n a power of two: 2^(-8/n), 2^(-16/n), … For another number: that of the power of
    two below it, then every other slope of twice as many heads (as in the paper's code).

    Raises:
        ValueError: ``heads`` is no integer or below 1.
    """
    check_count("heads", heads)
    device = torch.device("cpu" if device is None else device)
    head = torch.arange(heads, device=device).to(widest(device))
    below = 2 ** (heads.bit_length() - 1)
    exponent = torch.where(head < below, 2 * (head + 1), 2 * (head - below) + 1)
    return torch.exp2(exponent * (-4 / below)).float()


def _falling(heads: int, device: torch.device) -> Tensor:
    return -alibi_slopes(heads, device)


def distances(first: Tensor, second: Tensor) -> Tensor:
    """Euclidean distances (…, axes), (…, axes) → (…), 0 where either has no position (NaN).

    Their gradient is 0 there, and where two tokens share a position.
    """
    apart = first - second  # (…, axes)
    if apart.shape[-1] == 1:
        apart = apart[..., 0]
        return apart.masked_fill(apart.isnan(), 0.0).abs()
    # before the norm, whose gradient would be NaN
    apart = apart.masked_fill(apart.isnan().any(dim=-1, keepdim=True), 0.0)
    return torch.linalg.vector_norm(apart, dim=-1)
