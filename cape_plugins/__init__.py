"""cape-plugins: CAPE (Likhomanenko et al., NeurIPS 2021) inside timm, fairseq and ESPnet.

Importing this package imports nothing but the standard library: PyTorch's autoload imports it
while ``torch`` itself is still being imported. The public names below import torch on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cape_plugins.augment import Augmentation as Augmentation
    from cape_plugins.augment import Draw as Draw
    from cape_plugins.embedding import PositionalEmbedding1d as PositionalEmbedding1d
    from cape_plugins.embedding import PositionalEmbedding2d as PositionalEmbedding2d
    from cape_plugins.positions import frame_times as frame_times
    from cape_plugins.positions import patch_grid as patch_grid
    from cape_plugins.positions import token_positions as token_positions
    from cape_plugins.sinusoid import sinusoid_1d as sinusoid_1d
    from cape_plugins.sinusoid import sinusoid_2d as sinusoid_2d

_HOME = {
    "Augmentation": "augment",
    "Draw": "augment",
    "PositionalEmbedding1d": "embedding",
    "PositionalEmbedding2d": "embedding",
    "frame_times": "positions",
    "patch_grid": "positions",
    "token_positions": "positions",
    "sinusoid_1d": "sinusoid",
    "sinusoid_2d": "sinusoid",
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
