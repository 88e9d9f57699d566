"""The parts of the speech encoder: convolutional front, self-attention, Transformer layer."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

# the class that ESPnet's pictures of attention look for, wherever this version has it
from espnet2.main_funcs.calculate_all_attentions import MultiHeadedAttention
from torch import Tensor, nn

from cape_plugins.attention import PositionalAttention

KERNEL = 7
STRIDE = 3


class ConvolutionalFront(nn.Module):
    """Features → content at a third of the frame rate: convolution, GLU, dropout (section 4.2).

    The convolution has kernel 7 and stride 3; output frame i is centred at input frame 3 i. Its
    input is zeroed beyond each utterance's end, where the convolution itself pads with zeros: a
    padded utterance gives what it gives alone, and no utterance is too short.

    Args:
        input_size: feature channels.
        output_size: channels after the GLU.
        dropout_rate: after the GLU.
    """

    def __init__(self, input_size: int, output_size: int, dropout_rate: float) -> None:
        super().__init__()
        self.conv = nn.Conv1d(
            input_size, 2 * output_size, KERNEL, stride=STRIDE, padding=(KERNEL - 1) // 2
        )
        self.dropout = nn.Dropout(dropout_rate)

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """Subsample.

        Args:
            features: (B, T, input_size).
            padding: (B, T), True beyond each utterance's end.

        Returns:
            (B, ⌈T / 3⌉, output_size).
        """
        features = features.masked_fill(padding[..., None], 0.0)
        content = F.glu(self.conv(features.transpose(1, 2)), dim=1)
        return self.dropout(content.transpose(1, 2))


def subsampled(lengths: Tensor) -> Tensor:
    """Lengths in frames after :class:`ConvolutionalFront`."""
    return torch.div(lengths + (STRIDE - 1), STRIDE, rounding_mode="floor")


class SelfAttention(MultiHeadedAttention):
    """Multi-head self-attention, PyTorch's own or one that knows positions.

    ESPnet's in name only, so that its ``num_att_plot`` draws ``attn``: the (B, heads, N, N)
    weights, computed in evaluation where a forward hook asks, as that does.

    Args:
        size: channels.
        heads: divides ``size``.
        dropout_rate: on the attention weights.
        relative: attends instead of PyTorch's own; named so in checkpoints.
    """

    def __init__(
        self,
        size: int,
        heads: int,
        dropout_rate: float,
        relative: PositionalAttention | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.attn: Tensor | None = None
        self.heads = heads
        self.dropout_rate = dropout_rate
        self.relative = relative
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)

    def forward(self, x: Tensor, visible: Tensor, positions: Tensor | None = None) -> Tensor:
        """Attend.

        Args:
            x: (B, N, size).
            visible: bool, broadcastable to (B, heads, N, N); True where a query sees a key.
            positions: for ``relative``, as it has prepared them: (B, N, …).

        Returns:
            (B, N, size).
        """
        batch, length, size = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, size // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, N, size / heads)
        if self._forward_hooks and not (self.training or torch.compiler.is_compiling()):
            self.attn = attention_weights(self.relative, query, key, visible, positions)
        dropout = self.dropout_rate if self.training else 0.0
        if self.relative is not None:
            mixed = self.relative(query, key, value, positions, visible, dropout)
        else:
            mixed = F.scaled_dot_product_attention(
                query, key, value, attn_mask=visible, dropout_p=dropout
            )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, size))


def attention_weights(
    relative: PositionalAttention | None,
    query: Tensor,
    key: Tensor,
    visible: Tensor,
    positions: Tensor | None,
) -> Tensor:
    """Laid out for pictures, (B, heads, N, N); arguments as in :class:`SelfAttention`."""
    relative = PositionalAttention() if relative is None else relative
    query = relative.sharpen(relative.place(query, positions), key.shape[2], visible)
    query = query * query.shape[3] ** -0.5
    scores = query @ relative.place(key, positions).transpose(-2, -1)
    bias = relative.logits(query, key.shape[2], positions)
    scores = scores if bias is None else scores + bias
    return scores.masked_fill(~visible, -torch.inf).softmax(dim=-1).detach()


class PlacedAttention(MultiHeadedAttention):
    """ESPnet's self-attention, with its weights, that knows positions.

    Args:
        relative: attends; None attends without positions.
        theirs: what stood here.
    """

    def __init__(self, relative: PositionalAttention | None, theirs: MultiHeadedAttention) -> None:
        normed = not isinstance(theirs.q_norm, nn.Identity)
        super().__init__(theirs.h, theirs.h * theirs.d_k, theirs.dropout_rate, qk_norm=normed)
        self.load_state_dict(theirs.state_dict())
        self.to(theirs.linear_q.weight).train(theirs.training)
        self.relative = relative

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *placed: Tensor) -> Tensor:
        """(B, N, size) → same; ``placed`` are the positions, where the encoder has some to show,
        and the mask, bool (B, 1 or N, N), True where a query sees a key.
        """
        *positions, mask = placed
        query, key, value = self.forward_qkv(query, key, value)
        visible = mask[:, None]  # (B, 1, 1 or N, keys)
        # an empty utterance sees its padding: attention to nothing could be NaN
        visible = visible | ~visible.any(dim=-1, keepdim=True)
        where = positions[0] if positions else None
        if self._forward_hooks and not (self.training or torch.compiler.is_compiling()):
            self.attn = attention_weights(self.relative, query, key, visible, where)
        relative = self.relative or PositionalAttention()
        dropout = self.dropout_rate if self.training else 0.0
        mixed = relative(query, key, value, where, visible, dropout)
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
    known = (MultiHeadedAttention, SelfAttention, PlacedAttention)
    if not found or not all(type(each) in known for each in found):
        names = {type(each).__name__ for each in found if type(each) not in known}
        raise ValueError(
            f"attention_logn has no place in {type(encoder).__name__}, whose self-attention is "
            f"{', '.join(sorted(names)) or 'none of ESPnet'}: leave it out, or choose another model"
        )
    replace(encoder, MultiHeadedAttention, _placed)
    for each in encoder.modules():
        if isinstance(each, SelfAttention | PlacedAttention):
            each.relative = each.relative or PositionalAttention()
            each.relative.logn = logn


def _placed(attention: MultiHeadedAttention) -> MultiHeadedAttention:
    plain = type(attention) is MultiHeadedAttention
    return PlacedAttention(None, attention) if plain else attention


def replace(root: nn.Module, kind: type, make: Callable[[Any], nn.Module]) -> int:
    """Put ``make(module)`` in the place of each module of a kind; how many there were."""
    found = [
        (parent, name, child)
        for parent in root.modules()
        for name, child in parent.named_children()
        if isinstance(child, kind)
    ]
    for parent, name, child in found:
        setattr(parent, name, make(child))
    return len(found)


class TransformerLayer(nn.Module):
    """Self-attention and a ReLU feed-forward network, each with a residual and a LayerNorm.

    As in the authors' code, dropout falls on the attention weights and after the ReLU, not on
    the residuals.

    Args:
        size: channels.
        heads: divides ``size``.
        hidden: channels of the feed-forward network.
        dropout_rate: after the ReLU.
        attention_dropout_rate: on the attention weights.
        normalize_before: LayerNorm on the input of each part (pre-norm), not on the sum.
        relative: as in :class:`SelfAttention`.
    """

    def __init__(
        self,
        size: int,
        heads: int,
        hidden: int,
        dropout_rate: float,
        attention_dropout_rate: float,
        normalize_before: bool,
        relative: PositionalAttention | None = None,
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(size, heads, attention_dropout_rate, relative)
        self.feed_forward = nn.Sequential(
            nn.Linear(size, hidden), nn.ReLU(), nn.Dropout(dropout_rate), nn.Linear(hidden, size)
        )
        self.norm_attention = nn.LayerNorm(size)
        self.norm_feed_forward = nn.LayerNorm(size)
        self.normalize_before = normalize_before

    def forward(
        self,
        x: Tensor,
        visible: Tensor,
        kept: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Transform.

        Args:
            x: (B, N, size).
            visible: as in :class:`SelfAttention`.
            kept: bool scalar, False to drop the layer: the outputs of both parts are zeroed, the
                norms still run (authors). Default: the layer is kept.
            positions: as in :class:`SelfAttention`.

        Returns:
            (B, N, size).
        """
        if self.normalize_before:
            x = x + keep(self.attention(self.norm_attention(x), visible, positions), kept)
            return x + keep(self.feed_forward(self.norm_feed_forward(x)), kept)
        x = self.norm_attention(x + keep(self.attention(x, visible, positions), kept))
        return self.norm_feed_forward(x + keep(self.feed_forward(x), kept))


def keep(output: Tensor, kept: Tensor | None) -> Tensor:
    """A part's output, zeroed where the bool scalar ``kept`` is False."""
    # a product, not a branch: no wait for the device, and gradients of zero rather than none,
    # so that DDP finds every parameter used although each process draws for itself
    return output if kept is None else output * kept
