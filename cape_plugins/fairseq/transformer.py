"""The models ``cape_transformer`` and ``cape_transformer_lm``: fairseq's, with other positions.

The encoder draws Δ and λ of each sentence pair and hands them to the decoder inside its output,
which reaches the decoder however the two are wrapped or called. In a language model there is no
source: the decoder draws for each sample itself.
"""

import logging
from argparse import ArgumentParser, Namespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import FairseqLanguageModel
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from fairseq.models.transformer_lm import TransformerLanguageModel
from omegaconf import OmegaConf
from torch import Tensor, nn

from cape_plugins.augment import Draw
from cape_plugins.fairseq import admin
from cape_plugins.fairseq.config import (
    CapeTransformerConfig,
    CapeTransformerLanguageModelConfig,
    check_built,
    checkpoint_options,
    forgive_old_options,
    needs_source_bos,
    plain_options,
    store_option,
    takes,
)
from cape_plugins.fairseq.layers import CapeDecoderLayer, CapeEncoderLayer, wrap
from cape_plugins.fairseq.positions import (
    CurrentBatch,
    TokenEmbedding,
    TokenPositions,
    VariantMark,
    count_source_scale,
    longest_training_sentence,
    positions_in_batch,
    prepend_bos,
)
from cape_plugins.variants import get

logger = logging.getLogger(__name__)

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
        self.built_layers, self.current = 0, CurrentBatch()  # the line below builds the layers
        super().__init__(cfg, dictionary, embed_tokens, return_fc=return_fc)
        self.source_bos = needs_source_bos(cfg.pos, cfg.source_bos)
        self.spacing = cfg.source_scale if takes(cfg.pos, "source_scale") else 1.0
        self.token_positions = _token_positions(cfg, self.current, spread=True)
        self.embed_positions = _embed_positions(
            cfg,
            embed_tokens.embedding_dim,
            self.current,
            max_positions=cfg.max_source_positions,
            added_tokens=int(self.source_bos),
        )

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """A layer of ours, wrapped as fairseq wraps its own; called once for each, in order."""
        layer = CapeEncoderLayer(cfg, self.return_fc, index=self.built_layers, current=self.current)
        self.built_layers += 1
        return wrap(layer, cfg)

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
        batch = len(src_tokens)
        draw = self.token_positions.draw(batch, src_tokens.device)
        positions = positions_in_batch(src_tokens, self.padding_idx, self.spacing)
        self.token_positions(positions, batch, draw)
        out = super().forward(src_tokens, src_lengths, return_all_hiddens, token_embeddings)
        if draw is not None:
            out[DRAW] = list(draw)
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
        self.built_layers, self.current = 0, CurrentBatch()  # the line below builds the layers
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn, output_projection)
        # a language model has no source
        self.source_bos = needs_source_bos(cfg.pos, getattr(cfg, "source_bos", "false"))
        # decoding does not know how many tokens there will be
        self.token_positions = _token_positions(cfg, self.current, spread=False)
        self.embed_positions = _embed_positions(
            cfg,
            self.embed_dim,
            self.current,
            max_positions=cfg.max_target_positions,
        )
        self.variant = VariantMark(cfg.pos, getattr(cfg, "source_scale", 0.0))

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        """A layer of ours, wrapped as fairseq wraps its own; called once for each, in order."""
        layer = CapeDecoderLayer(
            cfg, no_encoder_attn, index=self.built_layers, current=self.current
        )
        self.built_layers += 1
        return wrap(layer, cfg)

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
        if incremental_state is None:
            positions = positions_in_batch(prev_output_tokens, self.padding_idx)
        else:  # all rows are equally long: finished ones hold padding, which counts
            steps, device = prev_output_tokens.shape[1], prev_output_tokens.device
            positions = torch.arange(steps, dtype=torch.float32, device=device)[None]
        shared = encoder_out.get(DRAW) if encoder_out is not None else None
        draw = Draw(*shared) if shared else None
        self.token_positions(positions, len(prev_output_tokens), draw)
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
    """fairseq's Transformer with ``--pos``; all else is shared."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the options, without defaults: those of the architecture come first."""
        gen_parser_from_dataclass(parser, CapeTransformerConfig(), delete_default=True)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "CapeTransformerModel":
        """Build a model; stores a source scale in place of 0, if the variant takes one.

        It is that of the checkpoint that training starts from, else counted.

        Args:
            cfg: the options, as OmegaConf's DictConfig or :class:`CapeTransformerConfig`.
            task: gives the dictionaries and, where α must be counted, the training set.

        Raises:
            ValueError: an option is out of range, or α or ADMIN's scales cannot be had.
        """
        defaults = CapeTransformerConfig()
        if OmegaConf.is_config(cfg):
            options = forgive_old_options(plain_options(cfg), defaults)
        else:
            cfg = OmegaConf.create({"model": OmegaConf.structured(cfg)}).model
            options = plain_options(cfg)
        check_built(options, defaults)
        if options["source_scale"] == 0 and takes(options["pos"], "source_scale"):
            # what a checkpoint's weights were trained with, else the training set's
            scale = checkpoint_options(cfg).get("source_scale") or count_source_scale(task)
            options["source_scale"] = scale
            store_option(cfg, "source_scale", scale)
            logger.info(f"source scale {scale:.6g}")
        if takes(options["pos"], "relpos_context"):
            _tell_untrained_distances(options["relpos_context"], longest_training_sentence(task))
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


