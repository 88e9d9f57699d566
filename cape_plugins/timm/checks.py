"""Small models of timm for :mod:`cape_plugins.inside`."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from cape_plugins.inside import Kind, Places
from cape_plugins.places import patch_grid
from cape_plugins.timm.options import HOST

_SIZES: dict[str, Any] = dict(depth=2, embed_dim=24, num_heads=3, num_classes=5)


class _Model(Kind):
    host, model, patch = HOST, "", 1

    def build(self, pos: str, seed: int, **options: Any) -> nn.Module:
        torch.manual_seed(seed)
        return timm.create_model(self.model, pos=pos, **_SIZES, **options)

    def places(self, model: Any, samples: Sequence[Tensor]) -> Places:
        prefix = model.num_prefix_tokens
        grids = [patch_grid(*self.grid(one)) for one in samples]
        count = max(map(len, grids))
        ends = [(0, 0, prefix, count - len(grid)) for grid in grids]
        where = [F.pad(grid, end, value=torch.nan) for grid, end in zip(grids, ends, strict=True)]
        last = torch.tensor([prefix + len(grid) for grid in grids])
        real = torch.arange(prefix + count) < last[:, None]
        return Places(torch.stack(where), real[:, None], real)

    def grid(self, sample: Tensor) -> tuple[int, int]:
        return sample.shape[0] // self.patch, sample.shape[1] // self.patch


class _ViT(_Model):
    name, model, patch = "timm's ViT", "vit_tiny_patch4_cape_32", 4

    def stack(self, model: Any) -> Any:
        return SimpleNamespace(layers=model.blocks, positions=model.position)

    def samples(self) -> list[Tensor]:
        return [*torch.randn(2, 12, 8, 3, generator=torch.Generator().manual_seed(0))]

    def run(self, model: Any, samples: Sequence[Tensor]) -> list[Tensor]:
        return [*model.forward_features(torch.stack([*samples]).permute(0, 3, 1, 2))]


class _NaFlex(_Model):
    name, model = "timm's NaFlexVit", "naflexvit_tiny_patch16_cape_gap"

    def stack(self, model: Any) -> Any:
        return SimpleNamespace(layers=model.blocks, positions=model.embeds.position)

    def samples(self) -> list[Tensor]:
        drawn = torch.Generator().manual_seed(0)
        return [torch.randn(*grid, 768, generator=drawn) for grid in ((3, 2), (2, 2))]

    def run(self, model: Any, samples: Sequence[Tensor]) -> list[Tensor]:
        where = [torch.cartesian_prod(*map(torch.arange, self.grid(one))) for one in samples]
        rows = pad_sequence([one.flatten(0, 1) for one in samples], True, 9.0)
        counts = torch.tensor([*map(len, where)])
        valid = torch.arange(rows.shape[1]) < counts[:, None]
        out = model.forward_features(rows, pad_sequence(where, True), valid)["patches"]
        return [row[: model.num_prefix_tokens + n] for row, n in zip(out, counts, strict=True)]


KINDS = (_ViT(), _NaFlex())
