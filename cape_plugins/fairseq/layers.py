"""fairseq's Transformer layers with room for relative attention and ADMIN's residuals."""

from typing import Any

from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import MultiheadAttention
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import nn

from cape_plugins.fairseq.admin import ScaledResiduals
from cape_plugins.fairseq.relative_attention import RelativeMultiheadAttention


class CapeEncoderLayer(ScaledResiduals, TransformerEncoderLayerBase):
    """fairseq's encoder layer without the fast path of 0.12.2, which fails on torch ≥ 1.13.

    That version keeps eight copies of a layer's weights for it, as parameters without gradient;
    without them, checkpoints hold the same weights in all versions.

    Args:
        cfg: the options.
        return_fc: as fairseq's.
        relative: whether self-attention has relative positions.
    """

    _load_from_state_dict = nn.Module._load_from_state_dict

    def __init__(
        self, cfg: TransformerConfig, return_fc: bool = False, *, relative: bool = False
    ) -> None:
        self.relative = relative  # the line below builds the attention
        super().__init__(cfg, return_fc)
        self.can_use_fastpath = False
        for copied in ("in_proj", "out_proj", "fc1", "fc2"):
            for kind in ("weight", "bias"):
                self._parameters.pop(f"{copied}_{kind}", None)
        self.scale_residuals(2 if cfg.admin_init else 0, self.embed_dim)

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> MultiheadAttention:
        """fairseq's, or with relative positions."""
        if not self.relative:
            return super().build_self_attention(embed_dim, cfg)
        return _relative(self, embed_dim, cfg.encoder.attention_heads, cfg)


class CapeDecoderLayer(ScaledResiduals, TransformerDecoderLayerBase):
    """fairseq's decoder layer; cross-attention is always its own.

    Args:
        cfg: the options.
        no_encoder_attn: whether there is no cross-attention.
        relative: whether self-attention has relative positions.
    """

    def __init__(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False, *, relative: bool = False
    ) -> None:
        self.relative = relative  # the line below builds the attention
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
        """fairseq's, or with relative positions."""
        if not self.relative:
            return super().build_self_attention(embed_dim, cfg, add_bias_kv, add_zero_attn)
        return _relative(self, embed_dim, cfg.decoder.attention_heads, cfg)


def _relative(
    layer: Any, embed_dim: int, heads: int, cfg: TransformerConfig
) -> RelativeMultiheadAttention:
    return RelativeMultiheadAttention(
        embed_dim,
        heads,
        context=cfg.relpos_context,
        values=cfg.relpos_values,
        dropout=cfg.attention_dropout,
        q_noise=layer.quant_noise,
        qn_block_size=layer.quant_noise_block_size,
    )


def is_relative(cfg: TransformerConfig, index: int) -> bool:
    """Whether layer ``index`` of a side has relative positions."""
    return cfg.pos == "relpos" and (cfg.relpos_layers == "all" or index == 0)


def wrap(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """Activation checkpointing and FSDP, as fairseq wraps its own layers."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    smallest = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
    return fsdp_wrap(layer, min_num_params=smallest)
