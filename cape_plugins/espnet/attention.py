"""ESPnet's self-attention with positions in it."""

from typing import Any

import torch

# the class that ESPnet's pictures of attention look for, wherever this version has it
from espnet2.main_funcs.calculate_all_attentions import MultiHeadedAttention
from torch import Tensor

from cape_plugins.attention import PositionalAttention, take_over


class CapeMultiHeadedAttention(MultiHeadedAttention):
    """ESPnet's self-attention, with its weights, in which positions take part.

    Where ``num_att_plot`` asks for pictures, by a forward hook and in evaluation, the weights
    (B, heads, N, N) are computed too and left in ``attn``, where ESPnet looks for them.
    """

    positional: PositionalAttention

    @classmethod
    def made_of(cls, theirs: Any, positional: PositionalAttention | None = None) -> Any:
        """Make our attention of ESPnet's; without ``positional`` it uses no positions."""
        ours = take_over(cls, theirs)
        ours.positional = positional or PositionalAttention()
        return ours

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *rest: Tensor) -> Tensor:
        """Attend, (B, N, size) → (B, N, size).

        The last of ``rest`` is the mask, bool (B, 1 or N, N), True where a query sees a key. If the
        layer's input is (content, positions), the positions (B, N, …) of
        :func:`cape_plugins.variants.prepare` come before it.
        """
        positions = rest[0] if len(rest) == 2 else None
        visible: Tensor | None = rest[-1][:, None]  # (B, 1, 1 or N, keys)
        assert visible is not None  # for mypy
        if visible.shape[2] == 1 and self.positional.hides:
            visible = None
        else:
            # an empty utterance sees its padding: attention to nothing could be NaN
            visible = visible | ~visible.any(dim=-1, keepdim=True)
        pictures = self._forward_hooks and not (self.training or torch.compiler.is_compiling())
        query, key, value = self.forward_qkv(query, key, value)  # (B, heads, N, size / heads)
        mixed, weights = self.positional(
            query,
            key,
            value,
            positions,
            visible,
            self.dropout_rate if self.training else 0.0,
            need_weights=bool(pictures),
        )
        if weights is not None:
            self.attn = weights.detach()
        return self.linear_out(mixed.transpose(1, 2).flatten(2))  # (B, N, size)
