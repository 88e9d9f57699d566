"""Five encodings of the literature, as a stranger writes them; the other three are cape-more's.

KERPLE, xPos, learned Fourier features, SHAPE, learned rotations. Each is compared with its paper's
equation in tests/test_five_variants.py, and runs in the hosts.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cape_plugins import (
    Added,
    AsGiven,
    Given,
    PositionalAttention,
    Sinusoids,
    Variant,
    distances,
    option,
    register_variant,
)


@dataclass(eq=False, repr=False)
class Kerple(PositionalAttention):
    """- a · log(1 + b · distance), a and b of each head learned (Chi et al. 2022)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.a = nn.Parameter(torch.rand(self.sizes.heads))
        self.b = nn.Parameter(torch.rand(self.sizes.heads))

    def prepare(self, queries, keys, mask, dtype):
        apart = distances(queries[:, :, None], keys[:, None]) / self.sizes.spacing
        return Given(mask=mask, pairs=apart)

    def bias(self, query: Tensor, key: Tensor, given: Given) -> Tensor:
        a, b = (one.clamp(min=0.01)[:, None, None] for one in (self.a, self.b))
        return -a * torch.log1p(b * given.pairs[:, None])


def turn(x: Tensor, angles: Tensor) -> Tensor:
    """Channel k of x (…, d) turns with channel k + d / 2, by angles (…, d / 2)."""
    cos, sin = (torch.cat([one, one], -1) for one in (angles.cos(), angles.sin()))
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


@dataclass(eq=False, repr=False)
class XPos(PositionalAttention):
    """Rotations, with queries that grow and keys that shrink with their position (Sun et al.)."""

    xpos_decay: float = option(512.0, "tokens after which the scale is that of the paper, to one")

    def prepare(self, queries, keys, mask, dtype):
        rows = self.rows(queries)
        return Given(rows, rows if keys is queries else self.rows(keys), mask)

    def rows(self, positions: Tensor) -> Tensor:
        """Angles and logarithms of the scale, (1 or B, N, head_dim)."""
        half = self.sizes.head_dim // 2
        at = positions.nan_to_num(0.0) / self.sizes.spacing  # (1 or B, N, 1)
        k = torch.arange(half, device=at.device, dtype=at.dtype)
        scale = torch.log((2 * k / self.sizes.head_dim + 0.4) / 1.4)
        return torch.cat([at * 10_000 ** (-k / half), at * scale / self.xpos_decay], -1)

    def embed_both(self, query: Tensor, key: Tensor, given: Given) -> tuple[Tensor, Tensor]:
        return self.scaled(query, given.queries, 1.0), self.scaled(key, given.keys, -1.0)

    def scaled(self, x: Tensor, rows: Tensor, sign: float) -> Tensor:
        angles, scale = rows[:, None].chunk(2, dim=-1)
        grown = x * torch.cat([scale, scale], -1).mul(sign).exp()
        return turn(grown, angles).to(x.dtype)


@dataclass(eq=False, repr=False)
class Fourier(Added):
    """A small network of learned Fourier features of the position (Li et al. 2021)."""

    fourier_features: int = option(16, "features, of which half are cosines")
    fourier_gamma: float = option(1.0, "the frequencies' standard deviation at first is 1 / this")
    fourier_wide: bool = option(True, "whether the network has a hidden layer of twice the width")

    def __post_init__(self) -> None:
        super().__post_init__()
        half, dim = self.fourier_features // 2, self.sizes.dim
        self.frequencies = nn.Parameter(torch.randn(self.sizes.axes, half) / self.fourier_gamma)
        hidden = 2 * dim if self.fourier_wide else dim
        self.network = nn.Sequential(nn.Linear(2 * half, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def embedding(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        known = positions.nan_to_num(0.0).to(self.frequencies.dtype)
        phases = known @ self.frequencies
        features = torch.cat([phases.cos(), phases.sin()], -1) / math.sqrt(self.fourier_features)
        found = self.network(features)
        return found.masked_fill(positions.isnan().any(dim=-1, keepdim=True), 0.0)


@dataclass(frozen=True)
class Shape(AsGiven):
    """In training a whole number of tokens is added to all positions (Kiyono et al. 2021)."""

    shape_tokens: int = option(100, "the most that is added, in tokens", training_only=True)

    def needs_whole_sequence(self, training: bool) -> str:
        return "draw the shift of queries and keys together" if training else ""

    def in_training(
        self, positions, batch_size, draw=None, *, max_local_shift=None, generator=None
    ):
        sizes, device = (batch_size, 1, positions.shape[2]), positions.device
        shift = torch.randint(self.shape_tokens + 1, sizes, generator=generator, device=device)
        return positions + shift * self.sizes.spacing


@dataclass(eq=False, repr=False)
class Rotations(PositionalAttention):
    """Rotations whose frequencies each head of each layer learns (RoPE-mixed, Heo et al. 2024)."""

    rotations_first: float = option(1.0, "radians per token of the highest frequency at first")

    def __post_init__(self) -> None:
        super().__post_init__()
        half = self.sizes.head_dim // 2
        along = self.rotations_first * 100 ** (-torch.arange(half) / half)
        shape = (self.sizes.axes, self.sizes.heads, 1, half)
        self.frequencies = nn.Parameter(torch.randn(shape) * 0.1 + along)

    def embed(self, x: Tensor, rows: Tensor | None) -> Tensor:
        known = (rows.nan_to_num(0.0) / self.sizes.spacing)[:, None, ..., None]
        angles = sum(known[..., axis, :] * one for axis, one in enumerate(self.frequencies.float()))
        return turn(x, angles)


register_variant("kerple", Variant(attends=Kerple))
register_variant("xpos", Variant(attends=XPos, axes=(1,)))
register_variant("fourier", Variant(adds=Fourier))
register_variant("shape", Variant(adds=Sinusoids, augments=Shape))
register_variant("rotations", Variant(attends=Rotations))
