"""cape-plugins: CAPE (Likhomanenko et al., NeurIPS 2021) in the tools people train with.

Importing this package imports nothing but the standard library: PyTorch's autoload imports it
while ``torch`` itself is still being imported. The public names below import torch on first use.

    >>> from cape_plugins import Positions, token_positions
    >>> positions = Positions("cape", dim=512, max_global_shift=5.0, max_local_shift=0.5)
    >>> x, given = positions(content, token_positions(lengths, content.shape[1]))   # (B, N, 512)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cape_plugins.added import Added, Table  # noqa: F401
    from cape_plugins.alibi import Alibi, distances  # noqa: F401
    from cape_plugins.attention import Given, PositionalAttention, as_bool  # noqa: F401
    from cape_plugins.augment import (  # noqa: F401
        AsGiven,
        Augmentation,
        DistanceAugmentation,
        Draw,
        uniform,
    )
    from cape_plugins.host import TOKEN_DECODER, Host  # noqa: F401
    from cape_plugins.options import POSITION, option  # noqa: F401
    from cape_plugins.part import Part, Sizes  # noqa: F401
    from cape_plugins.places import frame_times, patch_grid, token_positions  # noqa: F401
    from cape_plugins.positions import Positions  # noqa: F401
    from cape_plugins.random_positions import RandomPositions  # noqa: F401
    from cape_plugins.relpos import RelativePositions  # noqa: F401
    from cape_plugins.rotary import Rotary  # noqa: F401
    from cape_plugins.sinusoid import Sinusoids, sinusoid_1d, sinusoid_2d  # noqa: F401
    from cape_plugins.variants import Variant, register_variant  # noqa: F401

_HOME = {
    # positions, and what a model of one's own does with them
    "Positions": "positions",
    "Draw": "augment",
    "uniform": "augment",
    "Given": "attention",
    "frame_times": "places",
    "patch_grid": "places",
    "token_positions": "places",
    "sinusoid_1d": "sinusoid",
    "sinusoid_2d": "sinusoid",
    # a variant of one's own
    "Variant": "variants",
    "register_variant": "variants",
    "option": "options",
    "POSITION": "options",
    "Sizes": "part",
    "Part": "part",
    "Added": "added",
    "Sinusoids": "sinusoid",
    "Table": "added",
    "AsGiven": "augment",
    "Augmentation": "augment",
    "DistanceAugmentation": "augment",
    "RandomPositions": "random_positions",
    "PositionalAttention": "attention",
    "Rotary": "rotary",
    "Alibi": "alibi",
    "RelativePositions": "relpos",
    "as_bool": "attention",
    "distances": "alibi",
    # a host of one's own
    "Host": "host",
    "TOKEN_DECODER": "host",
}

__all__ = ["__version__", *_HOME]  # noqa: PLE0604 - the names are strings
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