def _tell_untrained_distances(context: int, longest: int | None) -> None:
    if longest and context >= longest:
        logger.info(
            f"--relpos-context {context}: the longest training sentence has {longest} tokens, so "
            f"that the vectors of distances {longest} to {context} stay untrained; for longer "
            f"sentences than in training give at most {max(1, longest - 1)}"
        )


def _token_positions(
    cfg: TransformerConfig, current: CurrentBatch, *, spread: bool
) -> TokenPositions:
    return TokenPositions(
        cfg.pos,
        current,
        max_global_shift=cfg.max_global_shift,
        max_local_shift=cfg.max_local_shift,
        max_global_scale=cfg.max_global_scale,
        random_range=cfg.random_range,
        spread=spread,
    )


def _embed_positions(
    cfg: TransformerConfig,
    dim: int,
    current: CurrentBatch,
    *,
    max_positions: int,
    added_tokens: int = 0,
) -> TokenEmbedding | None:
    """What is added to the tokens of either side; None adds nothing in fairseq."""
    if get(cfg.pos).adds == "nothing":
        return None
    return TokenEmbedding(
        dim,
        cfg.pos,
        current,
        max_positions=max_positions,
        added_tokens=added_tokens,
        frequency_scale=cfg.frequency_scale,
    )


class CapeTransformerLanguageModel(FairseqLanguageModel):
    """fairseq's ``transformer_lm`` with ``--pos``; all else is shared."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the options, without defaults: those of the architecture come first."""
        defaults = CapeTransformerLanguageModelConfig()
        gen_parser_from_dataclass(parser, defaults, delete_default=True)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "CapeTransformerLanguageModel":
        """Build a model.

        Args:
            cfg: the options, as OmegaConf's DictConfig, part of fairseq's whole config (some of
                its defaults are those of the task).
            task: gives the dictionaries, and with ``admin_init`` the training set.

        Raises:
            ValueError: an option is out of range, or ADMIN's scales cannot be had.
        """
        options = plain_options(cfg)
        check_built(options, CapeTransformerLanguageModelConfig())
        if options["max_target_positions"] is None:  # as fairseq: what follows from the task
            options["max_target_positions"] = options["tokens_per_sample"]
            store_option(cfg, "max_target_positions", options["max_target_positions"])
        if options["decoder_layers_to_keep"]:
            options["decoder_layers"] = len(options["decoder_layers_to_keep"].split(","))
        if options["offload_activations"]:
            options["checkpoint_activations"] = True
        # so that fairseq builds no positions of its own
        options["no_token_positional_embeddings"] = True
        # fairseq makes its tokens' embeddings, of several kinds, in the midst of making a decoder
        embeddings_only = {**options, "decoder_layers": 0, "decoder_layers_to_keep": None}
        embed_tokens = TransformerLanguageModel.build_model(
            Namespace(**embeddings_only), task
        ).decoder.embed_tokens
        decoder = CapeTransformerDecoder(
            TransformerConfig.from_namespace(Namespace(**options)),
            task.target_dictionary,
            embed_tokens,
            no_encoder_attn=True,
        )
        model = cls(decoder)
        admin.initialise(model, cfg, task)
        return model
