"""CAPE inside timm: ViTs by name, registered on import (and by autoload when timm is imported).

vision_transformer, naflexvit and eva have the names of timm's files on purpose: timm's registry and
tests group models by them.
"""


def register() -> None:
    """Register the models with timm; idempotent. ImportError: timm is missing or too old."""
    try:
        from cape_plugins.timm import eva, naflexvit, vision_transformer  # noqa: F401 - they register
    except ImportError as error:
        raise ImportError(
            f"cape_plugins.timm needs timm ≥ 1.0.31 ({error}): pip install 'cape-plugins[timm]'"
        ) from error


register()
