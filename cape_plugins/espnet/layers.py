"""What replaces parts of ESPnet's layers: self-attention that knows positions, and layer drop."""

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

# the class that ESPnet's pictures of attention look for, wherever this version has it
from espnet2.main_funcs.calculate_all_attentions import MultiHeadedAttention
from torch import Tensor, nn

from cape_plugins.attention import PositionalAttention
from cape_plugins.espnet.seconds import check_rate


class EspnetAttention(MultiHeadedAttention):
    """ESPnet's self-attention, with its weights, that knows positions.

    ESPnet's ``num_att_plot`` draws ``attn``: the (B, heads, N, N) weights, computed in evaluation
    where a forward hook asks, as that does.

    Args:
        positional: what attends; None attends without positions.
        theirs: the module that it replaces, whose weights it takes over.
    """

    def __init__(
        self, positional: PositionalAttention | None, theirs: MultiHeadedAttention
    ) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(vars(theirs))
        self.positional = positional or PositionalAttention()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *rest: Tensor) -> Tensor:
        """(B, N, size) → same.

        ``rest`` is the mask, bool (B, 1 or N, N), True where a query sees a key, and before it the
        positions (B, N, …) of :func:`cape_plugins.variants.prepare`, where the variant has some.
        """
        *positions, mask = rest
        visible = mask[:, None]  # (B, 1, 1 or N, keys)
        # an empty utterance sees its padding: attention to nothing could be NaN
        visible = visible | ~visible.any(dim=-1, keepdim=True)
        pictures = self._forward_hooks and not (self.training or torch.compiler.is_compiling())
        mixed, weights = self.positional(
            *self.forward_qkv(query, key, value),
            positions[0] if positions else None,
            visible,
            self.dropout_rate if self.training else 0.0,
            need_weights=bool(pictures),
        )
        if weights is not None and pictures:
            self.attn = weights.detach()
        return self.linear_out(mixed.transpose(1, 2).flatten(2))


def use_logn(encoder: nn.Module, logn: int) -> None:
    """Multiply the logits of an encoder's self-attention by log N / log N_train.

    Args:
        encoder: one of ours, or one of ESPnet's whose self-attention knows no positions.
        logn: N_train, in frames after subsampling; 0 for off.

    Raises:
        ValueError: there is another self-attention, or none.
    """
    found = [each for each in encoder.modules() if isinstance(each, MultiHeadedAttention)]
    unknown = {type(each) for each in found} - {MultiHeadedAttention, EspnetAttention}
    if unknown or not found:
        names = ", ".join(sorted(kind.__name__ for kind in unknown)) or "none of ESPnet"
        raise ValueError(
            f"attention_logn has no effect in {type(encoder).__name__}, whose self-attention is "
            f"{names}: leave it out, or choose another model"
        )

    def scaled(each: MultiHeadedAttention) -> EspnetAttention:
        ours = each if isinstance(each, EspnetAttention) else EspnetAttention(None, each)
        ours.positional.logn = logn
        return ours

    replace(encoder, MultiHeadedAttention, scaled)


def replace(root: nn.Module, kind: type, make: Callable[[Any], nn.Module]) -> None:
    """Replace each module of a kind below ``root`` by ``make(module)``."""
    for parent in list(root.modules()):
        for name, child in parent.named_children():
            if isinstance(child, kind):
                setattr(parent, name, make(child))


class LayerScope(threading.local):
    """What the parts of a layer know while the layer runs in this thread; None when it does not.

    Hooks of the layer and its parts set it, and one after the layer resets it, so that activation
    checkpointing, which calls the layer again, and other threads find what is theirs. (A ContextVar
    would do, but torch.compile traces none.)
    """

    value: Any = None


_kept = LayerScope()  # bool scalar, False where the layer is dropped


def drop_layers(layers: Iterable[Any], rate: float) -> None:
    """Drop each of ESPnet's layers with probability ``rate`` in training: one draw per batch.

    What its parts (attention, feed-forward) add to the residual is zeroed; norms still run, and
    nothing is rescaled in evaluation (authors).

    Raises:
        ValueError: the rate is not in [0, 1), or layers have ``concat_after``: no sum then.
    """
    check_rate("layer_drop_rate", rate)
    for layer in layers if rate else ():
        if layer.concat_after:
            raise ValueError(f"layer_drop_rate: {rate} needs concat_after: false: leave one out")
        layer.register_forward_hook(_forget, always_call=True)
        # every part's output passes it on its way to the residual
        layer.dropout.register_forward_hook(functools.partial(_drop, rate))


def _drop(rate: float, part: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
    """The first part of a layer draws for all."""
    if not part.training:
        return output
    if _kept.value is None:
        _kept.value = torch.rand((), device=output.device) >= rate
    # a product, not a branch: no wait for the device, and gradients of zero rather than none,
    # so that DDP finds every parameter used although each process draws for itself
    return output * _kept.value


def _forget(layer: nn.Module, given: tuple[Any, ...], output: Any) -> None:
    _kept.value = None
