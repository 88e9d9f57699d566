"""ESPnet's self-attention with positions in it."""

from typing import Any

import torch

# the class that ESPnet's pictures of attention look for, wherever this version has it
from espnet2.main_funcs.calculate_all_attentions import MultiHeadedAttention
from torch import Tensor

from cape_plugins.attention import Given, PositionalAttention
from cape_plugins.host import with_class


class CapeMultiHeadedAttention(MultiHeadedAttention):
    """ESPnet's self-attention, with its weights, in which positions take part.

    Where ``num_att_plot`` asks for pictures, by a forward hook and in evaluation, the weights
    (B, heads, N, N) are computed too and left in ``attn``, where ESPnet looks for them.
    """

    positional: PositionalAttention

    @classmethod
    def made_of(cls, theirs: Any, positional: PositionalAttention) -> Any:
        """Make our attention of ESPnet's."""
        ours = with_class(theirs, cls)
        ours.positional = positional
        return ours

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, given: Given, mask: Tensor
    ) -> Tensor:
        """Attend, (B, N, size) → (B, N, size).

        ESPnet's layer hands on ``given``, as its input is (content, given). ``mask`` is the layer's
        own; the one that counts is in ``given``.
        """
        pictures = self._forward_hooks and not (self.training or torch.compiler.is_compiling())
        query, key, value = self.forward_qkv(query, key, value)  # (B, heads, N, size / heads)
        dropout = self.dropout_rate if self.training else 0.0
        mixed, weights = self.positional(query, key, value, given, dropout, bool(pictures))
        if weights is not None:
            self.attn = weights.detach()
        return self.linear_out(mixed.transpose(1, 2).flatten(2))  # (B, N, size)
