"""Positions of patches: the options of our models, and grids with their prefix tokens.

>>> settings, timms = image_settings({"pos": "cape", "max_global_scale": 1.2, "depth": 6})
>>> where = grid_with_prefix(14, 14, settings.extent, prefix=1, like=x)     # (1, 1 + 196, 2)
"""

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from cape_plugins import fused
from cape_plugins.checks import check_positive
from cape_plugins.host import Host
from cape_plugins.options import POSITION, declared, option
from cape_plugins.places import patch_grid
from cape_plugins.variants import get, names


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """The options that images alone have.

    Raises:
        ValueError: a value is out of range.
    """

    extent: float = option(
        1.0, "the paper's γ (Table 6): axes run from - this to this; 1 in training", unit=POSITION
    )

    def __post_init__(self) -> None:
        check_positive("extent", self.extent)


#: options of timm's own models
_THEIRS = frozenset(
    [
        *inspect.signature(VisionTransformer).parameters,
        *inspect.signature(NaFlexVit).parameters,
        *(field.name for field in dataclasses.fields(NaFlexVitCfg)),
    ]
)

#: each axis of an image runs from -1 to 1 (section 4.1); Δ and λ are the paper's
HOST = Host(
    axes=2,
    unit="half images",
    defaults=dict(
        max_global_shift=0.5,
        max_local_shift=None,  # extent / N with N patches along an axis: they keep their order
        max_global_scale=1.4,
    ),
    sets=frozenset({"mean_normalize", "random_range", "spread", "alibi_unit"}),
    advice="start from its weights by --pretrained --pretrained-path",
)


def options_of(pos: str) -> str:
    """The options of a variant with their defaults, a line for each."""
    every = HOST.taken(pos) | (declared(ImageOptions) if get(pos, axes=2).has_positions else {})
    lines = [f"{name} ({HOST.default(one)}): {HOST.help(one)}" for name, one in every.items()]
    return "\n".join(lines) or "none"


@dataclass(frozen=True)
class ImageSettings:
    """What a user asks of positions, checked.

    Attributes:
        pos: the variant.
        options: for the core's module; None where the host decides.
        extent: the paper's γ; an evaluation may change it.
    """

    pos: str
    options: Mapping[str, Any]
    extent: float

    @property
    def local_shift_is_given(self) -> bool:
        """Whether ε is the user's; else it depends on the number of patches of each image."""
        return self.options.get("max_local_shift") is not None


def image_settings(given: Mapping[str, Any]) -> tuple[ImageSettings, dict[str, Any]]:
    """Split the arguments of a model into those about positions, and timm's.

    Raises:
        ValueError: unknown variant, or an argument that neither it nor timm's models have; or
            learned absolute embeddings are asked for, which are timm's own models.
    """
    timms = {name: value for name, value in given.items() if name in _THEIRS}
    ours = {name: value for name, value in given.items() if name not in _THEIRS}
    pos, extent = ours.pop("pos", "cape"), ours.pop("extent", 1.0)
    if "pos_embed" in timms or pos == "abspos":
        raise ValueError(
            "learnable absolute positions (abspos, pos_embed) are timm's own models: create "
            f"vit_tiny_patch16_224 and its like; here pos is one of {', '.join(names(axes=2))}"
        )
    options = HOST.options(pos, ours, _THEIRS)
    if extent != 1.0 and not get(pos, axes=2).has_positions:
        raise ValueError(f"extent = {extent!r} is of positions, and {pos} has none: leave it out")
    return ImageSettings(pos, options, float(ImageOptions(extent=extent).extent)), timms


def grid_with_prefix(height: int, width: int, extent: float, prefix: int, like: Tensor) -> Tensor:
    """Positions of a grid of patches after tokens without a position (class token, registers).

    Returns:
        (1, prefix + height · width, 2) float32 on the device of ``like``, NaN in the prefix. Nobody
        may write into it.
    """
    return fused.constant(_grid, height, width, extent, prefix, like=like)


def _grid(height: int, width: int, extent: float, prefix: int, device: torch.device) -> Tensor:
    return after_prefix(patch_grid(height, width, extent=extent, device=device)[None], prefix)


def after_prefix(positions: Tensor, prefix: int) -> Tensor:
    """Positions (B, N, 2) of patches → (B, prefix + N, 2), NaN in the prefix."""
    return F.pad(positions, (0, 0, prefix, 0), value=float("nan"))
