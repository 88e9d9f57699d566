"""What keeps padding out of the layers of ESPnet's encoders: convolutions along time, batch norm.

ESPnet 202611 keeps it out of most convolutions itself, 202511 of none.
"""

import functools

import torch
from torch import Tensor, nn

from cape_plugins.espnet.layers import open_scopes, replace, scope, take_over


def hide_padding(layers: nn.Module) -> None:
    """Let the convolutions and batch norms of ESPnet's layers see no padding."""
    open_scopes(layers)
    replace(layers, nn.BatchNorm1d, functools.partial(take_over, RealBatchNorm))
    replace(layers, nn.Conv1d, functools.partial(take_over, RealConvolution))


class RealConvolution(nn.Conv1d):
    """Convolution of (B, channels, T) to which padding is what lies beyond the end: zeros."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve, within one of ESPnet's layers."""
        alone = self.kernel_size == (1,)  # sees no other frames
        return super().forward(x if alone else x.masked_fill(~scope.real, 0.0))


class RealBatchNorm(nn.BatchNorm1d):
    """Batch norm of (B, channels, T) whose statistics in training are those of real frames."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, within one of ESPnet's layers."""
        if not self.training:
            return super().forward(x)
        padding, count = ~scope.real, scope.real.sum().clamp(min=1)  # (B, 1, T), scalar
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = wide.masked_fill(padding, 0.0).sum(dim=(0, 2)) / count  # (channels,)
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
