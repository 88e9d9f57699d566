"""The names for ``--arch``: fairseq's Transformers with positions, and with the paper's ADMIN.

Sizes and dropout are those of fairseq's own names.
"""

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from fairseq import models

from cape_plugins.fairseq.errors import one_line
from cape_plugins.fairseq.layers import FairseqCapeDecoderLayer, FairseqCapeEncoderLayer
from cape_plugins.fairseq.options import FairseqCapeConfig, FairseqCapeLanguageModelConfig
from cape_plugins.fairseq.paper.admin import AdminConfig, AdminLayer, AdminModel
from cape_plugins.fairseq.start import check_start
from cape_plugins.fairseq.transformer import FairseqCapeLanguageModel, FairseqCapeTransformer


class EncoderLayer(AdminLayer, FairseqCapeEncoderLayer):
    """Positions in self-attention, ω on residuals."""


class DecoderLayer(AdminLayer, FairseqCapeDecoderLayer):
    """Positions in self-attention, ω on residuals."""


@dataclass
class TransformerConfig(AdminConfig, FairseqCapeConfig):
    """The options of ``cape_transformer``."""


@dataclass
class LanguageModelConfig(AdminConfig, FairseqCapeLanguageModelConfig):
    """The options of ``cape_transformer_lm``."""


class Transformer(AdminModel, FairseqCapeTransformer):
    """``cape_transformer``: translation, or another task with a source."""

    config, encoder_layer, decoder_layer = TransformerConfig, EncoderLayer, DecoderLayer


class LanguageModel(AdminModel, FairseqCapeLanguageModel):
    """``cape_transformer_lm``: the decoder alone."""

    config, decoder_layer = LanguageModelConfig, DecoderLayer


MODELS: dict[str, Any] = {
    "cape_transformer": Transformer,
    "cape_transformer_lm": LanguageModel,
}


def _symmetric(**sizes: int) -> dict[str, Any]:
    return {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in sizes.items()}


# architecture of cape_transformer → options that differ from the defaults (Transformer base)
ARCHITECTURES = {
    "cape_transformer_iwslt_de_en": _symmetric(ffn_embed_dim=1024, attention_heads=4),
    "cape_transformer_wmt_en_de": {},
    "cape_transformer_wmt_en_de_18l": _symmetric(layers=18),
    "cape_transformer_wmt_en_de_big": {
        **_symmetric(embed_dim=1024, ffn_embed_dim=4096, attention_heads=16),
        "dropout": 0.3,
        "attention_dropout": 0.1,
    },
    "cape_transformer_wmt_en_fr": {},  # as in the paper, the sizes of wmt_en_de
    "cape_transformer_tiny": _symmetric(
        embed_dim=64, ffn_embed_dim=64, attention_heads=2, layers=2
    ),
}


def register_architectures() -> None:
    """Add the models and the architectures to fairseq's registries, where they are missing."""
    if MODELS.keys() & models.MODEL_REGISTRY.keys():
        return
    for name, model in MODELS.items():
        models.register_model(name, dataclass=model.config)(model)
        # fairseq has just added an architecture of the model's name that does nothing
        models.ARCH_CONFIG_REGISTRY[name] = _configure(name, {})
    for name, options in ARCHITECTURES.items():
        configure = _configure("cape_transformer", options)
        models.register_model_architecture("cape_transformer", name)(configure)


def _configure(model: str, options: dict[str, Any]) -> Any:
    """The function that fairseq calls with the options given by the user."""
    defaults = vars(MODELS[model].config())

    def configure(args: Any) -> None:
        for option, value in options.items():
            if getattr(args, option, None) is None:
                setattr(args, option, value)
        if isinstance(args, Namespace):  # of the command line, before fairseq reads any data
            given = {name: value for name, value in vars(args).items() if value is not None}
            with one_line():
                chosen = MODELS[model].check_options({**defaults, **given})
                check_start(chosen.pos, args)

    return configure
