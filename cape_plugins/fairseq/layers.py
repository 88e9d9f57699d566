"""fairseq's Transformer layers with room for positions in self-attention and ADMIN's residuals."""

from typing import Any

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import MultiheadAttention
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn

from cape_plugins.attention import CurrentPositions, PositionalAttention, joined
from cape_plugins.fairseq.admin import ScaledResiduals
from cape_plugins.variants import attention_for


class PositionalMultiheadAttention(MultiheadAttention):
    """fairseq's self-attention with positions in it, such as relative ones.

    Args:
        embed_dim, num_heads, dropout, q_noise, qn_block_size: as fairseq's.
        relative: what positions do; its name is in checkpoints.
        current: positions of the batch's tokens, prepared. In step-by-step decoding those of all
            steps so far; without any, ``relative`` is called without.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        relative: PositionalAttention,
        current: CurrentPositions,
        *,
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
        self.relative = relative
        self.current = current

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
        positions = self._last_positions(query.shape[0])
        q = self.relative.place(self._split(self.q_proj(query)), positions)
        k = self.relative.place(self._split(self.k_proj(query)), positions)
        v = self._split(self.v_proj(query))
        if incremental_state is not None:
            k, v, key_padding_mask = self._continue(incremental_state, k, v, key_padding_mask)

        keys = k.shape[2]
        positions = self._last_positions(keys)
        mask = _mask(attn_mask, key_padding_mask, like=q)
        q = self.relative.sharpen(q, keys, mask)
        if not (before_softmax or need_weights or need_head_weights):
            out = self.relative.attend(q, k, v, positions, mask, self._dropout())
            return self._merge(out), None
        q = q * self.scaling
        bias = joined(self.relative.logits(q, keys, positions), mask, q.dtype)
        scores = q @ k.transpose(2, 3)
        scores = scores if bias is None else scores + bias
        if before_softmax:
            return scores.flatten(0, 1), v.flatten(0, 1)
        weights = scores.float().softmax(dim=-1)
        dropped = self.dropout_module(weights.to(v.dtype))
        out = dropped @ v
        if self.relative.learns_values:
            out = out + self.relative.mix(dropped)
        weights = weights.transpose(0, 1) if need_head_weights else weights.mean(dim=1)
        return self._merge(out), weights

    def _split(self, x: Tensor) -> Tensor:
        """(T, B, heads · head_dim) → (B, heads, T, head_dim)."""
        return x.unflatten(2, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)

    def _merge(self, out: Tensor) -> Tensor:
        """(B, heads, T, head_dim) → (T, B, embed_dim)."""
        return self.out_proj(out.permute(2, 0, 1, 3).flatten(2))

    def _last_positions(self, tokens: int) -> Tensor | None:
        positions = self.current.positions
        return None if positions is None else positions[:, -tokens:]

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


def _mask(attn_mask: Tensor | None, padding: Tensor | None, like: Tensor) -> Tensor | None:
    """What is added to the scores, -inf where a key is not seen; None adds nothing."""
    if attn_mask is None and padding is None:
        return None
    mask = like.new_zeros(1, 1, 1, 1)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            mask = mask.masked_fill(attn_mask, -torch.inf)
        else:
            mask = mask + attn_mask.to(mask.dtype)
    if padding is not None and padding.dim() > 0:
        mask = mask.masked_fill(padding[:, None, None].bool(), -torch.inf)
    return mask


class CapeEncoderLayer(ScaledResiduals, TransformerEncoderLayerBase):
    """fairseq's encoder layer without the fast path of 0.12.2, which fails on torch ≥ 1.13.

    That version keeps eight copies of a layer's weights for it, as parameters without gradient;
    without them, checkpoints hold the same weights in all versions.

    Args:
        cfg: the options.
        return_fc: as fairseq's.
        index: 0 for the encoder's first layer.
        current: positions of the encoder's batch.
    """

    _load_from_state_dict = nn.Module._load_from_state_dict

    def __init__(
        self,
        cfg: TransformerConfig,
        return_fc: bool = False,
        *,
        index: int,
        current: CurrentPositions,
    ) -> None:
        self.index, self.current = index, current  # the line below builds the attention
        super().__init__(cfg, return_fc)
        self.can_use_fastpath = False
        for copied in ("in_proj", "out_proj", "fc1", "fc2"):
            for kind in ("weight", "bias"):
                self._parameters.pop(f"{copied}_{kind}", None)
        self.scale_residuals(2 if cfg.admin_init else 0, self.embed_dim)

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> MultiheadAttention:
        """fairseq's, or with what the variant has for this layer."""
        attention = _positional(self, embed_dim, cfg.encoder.attention_heads, cfg)
        return attention or super().build_self_attention(embed_dim, cfg)


class CapeDecoderLayer(ScaledResiduals, TransformerDecoderLayerBase):
    """fairseq's decoder layer; cross-attention is always its own.

    Args:
        cfg: the options.
        no_encoder_attn: whether there is no cross-attention.
        index: 0 for the decoder's first layer.
        current: positions of the decoder's batch.
    """

    def __init__(
        self,
        cfg: TransformerConfig,
        no_encoder_attn: bool = False,
        *,
        index: int,
        current: CurrentPositions,
    ) -> None:
        self.index, self.current = index, current  # the line below builds the attention
        super().__init__(cfg, no_encoder_attn)
        sublayers = 2 if no_encoder_attn else 3
        self.scale_residuals(sublayers if cfg.admin_init else 0, self.embed_dim)

    def build_self_attention(
        self,
        embed_dim: int,
        cfg: TransformerConfig,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
    ) -> MultiheadAttention:
        """fairseq's, or with what the variant has for this layer."""
        attention = _positional(self, embed_dim, cfg.decoder.attention_heads, cfg)
        return attention or super().build_self_attention(embed_dim, cfg, add_bias_kv, add_zero_attn)


def _positional(
    layer: Any, embed_dim: int, heads: int, cfg: TransformerConfig
) -> PositionalMultiheadAttention | None:
    """Self-attention of a layer that has positions in it, else None."""
    if cfg.relpos_layers == "first" and layer.index > 0:
        return None
    relative = attention_for(
        cfg.pos,
        layer.index,
        head_dim=embed_dim // heads,
        heads=heads,
        context=cfg.relpos_context,
        values=cfg.relpos_values,
        frequency_scale=cfg.frequency_scale,
        logn=cfg.attention_logn,
    )
    if relative is None:
        return None
    if layer.index == 0:
        layer.current.prepare = relative.prepare
    return PositionalMultiheadAttention(
        embed_dim,
        heads,
        relative,
        layer.current,
        dropout=cfg.attention_dropout,
        q_noise=layer.quant_noise,
        qn_block_size=layer.quant_noise_block_size,
    )


def wrap(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """Activation checkpointing and FSDP, as fairseq wraps its own layers."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    smallest = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
    return fsdp_wrap(layer, min_num_params=smallest)
