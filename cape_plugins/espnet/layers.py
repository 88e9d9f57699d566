"""ESPnet's layers: what their parts know while they run, and how layers are dropped.

Parts of ESPnet's models are replaced by subclasses of theirs, with all that they have: weights,
their names, hooks.
"""

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from espnet2.asr.decoder.transformer_decoder import DecoderLayer
from espnet2.asr.encoder.branchformer_encoder import BranchformerEncoderLayer
from espnet2.asr.encoder.conformer_encoder import EncoderLayer
from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoderLayer
from torch import Tensor, nn

from cape_plugins.espnet.options import check_rate

Module = TypeVar("Module", bound=nn.Module)


def replace(root: nn.Module, kind: type, make: Callable[[Any], nn.Module]) -> None:
    """Replace each module of a kind below ``root`` by ``make(module)``."""
    for parent in list(root.modules()):
        for name, child in parent.named_children():
            if isinstance(child, kind):
                setattr(parent, name, make(child))


def take_over(kind: type[Module], theirs: nn.Module) -> Module:
    """A module of ``kind``, a subclass of theirs, with everything that theirs has."""
    ours = kind.__new__(kind)
    vars(ours).update(vars(theirs))
    return ours


class Scope(threading.local):
    """What the parts of a layer know while it runs in this thread; None when it does not.

    Attributes:
        real: bool (B, 1, T), True for real frames.
        kept: bool scalar, False where the layer is dropped; None until it is drawn.
    """

    # a ContextVar would do, but torch.compile traces none
    real: Any = None
    kept: Any = None


scope = Scope()


class CapeLayer(nn.Module):
    """Mixin of ESPnet's layers: opens the :class:`Scope` of the layer's parts.

    In forward rather than in hooks, so that recomputation finds it that calls ``layer.forward``.
    """

    def forward(self, x: Any, mask: Tensor, *rest: Any, **named: Any) -> Any:
        """As ESPnet's layer, whose first arguments are content and mask."""
        scope.real, scope.kept = mask, None
        try:
            return super().forward(x, mask, *rest, **named)
        finally:
            scope.real = scope.kept = None


class CapeEncoderLayer(CapeLayer, EncoderLayer):
    """Of the Conformer, and of our Transformer."""


class CapeEBranchformerEncoderLayer(CapeLayer, EBranchformerEncoderLayer):
    """Of the E-Branchformer."""


class CapeBranchformerEncoderLayer(CapeLayer, BranchformerEncoderLayer):
    """Of the Branchformer."""


class CapeDecoderLayer(CapeLayer, DecoderLayer):
    """Of the Transformer decoder."""


_OURS: dict[type, type[nn.Module]] = {
    EncoderLayer: CapeEncoderLayer,
    EBranchformerEncoderLayer: CapeEBranchformerEncoderLayer,
    BranchformerEncoderLayer: CapeBranchformerEncoderLayer,
    DecoderLayer: CapeDecoderLayer,
}


def open_scopes(layers: nn.Module) -> None:
    """Let each of ESPnet's layers below a module open the scope of its parts."""
    for theirs, ours in _OURS.items():
        replace(layers, theirs, functools.partial(take_over, ours))


class LayerDrop(nn.Module):
    """In place of a layer's dropout, which each part's output passes on its way to the residual.

    Args:
        dropout: ESPnet's.
        rate: with which a layer is dropped in training. Its first part draws for all.
    """

    def __init__(self, dropout: nn.Module, rate: float) -> None:
        super().__init__()
        self.dropout, self.rate = dropout, rate

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, size) → same, zeros in a layer that is dropped."""
        x = self.dropout(x)
        if not self.training:
            return x
        if scope.kept is None:
            scope.kept = torch.rand((), device=x.device) >= self.rate
        # a product, not a branch: no wait for the device, and gradients of zero rather than none,
        # so that DDP finds every parameter used although each process draws for itself
        return x * scope.kept


def drop_layers(layers: Iterable[Any], rate: float) -> None:
    """Drop each of ESPnet's layers with probability ``rate`` in training: one draw per batch.

    What its parts (attention, feed-forward) add to the residual is zeroed; norms still run, and
    nothing is rescaled in evaluation (authors). The layers are of :func:`open_scopes`.

    Raises:
        ValueError: the rate is not in [0, 1), or layers have ``concat_after``: no sum then.
    """
    check_rate("layer_drop_rate", rate)
    for layer in layers if rate else ():
        if layer.concat_after:
            raise ValueError(f"layer_drop_rate: {rate} needs concat_after: false: leave one out")
        layer.dropout = LayerDrop(layer.dropout, rate)
