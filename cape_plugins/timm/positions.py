"""Positions of patches: the options of our models, and the module that adds positions.

>>> position = PatchPositions(384, ImageSettings(pos="cape", max_global_scale=1.2))
>>> patches, _ = position(patches, patch_grid(14, 14)[None], (1 / 14, 1 / 14))  # (B, 196, 384)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from timm.layers import register_notrace_module, trunc_normal_
from torch import Tensor, nn

from cape_plugins.attention import AttentionSettings
from cape_plugins.checks import check_positive, is_number
from cape_plugins.settings import PositionSettings, split_options
from cape_plugins.variants import VARIANTS, names, prepare


@dataclass(frozen=True, kw_only=True)
class ImageSettings(PositionSettings):
    """The options about positions; each axis of an image runs from -1 to 1 (section 4.1).

    Attributes:
        max_global_shift: bound of Δ on each axis; 0.5 as in the paper.
        max_global_scale: bound of λ; 1.4 as in the paper.
        max_local_shift: bound of ε, one number or (height, width). None, as in the paper, is
            extent / N per axis with N patches along it, so that neighbours keep their order.
        extent: the paper's γ (Table 6): axes run from -extent to extent; 1 in training.
        frequency_scale: multiplies all frequencies; 1 in the paper, 0.1 in models ``…_low_…``.

    Raises:
        ValueError: a value is out of range, or the variant does not take the option.
    """

    axes: ClassVar[int] = 2
    mean_normalize: ClassVar[bool] = False  # a grid is centred already

    max_global_shift: float = 0.5
    max_local_shift: float | tuple[float, float] | None = None
    max_global_scale: float = 1.4
    extent: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("extent", self.extent)
        shift: Any = self.max_local_shift
        if shift is not None:
            pair = (shift, shift) if is_number(shift) else tuple(shift)  # a list in JSON
            if len(pair) != 2:
                raise ValueError(f"max_local_shift must be a number or (height, width), got {pair}")
            object.__setattr__(self, "max_local_shift", (float(pair[0]), float(pair[1])))
        self.refuse_options()

    @classmethod
    def split(cls, options: Mapping[str, Any]) -> tuple["ImageSettings", dict[str, Any]]:
        """Split a model's options into our settings and timm's options.

        Raises:
            ValueError: as the class; or learned absolute embeddings are asked for, which are timm's
                own models.
        """
        ours, timms = split_options(cls, options)
        asked = VARIANTS.get(ours.get("pos", "cape"))
        if "pos_embed" in timms or (asked is not None and asked.adds == "table"):
            raise ValueError(
                "learnable absolute positions (abspos, pos_embed) are timm's own models: create "
                f"vit_tiny_patch16_224 and its like; here pos is one of {', '.join(names(2))}"
            )
        return cls(**ours), timms


@register_notrace_module  # torch.fx cannot trace tensors whose sizes depend on the input
class PatchPositions(nn.Module):
    """Augments the positions of patches once, adds them, and prepares them for self-attention.

    Args:
        dim: channels.
        settings: variant and augmentation.
        attention_settings: settings of self-attention; None if the variant leaves it alone.
        prefix: number of tokens before the patches (class token, registers) without a position.
    """

    def __init__(
        self,
        dim: int,
        settings: ImageSettings,
        attention_settings: AttentionSettings | None = None,
        prefix: int = 0,
    ) -> None:
        super().__init__()
        self.settings, self.prefix = settings, prefix
        self.attention_settings = attention_settings
        self.extent = float(settings.extent)  # an evaluation may change it (Table 6)
        # a grid is spread evenly over the range of random positions already
        span = (-self.extent, self.extent)
        self.embedding = settings.embedding(dim, random_range=span, spread=False)

    def forward(
        self,
        patches: Tensor,
        positions: Tensor,
        local_shift: Tensor | tuple[float, float],
        padded: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Add positions (B or 1, N, 2), from -extent to extent, NaN at padding, to (B, N, dim).

        ``local_shift`` is the default bound of ε: one per axis, or one per image and axis as a
        tensor (B or 1, 1, 2). ``padded`` says that there is padding: self-attention hides it where
        the variant can.

        Returns:
            The patches with positions, and the positions for the blocks, (B or 1, prefix + N, …),
            or None if the variant leaves self-attention alone.
        """
        if self.embedding.adds_nothing and self.attention_settings is None:
            return patches, None
        default = local_shift if self.settings.max_local_shift is None else None
        batch = patches.shape[0]  # len() would be a constant under torch.export
        moved = self.embedding.augment(positions, batch, max_local_shift=default)  # (1|B, N, 2)
        prepared = None
        if self.attention_settings is not None:
            tokens = F.pad(moved, (0, 0, self.prefix, 0), value=float("nan"))  # prefix + N

            def padding() -> Tensor:  # (B, 1, prefix + N)
                return F.pad(positions[..., 0].isnan(), (self.prefix, 0), value=False)[:, None]

            prepared = prepare(
                self.settings.pos,
                tokens,
                self.attention_settings,
                hidden=padding if padded else None,
                dtype=patches.dtype,
            )
        return self.embedding.add(patches, moved), prepared

    def class_position(self, cls_token: Tensor | None) -> nn.Parameter | None:
        """The class token's learnable position; none where patches get nothing at the input."""
        if cls_token is None or self.embedding.adds_nothing:
            return None
        position = nn.Parameter(torch.empty_like(cls_token))
        trunc_normal_(position, std=0.02)
        return position
