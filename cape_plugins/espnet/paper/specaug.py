"""The SpecAugment ``cape_specaug``: masks as the paper has them.

Park et al., https://arxiv.org/abs/1904.08779; the settings are those of CAPE, section 4.2.
ESPnet's own cannot limit a time mask both in frames and as a share of the utterance, and takes the
padded length for the utterance's.
"""

import torch
from espnet2.asr.specaug.abs_specaug import AbsSpecAug
from torch import Tensor

from cape_plugins.checks import check_count, is_number


class CapeSpecAug(AbsSpecAug):
    """Masks of random channels and random frames, drawn for each utterance on its own.

    Put it into a recipe as ``specaug: cape_specaug``; the arguments are ``specaug_conf``, the
    defaults the paper's. A mask's width is uniform in 0 … the largest, both included, and so is
    where it starts, as far as it fits into the utterance. Masked features become 0: the mean,
    where features are normalised before (as ``model: cape_asr`` does). There is no time warp.

    Args:
        num_freq_mask, num_time_mask: masks along the channels, and along the time.
        max_freq_mask_width, max_time_mask_width: channels, and frames.
        max_time_mask_ratio: a time mask covers at most this share of its utterance.

    Raises:
        ValueError: a number is negative or not whole, or the ratio is outside [0, 1].
    """

    def __init__(
        self,
        num_freq_mask: int = 2,
        max_freq_mask_width: int = 30,
        num_time_mask: int = 10,
        max_time_mask_width: int = 50,
        max_time_mask_ratio: float = 0.1,
    ) -> None:
        super().__init__()
        self.num_freq_mask, self.max_freq_mask_width = num_freq_mask, max_freq_mask_width
        self.num_time_mask, self.max_time_mask_width = num_time_mask, max_time_mask_width
        counts = ["num_freq_mask", "max_freq_mask_width", "num_time_mask", "max_time_mask_width"]
        for name in counts:
            check_count(name, getattr(self, name), least=0)
        self.max_time_mask_ratio = ratio = max_time_mask_ratio
        if not (is_number(ratio) and 0 <= ratio <= 1):
            raise ValueError(f"max_time_mask_ratio must be a number in [0, 1], got {ratio!r}")

    def check_channels(self, channels: int) -> None:
        """Raise ValueError unless masks along so many channels fit; ``cape_asr`` asks at once."""
        if self.num_freq_mask and self.max_freq_mask_width > channels:
            raise ValueError(
                f"specaug_conf max_freq_mask_width={self.max_freq_mask_width} exceeds the "
                f"{channels} feature channels: lower it"
            )

    def forward(self, x: Tensor, x_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, T, channels) of (B,) frames → masked copies, and ``x_lengths``.

        Raises:
            ValueError: there are fewer channels than a mask may have.
        """
        _, frames, channels = x.shape
        self.check_channels(channels)
        lengths = x_lengths.to(x.device)
        # a little more, because 0.1 · 30 frames must be 3 of them
        longest = (lengths * self.max_time_mask_ratio + 1e-3).long()
        longest = longest.clamp(max=self.max_time_mask_width)
        time_mask = _masks(frames, lengths, longest, self.num_time_mask)  # (B, T)
        all_channels = torch.full_like(lengths, channels)
        widest = torch.full_like(lengths, self.max_freq_mask_width)
        freq_mask = _masks(channels, all_channels, widest, self.num_freq_mask)  # (B, channels)
        return x.masked_fill(time_mask[:, :, None] | freq_mask[:, None, :], 0.0), x_lengths


def _masks(size: int, lengths: Tensor, widest: Tensor, count: int) -> Tensor:
    """(B, size), True under one of ``count`` masks of width ≤ widest (B,) within lengths (B,)."""
    width = _uniform(widest[:, None].expand(-1, count))  # (B, count)
    start = _uniform(lengths[:, None] - width)[..., None]  # (B, count, 1)
    index = torch.arange(size, device=lengths.device)
    return ((index >= start) & (index < start + width[..., None])).any(dim=1)


def _uniform(most: Tensor) -> Tensor:
    """Integers, uniform in 0 … most, both included."""
    drawn = (torch.rand(most.shape, device=most.device) * (most + 1)).long()
    return drawn.minimum(most)  # a product may be rounded up
