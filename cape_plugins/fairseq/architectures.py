"""The names for ``--arch`` and ``--task``; sizes are those of fairseq's own names.

``wmt_en_fr`` is what the paper trains there, the sizes of ``wmt_en_de``; ``wmt_en_de_18l`` has 18
layers on each side. Dropout is fairseq's; the paper's recipes add to it.
"""

from argparse import Namespace
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_REGISTRY,
    register_model,
    register_model_architecture,
)
from fairseq.tasks import TASK_REGISTRY, register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from cape_plugins.fairseq.config import (
    CapeTransformerConfig,
    CapeTransformerLanguageModelConfig,
    check_options,
    one_line,
    refuse_torchrun_alone,
)
from cape_plugins.fairseq.transformer import CapeTransformerLanguageModel, CapeTransformerModel

TASK = "cape_translation"
MODEL = "cape_transformer"
LANGUAGE_MODEL = "cape_transformer_lm"

_MODELS: dict[str, tuple[type, type[FairseqDataclass]]] = {
    MODEL: (CapeTransformerModel, CapeTransformerConfig),
    LANGUAGE_MODEL: (CapeTransformerLanguageModel, CapeTransformerLanguageModelConfig),
}


def _symmetric(**sizes: int) -> dict[str, int]:
    return {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in sizes.items()}


# architecture → options that differ from the defaults (Transformer base)
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "cape_transformer": {},
    "cape_transformer_iwslt_de_en": _symmetric(
        embed_dim=512, ffn_embed_dim=1024, attention_heads=4, layers=6
    ),
    "cape_transformer_wmt_en_de": {},
    "cape_transformer_wmt_en_de_18l": _symmetric(layers=18),
    "cape_transformer_wmt_en_de_big": {
        **_symmetric(embed_dim=1024, ffn_embed_dim=4096, attention_heads=16),
        "dropout": 0.3,
        "attention_dropout": 0.1,
    },
    "cape_transformer_wmt_en_fr": {},
    "cape_transformer_tiny": _symmetric(
        embed_dim=64, ffn_embed_dim=128, attention_heads=2, layers=2
    ),
}
LANGUAGE_MODEL_ARCHITECTURES: dict[str, dict[str, Any]] = {"cape_transformer_lm": {}}


def register_architectures() -> None:
    """Add the models and the architectures to fairseq's registries, where they are missing."""
    for model, architectures in (
        (MODEL, ARCHITECTURES),
        (LANGUAGE_MODEL, LANGUAGE_MODEL_ARCHITECTURES),
    ):
        if model not in MODEL_REGISTRY:
            cls, config = _MODELS[model]
            register_model(model, dataclass=config)(cls)
            # fairseq has just added an architecture of the model's name that does nothing
            ARCH_CONFIG_REGISTRY[model] = _configure(model, architectures[model])
        for name, options in architectures.items():
            if name not in ARCH_MODEL_REGISTRY:
                register_model_architecture(model, name)(_configure(model, options))


def _configure(model: str, options: dict[str, Any]) -> Any:
    """The function that fairseq calls with the options given by the user."""
    defaults = _MODELS[model][1]()

    def configure(args: Any) -> None:
        for option, value in options.items():
            if getattr(args, option, None) is None:
                setattr(args, option, value)
        if isinstance(args, Namespace):  # of the command line, before fairseq reads any data
            with one_line():
                check_options(vars(args), defaults)
                refuse_torchrun_alone(getattr(args, "distributed_world_size", 0))

    return configure


class CapeTranslationTask(TranslationTask):
    """fairseq's ``translation`` under a name of ours, to which it adds nothing.

    BOS, positions and the source scale are the model's, so that both tasks (and any other for
    translation) give the same in training and in generation.
    """


def register_cape_translation() -> None:
    """Add ``cape_translation`` to fairseq's tasks, unless it is there."""
    if TASK not in TASK_REGISTRY:
        register_task(TASK, dataclass=TranslationConfig)(CapeTranslationTask)
