"""The model ``cape_transformer_lm``: fairseq's language model with another source of positions.

There is no source: the decoder draws Δ and λ of each sample itself.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import FairseqLanguageModel
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModel

from cape_plugins.fairseq import admin
from cape_plugins.fairseq.checks import check_options
from cape_plugins.fairseq.config import (
    CapeTransformerLanguageModelConfig,
    plain_options,
    store_option,
)
from cape_plugins.fairseq.transformer import CapeTransformerDecoder


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
        check_options(options, CapeTransformerLanguageModelConfig())
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
