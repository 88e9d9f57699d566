"""What keeps padding out of the layers of ESPnet's encoders: convolutions along time, batch norm.

ESPnet 202611 keeps it out of most convolutions itself, 202511 of none.
"""

from typing import Any

import torch
from torch import Tensor, nn

from cape_plugins.espnet.layers import LayerScope, replace

_real = LayerScope()  # bool (B, 1, T), True for real frames


def hide_padding(layer: nn.Module) -> None:
    """Let the convolutions and batch norms of one of ESPnet's layers see no padding.

    The layer is called with (content, mask). Batch norms become :class:`RealBatchNorm`.
    """
    replace(layer, nn.BatchNorm1d, lambda theirs: RealBatchNorm(theirs.num_features))
    layer.register_forward_pre_hook(_enter)
    layer.register_forward_hook(_leave, always_call=True)
    for module in layer.modules():
        if isinstance(module, nn.Conv1d) and module.kernel_size != (1,):
            module.register_forward_pre_hook(_zero_padding)


def _enter(layer: nn.Module, given: tuple[Any, ...]) -> None:
    _real.value = given[1]


def _leave(layer: nn.Module, given: tuple[Any, ...], output: Any) -> None:
    _real.value = None


def _zero_padding(convolution: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    """Zeros in padding, as beyond the end."""
    return (given[0].masked_fill(~_real.value, 0.0),)


class RealBatchNorm(nn.BatchNorm1d):
    """Batch norm of (B, channels, T) whose statistics in training are those of real frames."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, within a layer of :func:`hide_padding`."""
        if not self.training:
            return super().forward(x)
        padding, count = ~_real.value, _real.value.sum().clamp(min=1)
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
