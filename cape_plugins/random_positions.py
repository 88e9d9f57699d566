"""Random positions: in training, sorted draws from a range replace the real positions.

Ruoss et al. 2023, https://arxiv.org/abs/2305.16843 (integers), and Random Float Sampling (Shimizu
et al. 2026, https://arxiv.org/abs/2602.14050). A longer input than in
training then has no new positions, because all come from that range. Tokens keep their order, but
not their distances.

    >>> positions = token_positions([5, 3])[..., None]      # (2, 5, 1)
    >>> augmentation = RandomPositions(random_range=256.0)
    >>> drawn = augmentation.in_training(positions, batch_size=2)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from cape_plugins.augment import AsGiven, Draw, LocalShift, uniform
from cape_plugins.checks import check_switch, is_number
from cape_plugins.options import POSITION, check_asked, option
from cape_plugins.places import Generator


@dataclass(frozen=True)
class RandomPositions(AsGiven):
    """Sorted random positions in training, the mean of such draws in evaluation.

    The mean of the draws spreads the tokens evenly over the range. Both papers draw in evaluation
    too; here evaluation is deterministic.

    Raises:
        ValueError: ``random_range`` is neither a number > 0 nor a pair of numbers with low < high.
    """

    random_range: float | tuple[float, float] | None = option(
        None,
        "in training positions are drawn from 0 to this, or from a pair's",
        unit=POSITION,
        asked="at least the longest input that will be tested: 256 tokens, 60 s, (-1, 1) of half "
        "an image",
    )
    spread: bool = option(
        True,
        "whether evaluation spreads tokens over the range; off where their number is unknown "
        "(step-by-step decoding) or they are spread evenly already (images)",
    )
    alone = MappingProxyType({"spread": False})

    def __post_init__(self) -> None:
        check_asked(self)
        check_switch("spread", self.spread)
        low, high = self.range
        if not (is_number(low) and is_number(high) and low < high):
            raise ValueError(
                "random_range must be a number > 0 or (low, high) with low < high, got "
                f"{self.random_range!r}"
            )
        object.__setattr__(self, "random_range", (low, high))  # one form, for checkpoints

    @property
    def range(self) -> tuple[float, float]:
        """(low, high), in the unit of the positions."""
        given: Any = self.random_range
        is_pair = isinstance(given, Sequence) and len(given) == 2
        return (given[0], given[1]) if is_pair else (0.0, given)

    def in_training(
        self,
        positions: Tensor,
        batch_size: int,
        draw: Draw | None = None,
        *,
        max_local_shift: LocalShift | None = None,
        generator: Generator = None,
    ) -> Tensor:
        """Sorted draws; arguments as :meth:`AsGiven.in_training`, Δ, ε and λ are ignored."""
        return randomise(positions.expand(batch_size, -1, -1), *self.range, generator)

    def needs_whole_sequence(self, training: bool) -> str:
        """Draws are sorted, and a spread needs the number of tokens."""
        if training:
            return "train on whole sequences, without keys="
        return "set spread=False" if self.spread else ""

    def in_evaluation(self, positions: Tensor) -> Tensor:
        """(1 or B, N, axes) → (1 or B, N, axes), spread evenly where ``spread`` is on."""
        return spread_evenly(positions, *self.range) if self.spread else positions


def randomise(positions: Tensor, low: float, high: float, generator: Generator = None) -> Tensor:
    """Replace the distinct positions of each axis by draws from low … high, in the same order.

    Tokens that share a coordinate, such as a row of patches, share its draw: a grid stays a grid.
    Positions (B, N, axes) are float32 or float64, as is the result; NaN stays NaN.
    """
    (rank, count), device = ranked(positions), positions.device
    draws = uniform([*positions.shape], device, positions.dtype, generator)  # (B, N, axes)
    unused = torch.arange(positions.shape[1], device=device)[:, None] >= count
    draws = draws.masked_fill(unused, 1.0).sort(dim=1).values.gather(1, rank)
    return (low + (high - low) * draws).masked_fill(positions.isnan(), math.nan)


def spread_evenly(positions: Tensor, low: float, high: float) -> Tensor:
    """The mean of :func:`randomise`: of n positions, number i lands i / (n + 1) into the range."""
    rank, count = ranked(positions)
    fraction = (rank + 1).to(positions.dtype) / (count + 1).to(positions.dtype)  # (B, N, axes)
    return (low + (high - low) * fraction).masked_fill(positions.isnan(), math.nan)


def ranked(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Ranks of the coordinates, (B, N, axes), and the number of distinct ones, (B, 1, axes).

    A rank is the number of distinct smaller coordinates on its axis. NaN has the highest rank, and
    is not counted as distinct.
    """
    ordered, order = positions.sort(dim=1)  # NaN comes last
    # the first is compared with the last, so it is not higher; slices would freeze export's sizes
    rank = (ordered > ordered.roll(1, dims=1)).long().cumsum(dim=1)
    return torch.zeros_like(rank).scatter(1, order, rank), rank[:, -1:] + 1
