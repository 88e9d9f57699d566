"""Models by name in timm's registry: sizes × variants, as the table of variants has them."""

import sys
from collections.abc import Callable
from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, register_model, vision_transformer
from torch import Tensor, nn

from cape_plugins.variants import get, names

SIZES: dict[str, dict[str, Any]] = {
    "tiny": dict(embed_dim=192, depth=12, num_heads=3),
    "small": dict(embed_dim=384, depth=12, num_heads=6),
    "base": dict(embed_dim=768, depth=12, num_heads=12),
}


def names_without_table() -> tuple[str, ...]:
    """The variants for images that are not timm's own."""
    return tuple(pos for pos in names(2) if get(pos).adds != "table")


# timm has vit_*_patch16_rope_224 and rope_mixed of its own, with published weights
_HAVE_LOW = ("sinpos", "cape", "univit")
_TIMMS = {"rope": "ropepos", "rope_mixed": "ropepos_mixed"}


# frequency_scale of the models named …_low_…: with the paper's 1 most channels are noise under Δ
# and ε until a long training has sorted them out (configs/studies/band.yaml)
LOW = 0.1


def variants_by_name() -> dict[str, dict[str, Any]]:
    """What a model's name says of positions → its arguments; univit is CAPE with λ = 1."""
    named: dict[str, dict[str, Any]] = {
        _TIMMS.get(pos, pos): dict(pos=pos) for pos in names_without_table()
    }
    named["univit"] = dict(pos="cape", max_global_scale=1.0)
    low = {f"{name}_low": {**named[name], "frequency_scale": LOW} for name in _HAVE_LOW}
    return named | low


def register_models(
    module: str,
    model: type[nn.Module],
    filter_fn: Callable[..., dict[str, Tensor]],
    models: dict[str, dict[str, Any]],
) -> None:
    """Register models with timm: for each a function of the module, as ``timm.create_model`` wants.

    Args:
        module: name of a module that has ``default_cfgs`` of the models.
        model: their class.
        filter_fn: makes its state dict of a checkpoint's.
        models: name → arguments of the class.
    """
    for name, model_args in models.items():
        entrypoint = _entrypoint(name, model, filter_fn, model_args)
        entrypoint.__name__ = entrypoint.__qualname__ = name
        entrypoint.__module__ = module
        settings = ", ".join(f"{key}={value!r}" for key, value in model_args.items())
        entrypoint.__doc__ = f"{model.__name__}, {settings}."
        setattr(sys.modules[module], name, register_model(entrypoint))


def _entrypoint(
    name: str,
    model: type[nn.Module],
    filter_fn: Callable[..., dict[str, Tensor]],
    model_args: dict[str, Any],
) -> Callable[..., nn.Module]:
    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        kwargs = {**model_args, **kwargs}
        use_naflex = kwargs.pop("use_naflex", None)
        if use_naflex is None:
            use_naflex = getattr(vision_transformer, "_USE_NAFLEX_DEFAULT", False)
        if use_naflex and issubclass(model, vision_transformer.VisionTransformer):
            from cape_plugins.timm.naflexvit import create_from_vit  # which imports this module

            return create_from_vit(name, pretrained, **kwargs)
        out_indices = kwargs.pop("out_indices", 3)
        return build_model_with_cfg(
            model,
            name,
            pretrained,
            pretrained_filter_fn=filter_fn,
            feature_cfg=dict(out_indices=out_indices, feature_cls="getter"),
            **kwargs,
        )

    return create


def untrained_cfg(**kwargs: Any) -> dict[str, Any]:
    """timm's description of a model without weights; ``kwargs`` replace some of it."""
    return {
        "url": "",
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": None,
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "fixed_input_size": False,
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
        "license": "mit",
        **kwargs,
    }
