"""The names for ``--arch``: sizes, as in fairseq's architectures of the same ending."""

from typing import Any

from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_REGISTRY,
    register_model,
    register_model_architecture,
)

from cape_plugins.fairseq.config import CapeTransformerConfig, check_options
from cape_plugins.fairseq.transformer import CapeTransformerModel

MODEL = "cape_transformer"


def _symmetric(**sizes: int) -> dict[str, int]:
    return {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in sizes.items()}


# architecture → options that differ from the defaults (Transformer base)
ARCHITECTURES = {
    "cape_transformer": {},
    "cape_transformer_iwslt_de_en": _symmetric(
        embed_dim=512, ffn_embed_dim=1024, attention_heads=4, layers=6
    ),
    "cape_transformer_tiny": _symmetric(
        embed_dim=64, ffn_embed_dim=128, attention_heads=2, layers=2
    ),
}


def register_architectures() -> None:
    """Add the model and the architectures to fairseq's registries, where they are missing."""
    if MODEL not in MODEL_REGISTRY:
        register_model(MODEL, dataclass=CapeTransformerConfig)(CapeTransformerModel)
        # fairseq has just added an architecture of the model's name that does nothing
        ARCH_CONFIG_REGISTRY[MODEL] = _configure(MODEL)
    for name in ARCHITECTURES:
        if name not in ARCH_MODEL_REGISTRY:
            register_model_architecture(MODEL, name)(_configure(name))


def _configure(architecture: str) -> Any:
    """The function that fairseq calls with the options given by the user."""

    def configure(args: Any) -> None:
        for option, value in ARCHITECTURES[architecture].items():
            if getattr(args, option, None) is None:
                setattr(args, option, value)
        # on the command line fairseq comes here before it reads anything
        check_options({k: v for k, v in _items(args) if k in _OPTIONS})

    return configure


_OPTIONS = CapeTransformerConfig.__dataclass_fields__


def _items(args: Any) -> Any:
    return args.items() if hasattr(args, "items") else vars(args).items()
