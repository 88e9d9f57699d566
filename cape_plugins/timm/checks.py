"""Small models of timm for :mod:`cape_plugins.inside`."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cape_plugins.inside import Kind, Places
from cape_plugins.places import patch_grid
from cape_plugins.timm.options import HOST

_SIZES: dict[str, Any] = dict(depth=2, embed_dim=24, num_heads=3, num_classes=5)


class _Model(Kind):
    axes, sets, model = 2, HOST.sets, ""

    def build(self, pos: str, seed: int, **options: Any) -> nn.Module:
        """Of three heads and two layers."""
        torch.manual_seed(seed)
        return timm.create_model(self.model, pos=pos, **_SIZES, **options)

    def places(self, model: Any, samples: Sequence[Tensor]) -> Places:
        """A grid of each image, after what has no position."""
        prefix = model.num_prefix_tokens
        grids = [patch_grid(*self.grid(one)) for one in samples]
        count = max(map(len, grids))
        ends = [(0, 0, prefix, count - len(grid)) for grid in grids]
        where = [F.pad(grid, end, value=torch.nan) for grid, end in zip(grids, ends, strict=True)]
        last = torch.tensor([prefix + len(grid) for grid in grids])
        real = torch.arange(prefix + count) < last[:, None]
        return Places(torch.stack(where), real[:, None], real)

    def grid(self, sample: Tensor) -> tuple[int, int]:
        """Patches along both axes."""
        return sample.shape[0], sample.shape[1]


class _ViT(_Model):
    name, model = "timm's ViT", "vit_tiny_patch4_cape_32"

    def stack(self, model: Any) -> Any:
        """The blocks."""
        return SimpleNamespace(layers=model.blocks, positions=model.position)

    def samples(self) -> list[Tensor]:
        """Two images of one size, (height, width, channels)."""
        return [*torch.randn(2, 12, 8, 3, generator=torch.Generator().manual_seed(0))]

    def grid(self, sample: Tensor) -> tuple[int, int]:
        """Patches along both axes."""
        return sample.shape[0] // 4, sample.shape[1] // 4

    def run(self, model: Any, samples: Sequence[Tensor]) -> list[Tensor]:
        """Tokens after the blocks."""
        return [*model.forward_features(torch.stack([*samples]).permute(0, 3, 1, 2))]


class _NaFlex(_Model):
    name, model = "timm's NaFlexVit", "naflexvit_tiny_patch16_cape_gap"

    def stack(self, model: Any) -> Any:
        """The blocks, and what embeds patches."""
        return SimpleNamespace(layers=model.blocks, positions=model.embeds.position)

    def samples(self) -> list[Tensor]:
        """Patches of two images, (height, width, channels)."""
        drawn = torch.Generator().manual_seed(0)
        return [torch.randn(*grid, 768, generator=drawn) for grid in ((3, 2), (2, 2))]

    def run(self, model: Any, samples: Sequence[Tensor]) -> list[Tensor]:
        """Tokens after the blocks."""
        where = [torch.cartesian_prod(*map(torch.arange, self.grid(one))) for one in samples]
        rows, coords, valid = (
            nn.utils.rnn.pad_sequence(list(of), batch_first=True)
            for of in (
                [one.flatten(0, 1) for one in samples],
                where,
                [torch.ones(len(each), dtype=torch.bool) for each in where],
            )
        )
        rows = rows.masked_fill(~valid[..., None], 9.0)
        out = model.forward_features(rows, coords, valid)["patches"]
        ends = [model.num_prefix_tokens + len(each) for each in where]
        return [row[:end] for row, end in zip(out, ends, strict=True)]


KINDS = (_ViT(), _NaFlex())
