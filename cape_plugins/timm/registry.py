"""Models by name in timm's registry: each size with each variant of the table of variants."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, is_model, register_model
from torch import Tensor, nn

from cape_plugins.autoload import warn
from cape_plugins.timm.options import HOST, options_of
from cape_plugins.variants import Variant, names, tell_of_later

SIZES: dict[str, dict[str, Any]] = {
    "tiny": dict(embed_dim=192, depth=12, num_heads=3),
    "small": dict(embed_dim=384, depth=12, num_heads=6),
    "base": dict(embed_dim=768, depth=12, num_heads=12),
}

# timm has vit_*_patch16_rope_224 of its own, with published weights
_RENAMED = {"rope": "ropepos"}

# frequency_scale of the models named …_low_…. With the paper's 1, Δ and ε turn most channels into
# noise, and a model needs a long training to use them (configs/studies/band.yaml).
LOW = 0.1
_HAVE_LOW = ("sinpos", "cape", "univit")


def variants_by_name() -> dict[str, dict[str, Any]]:
    """The part of a model's name for positions → its arguments; univit is CAPE with λ = 1."""
    named = _named(names(HOST.axes))
    named["univit"] = dict(pos="cape", max_global_scale=1.0)
    low = {f"{name}_low": {**named[name], "frequency_scale": LOW} for name in _HAVE_LOW}
    return named | low


def _named(variants: Iterable[str]) -> dict[str, dict[str, Any]]:
    return {_RENAMED.get(pos, pos): dict(pos=pos) for pos in variants}


def remedy(patch: int | None, option: str, trained: Any) -> str | None:
    """What to create in place of a model that a checkpoint does not fit (``VariantMark.remedy``).

    Args:
        patch: pixels along a patch; None for NaFlexVit.
        option: whose value differs, or ``pos``.
        trained: the checkpoint's value.

    Returns:
        None where users set the option itself.
    """
    if option == "pos":
        return f"create the model with {_RENAMED.get(trained, trained)} in its name"
    if option == "frequency_scale" and math.isclose(trained, LOW, rel_tol=1e-2):
        return f"create the model with low in its name, or set frequency_scale={LOW}"
    if option == "alibi_unit":  # the distance of two patches in an image from -1 to 1
        patches = round(2 / trained) + 1
        size = f"pos_embed_grid_size=({patches}, {patches})"
        size = size if patch is None else f"img_size={patches * patch}"
        return f"create the model with {size}, training's; images may have any size"
    return None


def build(
    model: type[nn.Module],
    filter_fn: Callable[..., dict[str, Tensor]],
    name: str,
    pretrained: bool,
    **kwargs: Any,
) -> nn.Module:
    """timm's ``build_model_with_cfg``; ``filter_fn`` converts a checkpoint's state dict."""
    features = dict(out_indices=kwargs.pop("out_indices", 3), feature_cls="getter")
    return build_model_with_cfg(
        model, name, pretrained, pretrained_filter_fn=filter_fn, feature_cfg=features, **kwargs
    )


def register_models(
    module: str, create: Callable[..., nn.Module], models: Mapping[str, dict[str, Any]]
) -> None:
    """Register models (name → default arguments) with timm, each as a function of the module.

    The module must hold their ``default_cfgs``. ``create`` takes the name, ``pretrained`` and the
    arguments, and returns the model.
    """

    def register(name: str, model_args: dict[str, Any]) -> None:
        def entrypoint(pretrained: bool = False, **kwargs: Any) -> nn.Module:
            return create(name, pretrained, **{**model_args, **kwargs})

        entrypoint.__name__ = entrypoint.__qualname__ = name
        entrypoint.__module__ = module
        about = ", ".join(f"{key}={value!r}" for key, value in model_args.items())
        if "pos" in model_args:
            about += f"\n\nOptions about positions:\n{options_of(model_args['pos'])}"
        entrypoint.__doc__ = about
        setattr(sys.modules[module], name, register_model(entrypoint))

    for name, model_args in models.items():
        register(name, model_args)


def register_variants(
    module: str,
    create: Callable[..., nn.Module],
    pattern: str,
    sizes: Iterable[str],
    shared: Mapping[str, Any],
    cfg: Mapping[str, Any],
) -> None:
    """Register a model without weights for each size and variant, and its ``default_cfgs``.

    Args:
        module, create: as in :func:`register_models`.
        pattern: pattern of the names, with ``{size}`` and ``{variant}``.
        sizes: keys of :data:`SIZES`.
        shared: default arguments of all models.
        cfg: entries of timm's ``default_cfgs`` that differ from a ViT for 224 pixels.
    """
    cfg = {"first_conv": "patch_embed.proj", "classifier": "head", "license": "mit", **cfg}

    def register(variants: Mapping[str, dict[str, Any]]) -> None:
        models = {
            pattern.format(size=size, variant=named): {**shared, **SIZES[size], **variant}
            for size, (named, variant) in product(sizes, variants.items())
        }
        for name in [name for name in models if is_model(name)]:
            pos = models.pop(name)["pos"]  # of another package
            if name not in default_cfgs:
                warn(
                    f"the variant {pos} has no model {name}, which is timm's own: it needs "
                    "another name"
                )
        default_cfgs.update(generate_default_cfgs({f"{name}.untrained": cfg for name in models}))
        register_models(module, create, models)

    def register_later(pos: str, variant: Variant) -> None:
        if HOST.axes in variant.axes:
            register(_named([pos]))

    default_cfgs = sys.modules[module].default_cfgs
    register(variants_by_name())
    tell_of_later(register_later)
