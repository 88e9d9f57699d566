"""fairseq's self-attention with learnable relative positions (``--pos relpos``)."""

from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor

from cape_plugins.relative import RelativeAttention


class RelativeMultiheadAttention(MultiheadAttention):
    """Self-attention that knows how far each key is from the query (Shaw et al. 2018).

    Differences of positions need no care for padding, and in step-by-step decoding the query is
    the last of the keys, so nothing depends on how a sequence is batched or decoded.

    Args:
        embed_dim, num_heads, dropout, q_noise, qn_block_size: as fairseq's.
        context: distances beyond ± this many tokens share a vector.
        values: also add a vector of the distance to each value.

    Attributes:
        relative: the vectors, shared by the heads; see :class:`cape_plugins.relative`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        context: int,
        values: bool = False,
        dropout: float = 0.0,
        q_noise: float = 0.0,
        qn_block_size: int = 8,
    ) -> None:
        super().__init__(
            embed_dim,
            num_heads,
            dropout=dropout,
            self_attention=True,
            q_noise=q_noise,
            qn_block_size=qn_block_size,
        )
        self.relative = RelativeAttention(self.head_dim, context, values=values)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict[str, Any] | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As fairseq's, for self-attention: only ``query``, (T, B, embed_dim), is read.

        Returns:
            (T, B, embed_dim), and the weights (B, T, keys) if asked for, (heads, B, T, keys) with
            ``need_head_weights``; or scores and values if ``before_softmax``.
        """
        if static_kv:
            raise ValueError("static_kv is for cross-attention; this is self-attention")
        q = self._split(self.q_proj(query)) * self.scaling
        k, v = self._split(self.k_proj(query)), self._split(self.v_proj(query))
        if incremental_state is not None:
            k, v, key_padding_mask = self._continue(incremental_state, k, v, key_padding_mask)

        bias = self.relative.logits(q, k.shape[2])
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                bias = bias.masked_fill(attn_mask, -torch.inf)
            else:
                bias = bias + attn_mask.to(bias.dtype)
        if key_padding_mask is not None and key_padding_mask.dim() > 0:
            bias = bias.masked_fill(key_padding_mask[:, None, None].bool(), -torch.inf)

        if before_softmax:
            return (q @ k.transpose(2, 3) + bias).flatten(0, 1), v.flatten(0, 1)
        weights = None
        if need_weights or need_head_weights or self.relative.values is not None:
            weights = (q @ k.transpose(2, 3) + bias).float().softmax(dim=-1)
            dropped = self.dropout_module(weights.to(v.dtype))
            out = dropped @ v
            if self.relative.values is not None:
                out = out + self.relative.mix(dropped)
        else:
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, dropout_p=self._dropout(), scale=1.0
            )
        out = self.out_proj(out.permute(2, 0, 1, 3).flatten(2))
        if need_head_weights:
            return out, weights.transpose(0, 1)
        return out, weights.mean(dim=1) if need_weights else None

    def _split(self, x: Tensor) -> Tensor:
        """(T, B, heads · head_dim) → (B, heads, T, head_dim)."""
        return x.unflatten(2, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)

    def _dropout(self) -> float:
        module = self.dropout_module
        return module.p if module.training or module.apply_during_inference else 0.0

    def _continue(
        self, incremental_state: dict[str, Any], k: Tensor, v: Tensor, padding: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Put earlier steps before this one, and remember them, as fairseq does."""
        saved = self._get_input_buffer(incremental_state)
        if saved.get("prev_key") is not None:
            k = torch.cat([saved["prev_key"], k], dim=2)
            v = torch.cat([saved["prev_value"], v], dim=2)
        padding = self._append_prev_key_padding_mask(
            key_padding_mask=padding,
            prev_key_padding_mask=saved.get("prev_key_padding_mask"),
            batch_size=k.shape[0],
            src_len=k.shape[2],
            static_kv=False,
        )
        saved.update(prev_key=k, prev_value=v, prev_key_padding_mask=padding)
        self._set_input_buffer(incremental_state, saved)
        return k, v, padding
