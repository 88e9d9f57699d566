"""The names for ``--arch``; sizes and dropout are those of fairseq's own names."""

from argparse import Namespace
from typing import Any

from fairseq import models
from fairseq.tasks import TASK_REGISTRY

from cape_plugins.fairseq.checks import check_training, refuse_other_task, refuse_torchrun_alone
from cape_plugins.fairseq.transformer import CapeTransformerLanguageModel, CapeTransformerModel

MODELS = {
    "cape_transformer": CapeTransformerModel,
    "cape_transformer_lm": CapeTransformerLanguageModel,
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
        embed_dim=64, ffn_embed_dim=128, attention_heads=2, layers=2
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
    defaults = MODELS[model].config()

    def configure(args: Any) -> None:
        for option, value in options.items():
            if getattr(args, option, None) is None:
                setattr(args, option, value)
        if isinstance(args, Namespace):  # of the command line, before fairseq reads any data
            given = {"task": "", "optimizer": None, "distributed_world_size": None, **vars(args)}
            task = TASK_REGISTRY.get(given["task"], object)
            refuse_other_task(task, translates=model == "cape_transformer")
            check_training(given, args, {**given, "_name": given["optimizer"]}, defaults)
            refuse_torchrun_alone(given["distributed_world_size"])

    return configure
