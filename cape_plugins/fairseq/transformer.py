"""The model ``cape_transformer``: fairseq's Transformer with another source of positions.

The encoder draws Δ and λ of each sentence pair and hands them to the decoder inside its output,
which reaches the decoder however the two are wrapped or called.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from omegaconf import OmegaConf
from torch import Tensor, nn

from cape_plugins.augment import Draw
from cape_plugins.fairseq import admin
from cape_plugins.fairseq.checks import check_options
from cape_plugins.fairseq.config import (
    CapeTransformerConfig,
    needs_source_bos,
    plain_options,
    store_option,
)
from cape_plugins.fairseq.layers import CapeDecoderLayer, CapeEncoderLayer, is_relative, wrap
from cape_plugins.fairseq.positions import TokenEmbedding, sharing
from cape_plugins.fairseq.source_bos import prepend_bos
from cape_plugins.fairseq.source_scale import count_source_scale
from cape_plugins.fairseq.variant import Variant

# key of the encoder's output: [shift (B, 1), scale (B,)] in training with cape, else absent
DRAW = "cape_draw"


class CapeTransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder; draws Δ and λ, and begins the source with BOS where that applies."""

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Dictionary,
        embed_tokens: nn.Embedding,
        return_fc: bool = False,
    ) -> None:
        self.built_layers = 0
        super().__init__(cfg, dictionary, embed_tokens, return_fc=return_fc)
        self.source_bos = needs_source_bos(cfg.pos, cfg.source_bos)
        self.embed_positions = _embed_positions(
            cfg,
            embed_tokens.embedding_dim,
            padding_idx=self.padding_idx,
            max_positions=cfg.max_source_positions,
            added_tokens=int(self.source_bos),
            token_scale=cfg.source_scale if cfg.pos == "cape" else 1.0,
        )

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """A layer of ours, wrapped as fairseq wraps its own; called once for each, in order."""
        relative = is_relative(cfg, self.built_layers)
        self.built_layers += 1
        return wrap(CapeEncoderLayer(cfg, self.return_fc, relative=relative), cfg)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> dict[str, list[Tensor]]:
        """As fairseq's; the output's length counts an inserted BOS (one more column)."""
        if self.source_bos:
            src_tokens, inserted = prepend_bos(
                src_tokens, bos=self.dictionary.bos(), padding_idx=self.padding_idx
            )
            if token_embeddings is not None:
                token_embeddings = torch.where(
                    inserted[..., None],
                    self.embed_tokens.weight[self.dictionary.bos()],
                    nn.functional.pad(token_embeddings, (0, 0, 1, 0)),
                )
        draw = self.embed_positions.draw(src_tokens.shape[0]) if self.embed_positions else None
        with sharing(self.embed_positions, draw):
            out = super().forward(src_tokens, src_lengths, return_all_hiddens, token_embeddings)
        if draw is not None:
            out[DRAW] = [draw.shift, draw.scale]
        return out


class CapeTransformerDecoder(TransformerDecoderBase):
    """fairseq's decoder; uses the encoder's draw of Δ and λ, and draws itself without one."""

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Dictionary,
        embed_tokens: nn.Embedding,
        no_encoder_attn: bool = False,
        output_projection: nn.Module | None = None,
    ) -> None:
        self.built_layers = 0
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn, output_projection)
        # a language model has no source
        self.source_bos = needs_source_bos(cfg.pos, getattr(cfg, "source_bos", "false"))
        self.embed_positions = _embed_positions(
            cfg,
            self.embed_dim,
            padding_idx=self.padding_idx,
            max_positions=cfg.max_target_positions,
        )
        self.variant = Variant(cfg.pos)

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        """A layer of ours, wrapped as fairseq wraps its own; called once for each, in order."""
        relative = is_relative(cfg, self.built_layers)
        self.built_layers += 1
        return wrap(CapeDecoderLayer(cfg, no_encoder_attn, relative=relative), cfg)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]] | None,
        incremental_state: dict[str, Any] | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """As fairseq's; ``attn`` leaves out the column of BOS, so that it fits the source."""
        draw = None
        if encoder_out is not None and encoder_out.get(DRAW):
            draw = Draw(*encoder_out[DRAW])
        with sharing(self.embed_positions, draw):
            features, extra = super().extract_features(
                prev_output_tokens,
                encoder_out,
                incremental_state,
                full_context_alignment,
                alignment_layer,
                alignment_heads,
            )
        if self.source_bos and encoder_out is not None:
            extra["attn"] = [None if a is None else a[..., 1:] for a in extra["attn"]]
        return features, extra


class CapeTransformerModel(TransformerModelBase):
    """fairseq's Transformer with ``--pos nopos|abspos|sinpos|cape|relpos``; all else is shared."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the options, without defaults: those of the architecture come first."""
        gen_parser_from_dataclass(parser, CapeTransformerConfig(), delete_default=True)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "CapeTransformerModel":
        """Build a model; counts the source scale if it is 0, and stores it in ``cfg``.

        Args:
            cfg: the options, as OmegaConf's DictConfig or :class:`CapeTransformerConfig`.
            task: gives the dictionaries and, where α must be counted, the training set.

        Raises:
            ValueError: an option is out of range, or α or ADMIN's scales cannot be had.
        """
        if not OmegaConf.is_config(cfg):
            cfg = OmegaConf.create({"model": OmegaConf.structured(cfg)}).model
        options = plain_options(cfg)
        check_options(options, CapeTransformerConfig())
        if options["source_scale"] == 0:
            options["source_scale"] = count_source_scale(task)
            store_option(cfg, "source_scale", options["source_scale"])
        # so that fairseq builds no positions of its own
        options["no_token_positional_embeddings"] = True
        model = super().build_model(TransformerConfig.from_namespace(Namespace(**options)), task)
        admin.initialise(model, cfg, task)
        return model

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> CapeTransformerEncoder:
        """Our encoder."""
        return CapeTransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> CapeTransformerDecoder:
        """Our decoder."""
        return CapeTransformerDecoder(
            cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention
        )


def _embed_positions(cfg: TransformerConfig, dim: int, **tokens: Any) -> TokenEmbedding | None:
    """What both sides share of their positions; None adds nothing in fairseq."""
    if cfg.pos in ("nopos", "relpos"):
        return None
    return TokenEmbedding(
        dim,
        cfg.pos,
        max_global_shift=cfg.max_global_shift,
        max_local_shift=cfg.max_local_shift,
        max_global_scale=cfg.max_global_scale,
        **tokens,
    )
