"""What keeps padding out of ESPnet's encoders: lengths, convolutions along time, batch norm.

ESPnet 202611 keeps it out of most convolutions itself; 202511 does not, and counts frames after
subsampling from the padded end, so that an utterance's length depends on its batch.
"""

from typing import Any

import torch
from torch import Tensor, nn


class RealFrames:
    """A hook after subsampling: frames are real where all that its convolutions see is.

    Args:
        stride: frames from one output to the next.
        reach: an output sees the frames from stride · i to stride · i + reach.
    """

    def __init__(self, stride: int, reach: int) -> None:
        self.stride = stride
        self.reach = reach

    def __call__(
        self, embed: nn.Module, given: tuple[Any, ...], output: tuple[Any, Tensor]
    ) -> tuple[Any, Tensor]:
        """(content, mask) → (content, right mask), (B, 1, T')."""
        return output[0], given[1][:, :, self.reach :: self.stride]


class RealBatchNorm(nn.BatchNorm1d):
    """Batch norm of (B, channels, T) whose statistics in training are those of real frames."""

    real: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise; ``real`` is the bool (B, 1, T)."""
        if not self.training:
            return super().forward(x)
        assert self.real is not None
        padding, count = ~self.real, self.real.sum().clamp(min=1)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = wide.masked_fill(padding, 0.0).sum(dim=(0, 2)) / count
        wide = wide - mean[:, None]
        variance = wide.masked_fill(padding, 0.0).square().sum(dim=(0, 2)) / count
        with torch.no_grad():
            unbiased = variance * count / (count - 1).clamp(min=1)
            for running, now in ((self.running_mean, mean), (self.running_var, unbiased)):
                assert running is not None
                running.lerp_(now.to(running.dtype), self.momentum or 0.0)
            self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        scale = self.weight * (variance + self.eps).rsqrt()
        return (wide * scale[:, None] + self.bias[:, None]).to(x.dtype)


def show_padding(layer: nn.Module, given: tuple[Any, ...]) -> None:
    """A hook before a layer, which gets (content, mask): its convolutions and norms get the mask.

    As attributes of the modules, because replicas of a model (DataParallel) share their hooks.
    """
    for module in layer.modules():
        if isinstance(module, (nn.Conv1d, RealBatchNorm)):
            module.real = given[1]


def hide_padding(convolution: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    """A hook before a convolution along time: zeros in padding, as beyond the end."""
    real = convolution.real
    assert isinstance(real, Tensor)
    return (given[0].masked_fill(~real, 0.0),)
