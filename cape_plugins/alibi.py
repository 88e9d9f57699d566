"""ALiBi: scores fall with the distance between query and key, by a slope of each head.

Press et al. 2022, https://arxiv.org/abs/2108.12409; slopes as in their code,
ofirpress/attention_with_linear_biases at a35aaca, fairseq/models/transformer.py.
Here distances are those of real positions: tokens with gaps, seconds, Euclidean between patches.
They are symmetric; where queries see no later keys (decoders) that is the paper's.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cape_plugins.attention import AttentionSettings, PositionalAttention
from cape_plugins.positions import widest


def alibi_slopes(heads: int, device: torch.device | str | None = None) -> Tensor:
    """The slope of each head, (heads,) float32.

    A geometric series 2^(-8/n), 2^(-16/n), … for n heads, n a power of two. For another number it
    is that of the power of two below it, then every other of the series for twice as many (as in
    the paper's code).
    """
    device = torch.device("cpu" if device is None else device)
    head = torch.arange(heads, device=device).to(widest(device))
    below = 2 ** (heads.bit_length() - 1)
    exponent = torch.where(head < below, 2 * (head + 1), 2 * (head - below) + 1)
    return torch.exp2(exponent * (-4 / below)).float()


class Alibi(PositionalAttention):
    """Scores get - slope · distance, nothing where a token has no position (class token).

    It learns nothing. What is added is made once for all layers, (heads, N, N) where samples share
    their positions. Where they do not it is (B, heads, N, N), except on CUDA without dropout:
    FlexAttention takes the distances from the positions inside its kernel.

    Args:
        heads: their number.
        unit: what a distance of one token is in the positions.
    """

    def __init__(self, heads: int, unit: float = 1.0) -> None:
        super().__init__()
        self.heads = heads
        self.unit = unit

    @classmethod
    def build(cls, settings: AttentionSettings) -> "Alibi":
        """As a host asks for it.

        The unit is a token, 1/30 s (as of the frequencies of sinusoids there), or the width of a
        patch in training, where the longer side of the image runs from -1 to 1.
        """
        if settings.axes == 1:
            return cls(settings.heads, 1 / settings.frequency_scale)
        return cls(settings.heads, 2 / max(settings.context - 1, 1))

    def prepare(self, positions: Tensor) -> Tensor:
        """(B, N, heads, N) float32, what the scores get; for FlexAttention (B, N, 1 or 2)."""
        positions = positions[..., None] if positions.ndim == 2 else positions
        positions = positions.float() / self.unit
        if positions.device.type == "cuda" and positions.shape[0] > 1:
            return positions
        return self._bias(positions).transpose(1, 2)

    def _bias(self, positions: Tensor) -> Tensor:
        slopes = alibi_slopes(self.heads, positions.device)[:, None, None]
        return -slopes * distances(positions[:, :, None], positions[:, None])[:, None]

    def logits(self, query: Tensor, keys: int, positions: Tensor | None = None) -> Tensor:
        """(1 or B, heads, queries, keys) in float32; without positions tokens are 1 apart."""
        if positions is None:
            index = torch.arange(keys, device=query.device, dtype=torch.float32)
            positions = self._bias(index[None, :, None]).transpose(1, 2)
        bias = positions.transpose(1, 2) if positions.ndim == 4 else self._bias(positions)
        return bias[:, :, bias.shape[2] - query.shape[2] :, bias.shape[3] - keys :]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor | None,
        mask: Tensor | None,
        dropout: float,
    ) -> Tensor:
        """See :class:`PositionalAttention`."""
        if positions is None or positions.ndim == 4 or dropout > 0 or query.shape[3] < 16:
            return super().attend(query, key, value, positions, mask, dropout)
        slopes = alibi_slopes(self.heads, query.device)
        return attend_without_bias(query, key, value, positions, slopes, mask)

    def extra_repr(self) -> str:
        """The settings, for ``print(model)``."""
        return f"heads={self.heads}, unit={self.unit:g}"


def distances(first: Tensor, second: Tensor) -> Tensor:
    """Euclidean distances (…, axes), (…, axes) → (…), 0 where either has no position (NaN)."""
    apart = first - second
    found = apart[..., 0].abs() if apart.shape[-1] == 1 else apart.square().sum(dim=-1).sqrt()
    return found.nan_to_num(0.0)


def attend_without_bias(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    slopes: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """Attention with ALiBi in FlexAttention, which makes nothing as large as (B, heads, N, N).

    Args:
        query, key, value, mask: as for :meth:`PositionalAttention.attend`.
        positions: (1 or B, keys, axes), distances of 1 being one token.
        slopes: (heads,).
    """
    earlier = key.shape[2] - query.shape[2]

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        sample = b if positions.shape[0] > 1 else 0
        square = torch.zeros_like(score)
        for axis in range(positions.shape[2]):
            apart = positions[sample, q + earlier, axis] - positions[sample, k, axis]
            square = square + apart * apart
        score = score - slopes[h] * torch.where(square.isnan(), 0.0, square).sqrt()
        if mask is None:
            return score
        sizes = zip(mask.shape, (b, h, q, k)[4 - mask.ndim :], strict=True)
        seen = mask[tuple(index if size > 1 else 0 for size, index in sizes)]
        return torch.where(seen, score, -torch.inf) if seen.dtype == torch.bool else score + seen

    out: Tensor = _flex(query.device.type)(query, key, value, score_mod=score_mod)
    return out


def _flex(device: str) -> Callable[..., Any]:
    """FlexAttention; in eager code on CUDA compiled, else it makes what it is to avoid."""
    from torch.nn.attention.flex_attention import flex_attention  # takes a second to import

    if device != "cuda" or torch.compiler.is_compiling():
        return flex_attention
    return _compiled(flex_attention)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True)
