"""Random positions: in training sorted draws from a range stand in for the real positions.

Ruoss et al. 2023, https://arxiv.org/abs/2305.16843 (integers), and Random Float Sampling (Shimizu
et al. 2026, https://arxiv.org/abs/2602.14050): of longer inputs than in training no position is
new, as long as it lies in the range. The order of tokens is kept, their distances are not.
"""

import math

import torch
from torch import Tensor

from cape_plugins.augment import AsGiven, Augmentation, Draw


class Random(AsGiven):
    """Sorted random positions in training, the mean of such draws in evaluation.

    The mean spreads tokens evenly over the range, by its number of tokens alone. Where that is not
    known (step-by-step decoding), or where they are spread evenly already (images), evaluation
    takes positions as given. Both papers draw in evaluation too; here that is deterministic.

    Args:
        settings: of CAPE; not used.
        span: the ends of the range, in the unit of the positions.
        spread: whether evaluation spreads tokens over the range.
    """

    def __init__(
        self, settings: Augmentation, span: tuple[float, float] = (0.0, 1.0), spread: bool = True
    ) -> None:
        super().__init__(settings)
        self.low, self.high = float(span[0]), float(span[1])
        self.spread = spread

    def forward(
        self,
        positions: Tensor,
        batch: int,
        max_local_shift: Tensor | None = None,
        draw: Draw | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Replace the positions; see :class:`AsGiven`."""
        if self.training:
            positions = positions.expand(batch, positions.shape[1], positions.shape[2])
            return randomise(positions, self.low, self.high, generator)
        if self.spread:
            return spread_evenly(positions, self.low, self.high)
        return positions


def randomise(
    positions: Tensor, low: float, high: float, generator: torch.Generator | None = None
) -> Tensor:
    """As many draws from low … high as an axis has different positions, sorted as these are.

    Tokens that share a coordinate, such as a row of patches, share its draw: a grid stays a grid.

    Args:
        positions: (B, N, axes), float32 or float64; NaN stays.
        low, high: the range.
        generator: source of randomness.

    Returns:
        (B, N, axes) in the positions' dtype.
    """
    rank, count = _ranks(positions)
    shape, device, dtype = list(positions.shape), positions.device, positions.dtype
    if generator is None:  # the other overload takes no symbolic sizes under torch.compile
        draws = torch.rand(shape, device=device, dtype=dtype)
    else:
        draws = torch.rand(shape, device=device, dtype=dtype, generator=generator)
    unused = torch.arange(positions.shape[1], device=device)[:, None] >= count
    draws = draws.masked_fill(unused, 1.0).sort(dim=1).values.gather(1, rank)
    return (low + (high - low) * draws).masked_fill(positions.isnan(), math.nan)


def spread_evenly(positions: Tensor, low: float, high: float) -> Tensor:
    """The mean of :func:`randomise`: of n positions number i lands i / (n + 1) into the range."""
    rank, count = _ranks(positions)
    fraction = (rank + 1).to(positions.dtype) / (count + 1).to(positions.dtype)
    return (low + (high - low) * fraction).masked_fill(positions.isnan(), math.nan)


def _ranks(positions: Tensor) -> tuple[Tensor, Tensor]:
    """For each coordinate how many different ones are below it, (B, N, axes), and (B, 1, axes) how
    many there are; NaN counts as the largest."""
    ordered, order = positions.sort(dim=1)  # NaN comes last
    higher = ordered[:, 1:] > ordered[:, :-1]
    first = torch.zeros_like(order[:, :1])
    rank = torch.cat([first, higher.long().cumsum(dim=1)], dim=1)
    return torch.zeros_like(rank).scatter(1, order, rank), rank[:, -1:] + 1
