"""PoSE: in training the positions of a sequence skip once, as if a longer text had been cut out.

Zhu et al., ICLR 2024, https://arxiv.org/abs/2309.10400, as their code draws (dwzhu-pku/PoSE,
src/train_pose.py): a sequence is two chunks, the first of 1 … half of its tokens, and the second
begins up to ``pose_range`` - length tokens later. So a model sees the distances of a long input at
the cost of short ones.

    >>> positions = token_positions([256])[..., None]               # (1, 256, 1)
    >>> augmentation = SkippedPositions(pose_range=1024.0)
    >>> moved = augmentation.in_training(positions, batch_size=8)   # (8, 256, 1), 0 … 1023
"""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from cape_plugins.augment import AsGiven, Draw, LocalShift, uniform
from cape_plugins.checks import check_positive, is_traced
from cape_plugins.options import POSITION, check_asked, option
from cape_plugins.places import Generator
from cape_plugins.random_positions import ranked


@dataclass(frozen=True)
class SkippedPositions(AsGiven):
    """Positions that skip once in training, by a number of tokens of each sample.

    Tokens that share a position are moved alike. Without padding, tokens at 0, 1, … stay below
    ``pose_range``. The unit of a skip is the mean distance between neighbours, 1 for tokens.

    Raises:
        ValueError: ``pose_range`` is no number > 0; in training, it is missing.
    """

    pose_range: float | None = option(
        None,
        "in training positions skip between two chunks of a sequence, and end before this",
        unit=POSITION,
        training_only=True,
        asked="the longest input that will be tested, such as 1024 tokens, 60 s",
    )

    def __post_init__(self) -> None:
        if self.pose_range is not None:
            check_positive("pose_range", self.pose_range)

    def in_training(
        self,
        positions: Tensor,
        batch_size: int,
        draw: Draw | None = None,
        *,
        max_local_shift: LocalShift | None = None,
        generator: Generator = None,
    ) -> Tensor:
        """(1 or B, N, axes) → (B, N, axes); arguments as :meth:`AsGiven.in_training`."""
        if self.pose_range is None:
            check_asked(self, training=True)
        assert self.pose_range is not None
        self._warn_of_length(positions.shape[1])
        rank, count = ranked(positions)
        low, high = _ends(positions)  # (1 or B, 1, axes)
        gap = (high - low) / (count - 1).clamp(min=1)
        shape = [batch_size, 1, positions.shape[2]]
        first, skip = uniform([2, *shape], positions.device, positions.dtype, generator)
        chunk = 1 + (first * ((count + 1) // 2)).floor()  # 1 … half of the tokens
        # a sequence of one token has no gap, and nothing to skip
        room = (self.pose_range / gap.where(gap > 0, torch.inf) - count).clamp(min=0.0).floor()
        skipped = (skip * (room + 1)).floor() * gap
        return positions + skipped * (rank >= chunk)

    def _warn_of_length(self, count: int) -> None:
        """Say that positions of so many tokens do not skip; padding counts, as nothing waits."""
        least = count * (1.0 if self.sizes is None else self.sizes.spacing)
        if not is_traced() and self.pose_range is not None and least > self.pose_range:
            warnings.warn(
                f"pose_range {self.pose_range:g} is below the length of this input, {least:g}: its "
                "positions do not skip. Give the longest input that will be tested",
                stacklevel=3,
            )

    def needs_whole_sequence(self, training: bool) -> str:
        """Chunks are of a sequence; evaluation leaves positions as they are."""
        return "train on whole sequences, without keys=" if training else ""


def _ends(positions: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest position, padding (NaN) left out: (B, 1, axes)."""
    padding = positions.isnan()
    low = positions.masked_fill(padding, torch.inf).amin(dim=1, keepdim=True)
    high = positions.masked_fill(padding, -torch.inf).amax(dim=1, keepdim=True)
    none = padding.all(dim=1, keepdim=True)  # a sequence of padding
    return low.masked_fill(none, 0.0), high.masked_fill(none, 0.0)
