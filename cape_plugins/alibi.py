"""ALiBi: scores fall with the distance between query and key, by a slope of each head.

Press et al. 2022, https://arxiv.org/abs/2108.12409; slopes as in their code,
ofirpress/attention_with_linear_biases at a35aaca, fairseq/models/transformer.py. Here distances are
those of real positions: tokens with gaps, seconds, Euclidean between patches. They are symmetric;
where queries see no later keys (decoders) they are the paper's.

    >>> settings = AttentionSettings(head_dim=64, heads=8)
    >>> positions = Alibi.prepare(token_positions([50]), settings)
    >>> out, _ = Alibi(settings)(query, key, value, positions)
"""

import torch
from torch import Tensor

from cape_plugins.attention import AttentionSettings, Hidden, PositionalAttention
from cape_plugins.checks import check_count
from cape_plugins.constants import constant
from cape_plugins.elementwise import multiply_into_rows
from cape_plugins.positions import Device, widest, with_axes


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


def _slopes(heads: int, device: torch.device) -> Tensor:
    return -alibi_slopes(heads, device)


class Alibi(PositionalAttention):
    """Adds - slope · distance to the scores; 0 where a token has no position (class token).

    What is added is made once for all layers, of the settings' ``heads`` and ``unit``. It takes
    (heads, N, N) where samples share their positions, else (B, heads, N, N), as ``cape_alibi`` in
    training: in autocast's dtype, which the scores are in, or in float32. Its rows begin at
    multiples of 8 elements: CUDA's attention copies other ones, in every layer.
    """

    remembers = frozenset({"unit"})

    @staticmethod
    def prepare(
        positions: Tensor,
        settings: AttentionSettings,
        *,
        hidden: Hidden = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """What the scores get, (B, N, heads, N), in ``dtype`` or what autocast is on for.

        Distances are taken in the positions' dtype: an hour from the start float32 is too coarse.
        It is -inf for the keys that are ``hidden`` from a query. A query from which all keys are
        hidden sees all of them: softmax over nothing would be NaN.
        """
        wide = with_axes(positions)  # (B, N, axes)
        apart = distances(wide[:, :, None], wide[:, None]) / settings.unit  # (B, N, N)
        if hidden is not None:
            unseen = hidden()
            unseen = unseen & ~unseen.all(dim=-1, keepdim=True)
            apart = apart.masked_fill(unseen, torch.inf)
        slopes = constant(_slopes, settings.heads, like=positions)[:, None]
        device = positions.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        return multiply_into_rows(slopes, apart[:, :, None], dtype)

    @property
    def hides(self) -> bool:
        """True, unless a mask is needed all the same, to count keys for log N."""
        return not self.logn

    def bias(self, query: Tensor, keys: int, positions: Tensor | None = None) -> Tensor:
        """What :meth:`prepare` gave, (1 or B, heads, queries, keys)."""
        assert positions is not None, "alibi needs positions"
        bias = positions.transpose(1, 2)  # (1 or B, heads, N, N)
        return bias[:, :, bias.shape[2] - query.shape[2] :, bias.shape[3] - keys :]


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
