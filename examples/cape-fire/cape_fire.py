"""FIRE, a learned function of distances, for timm, fairseq and ESPnet: a package of one file.

Li et al. 2024, https://arxiv.org/abs/2310.04418. In each layer scores get

    b(i, j) = f(ψ(i - j) / ψ(max(L, i))),   ψ(x) = log(c x + 1)

where f is a network with one hidden layer and an output for each head; c and L are learned. The
paper is about decoders that count tokens. Here positions are real numbers, and queries may see
what is on either side, so this file has to choose what i - j and i are:

- i - j is the distance of :func:`cape_plugins.distances`: seconds, gaps between tokens, Euclidean
  between patches. It is divided by ``fire_unit``, the distance between neighbouring tokens, so that
  c and L begin where the authors have them in every host.
- i is how far the query sees: its distance to the farthest key that it sees. For a decoder that is
  the paper's i. The ratio stays in [0, 1] in encoders and images too, which is what f was trained
  on; and a shift of all positions changes nothing, as CAPE wants it.
- A token without a position (NaN: a class token, padding) is at distance 0 of all others.

Sizes of f, its initial c and L, and L as a multiple of its initial value are those of the paper's
listing (appendix).

>>> fire = Fire(Sizes(dim=64, heads=4))
>>> where = token_positions([10])[..., None]
>>> given = fire.prepare(where, where, None, query.dtype)
>>> out, _ = fire(query, key, value, given)                 # (B, heads, queries, head_dim)
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cape_plugins import (
    POSITION,
    DistanceAugmentation,
    Given,
    PositionalAttention,
    Variant,
    as_bool,
    distances,
    option,
    register_variant,
)
from cape_plugins.attention import with_heads
from cape_plugins.checks import check_count, check_positive

EPSILON = 1e-6  # of the paper's listing, against a division by 0


@dataclass(eq=False, repr=False)
class Fire(PositionalAttention):
    """Adds f(ψ(distance) / ψ(max(L, how far the query sees))) to the scores.

    Training keeps the hidden channels of all pairs, (B, N, N, fire_width), in every layer.

    Raises:
        ValueError: an option is out of range.
    """

    fire_width: int = option(32, "hidden channels of the function")
    fire_threshold: float = option(512.0, "the threshold L at first, in fire_unit")
    fire_unit: float | None = option(
        None,
        "the distance that counts as 1; by default that between neighbouring tokens",
        unit=POSITION,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fire_unit is None:
            self.fire_unit = self.sizes.spacing
        check_count("fire_width", self.fire_width)
        check_positive("fire_threshold", self.fire_threshold)
        check_positive("fire_unit", self.fire_unit)
        width, heads = self.fire_width, self.sizes.heads
        self.function = nn.Sequential(nn.Linear(1, width), nn.ReLU(), nn.Linear(width, heads))
        self.c, self.multiplier = nn.Parameter(torch.full([1], 0.1)), nn.Parameter(torch.ones(1))

    def prepare(
        self, queries: Tensor, keys: Tensor, mask: Tensor | None, dtype: torch.dtype
    ) -> Given:
        """Of pairs the distance in ``fire_unit``, of queries how far each sees."""
        assert self.fire_unit is not None
        apart = distances(queries[:, :, None], keys[:, None]) / self.fire_unit
        seen = apart
        if mask is not None:
            visible = as_bool(mask)
            visible = visible.any(dim=1) if visible.ndim == 4 else visible  # by one of the heads
            seen = torch.where(visible, apart, 0.0)
        reach = seen.amax(dim=2, keepdim=True)  # (1 or B, queries, 1)
        return Given(reach, mask=with_heads(mask), pairs=apart)

    def bias(self, query: Tensor, key: Tensor, given: Given) -> Tensor:
        """What is added to the scores, (1 or B, heads, queries, keys)."""
        apart, reach = given.pairs, given.queries
        assert apart is not None, "FIRE needs positions"
        assert reach is not None
        threshold = self.fire_threshold * self.multiplier.abs()
        ratio = self.psi(apart) / (self.psi(torch.maximum(threshold, reach)) + EPSILON)
        found = self.function(ratio[..., None].to(self.c.dtype))
        # PyTorch's fast attention wants the scores of a query side by side
        return found.permute(0, 3, 1, 2).contiguous()

    def psi(self, distance: Tensor) -> Tensor:
        """ψ(x) = log(c x + 1); it tells near distances apart better than far ones."""
        return torch.log1p(self.c.abs() * distance)


register_variant("fire", Variant(attends=Fire))
register_variant("cape_fire", Variant(augments=DistanceAugmentation, attends=Fire))
