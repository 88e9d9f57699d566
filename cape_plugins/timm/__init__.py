"""CAPE inside timm: ViTs by name, registered on import (and by autoload when timm is imported).

The modules vision_transformer, naflexvit and eva have the names of timm's files, because timm's
registry and tests group models by module.
"""

from cape_plugins.timm.relies import RELIES


def register() -> None:
    """Register the models with timm; idempotent.

    Raises:
        ImportError: timm is missing, or lacks a part that the models are built from.
    """
    try:
        from cape_plugins.timm import eva, naflexvit, vision_transformer  # noqa: F401 - they register
    except ImportError as error:
        raise RELIES.error(str(error)) from error


def list_models(filter: str | list[str] = "") -> list[str]:
    """The names of our models, as ``timm.list_models`` gives them with timm's.

    ``filter`` has timm's wildcards: ``"*tiny*"``.
    """
    import timm

    names = timm.list_models(filter)
    return [name for name in names if timm.model_entrypoint(name).__module__.startswith(__name__)]


register()
