"""cape-plugins: CAPE (Likhomanenko et al., NeurIPS 2021) inside timm, fairseq and ESPnet.

Importing this package imports nothing but the standard library: PyTorch's autoload imports it
while ``torch`` itself is still being imported. The public names below import torch on first use.

    >>> from cape_plugins import PositionalEmbedding, token_positions
    >>> position = PositionalEmbedding(512, "cape", max_global_shift=5.0, max_local_shift=0.5)
    >>> x = position(content, token_positions(lengths, content.shape[1]))    # (B, N, 512)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cape_plugins.augment import Augmentation, Draw  # noqa: F401
    from cape_plugins.embedding import PositionalEmbedding  # noqa: F401
    from cape_plugins.positions import frame_times, patch_grid, token_positions  # noqa: F401
    from cape_plugins.sinusoid import sinusoid_1d, sinusoid_2d  # noqa: F401

_HOME = {
    "Augmentation": "augment",
    "Draw": "augment",
    "PositionalEmbedding": "embedding",
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
