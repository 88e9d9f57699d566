"""The rotation of queries and keys by cosines and sines, and its gradient, for eager mode.

Channel k turns with channel k + d/2. The product is taken in float32, whatever the dtype of queries
and keys. Plain operations write four float32 copies of them for it, and as many in backward; here
halves of them go from product to result, queries and keys together, and nothing is kept for
backward but what the rotation is made of: its gradient is the rotation back. Compilers, tracing,
torch.func and fake tensors get the plain operations, as does a rotation whose positions are
learned.

    >>> query, key = rotate(table, query, key)              # (B, heads, N, d) each
"""

from typing import Any

import torch
from torch import Tensor

from cape_plugins.checks import is_plain


def rotate(table: Tensor, *turned: Tensor, back: bool = False) -> tuple[Tensor, ...]:
    """Rotate tensors of one shape, each rounded once to its own dtype.

    Args:
        table: [cos | cos | -sin | sin], (…, 2 d), broadcastable to each.
        turned: (…, d).
        back: in the other direction.
    """
    if _in_eager_mode(table, *turned) and _is_cast(turned[0]) and not table.requires_grad:
        return _Rotation.apply(table, back, *turned)
    return tuple(_rotate_plainly(x, table, back) for x in turned)


def rotate_mixed(
    positions: Tensor, frequencies: Tensor, *turned: Tensor, back: bool = False
) -> tuple[Tensor, ...]:
    """Rotate tensors of one shape by phases of each head, which backward computes again.

    Args:
        positions: (B or 1, N, 2) without NaN, float32 at least.
        frequencies: (2, heads, d / 2), radians per unit of position.
        turned: (B, heads, N, d).
        back: in the other direction.
    """
    wide = frequencies.to(torch.promote_types(turned[0].dtype, positions.dtype))
    if _in_eager_mode(positions, frequencies, *turned) and not positions.requires_grad:
        return _MixedRotation.apply(positions, wide, back, *turned)
    phases = phases_of(positions, wide)
    cos, sin = phases.cos(), phases.sin()
    table = torch.cat([cos, cos, -sin, sin], dim=-1)
    return tuple(_rotate_plainly(x, table, back) for x in turned)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, back: bool, *turned: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(table)
        ctx.back = back
        half = turned[0].shape[-1] // 2
        cos, _, minus_sin, sin = table.split(half, dim=-1)
        return _rotate_halves(turned, cos, sin, back, minus_sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (table,) = ctx.saved_tensors
        return None, None, *rotate(table, *grads, back=not ctx.back)


class _MixedRotation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, positions: Tensor, frequencies: Tensor, back: bool, *turned: Tensor
    ) -> tuple[Tensor, ...]:
        phases = phases_of(positions, frequencies)
        found = _rotate_halves(turned, phases.cos(), phases.sin(), back)
        ctx.save_for_backward(positions, frequencies, *found)
        ctx.back = back
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        positions, frequencies, *found = ctx.saved_tensors
        turned_back = rotate_mixed(positions, frequencies, *grads, back=not ctx.back)
        of_frequencies = None
        if ctx.needs_input_grad[1]:
            of_phases = _gradient_of_phases(positions, found, grads)
            of_frequencies = gradient_of_frequencies(positions, of_phases)
            if ctx.back:
                of_frequencies = -of_frequencies
        return None, of_frequencies, None, *turned_back


def phases_of(positions: Tensor, frequencies: Tensor) -> Tensor:
    """(B or 1, N, 2), (2, heads, d / 2) → radians (B or 1, heads, N, d / 2)."""
    # elementwise rather than a matrix product, which autocast would run in half precision
    height, width = positions[:, None, :, :1], positions[:, None, :, 1:]  # (B, 1, N, 1)
    along_height, along_width = frequencies[:, :, None]  # (heads, 1, d / 2)
    return torch.addcmul(height * along_height, width, along_width)


def _rotate_halves(
    turned: tuple[Tensor, ...],
    cos: Tensor,
    sin: Tensor,
    back: bool,
    minus_sin: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Each (…, d) by (…, d / 2), in the order of its memory; no gradient is taken here."""
    # in the order in which the first lies in memory: attention's result takes it over
    last = turned[0].ndim - 1  # channels, wherever they lie
    order = [*sorted(range(last), key=turned[0].stride, reverse=True), last]
    order_back = [order.index(dim) for dim in range(len(order))]
    x = _stacked([each.permute(order) for each in turned])  # (n, …)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    cos, sin = cos.permute(order), sin.permute(order)
    first, second = x.chunk(2, dim=-1)
    to_first, to_second = out.chunk(2, dim=-1)
    # each sum as plain operations round it: forward's by addcmul, backward's of two products
    if back:
        torch.add(first * cos, second * sin, out=to_first)
        torch.sub(second * cos, first * sin, out=to_second)
    else:
        if minus_sin is None:
            torch.addcmul(first * cos, second, sin, value=-1, out=to_first)
        else:  # CUDA rounds addcmul once where value is 1, else twice
            torch.addcmul(first * cos, second, minus_sin.permute(order), out=to_first)
        torch.addcmul(second * cos, first, sin, out=to_second)
    return tuple(each.permute(order_back) for each in out.unbind())


def _stacked(turned: list[Tensor]) -> Tensor:
    """One tensor of several, (n, …): a view where two are of one projection, else a copy."""
    if len(turned) == 1:
        return turned[0][None]
    first, last = turned[0], turned[-1]
    apart = last.storage_offset() - first.storage_offset()
    of_one = first.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()
    if len(turned) == 2 and of_one and apart > 0 and first.stride() == last.stride():
        return first.as_strided((2, *first.shape), (apart, *first.stride()))
    return torch.stack(turned)


def _in_eager_mode(*tensors: Tensor) -> bool:
    """Whether a function with a gradient of its own may run: there are values, none of a subclass.

    Other devices than these may not write results into a tensor of another dtype.
    """
    return tensors[0].device.type in ("cpu", "cuda") and is_plain(*tensors)


def _is_cast(x: Tensor) -> bool:
    """Whether rotating costs casts; if not, whole rows are faster on a CPU than their halves."""
    return x.device.type != "cpu" or x.dtype in (torch.bfloat16, torch.float16)


def _rotate_plainly(x: Tensor, table: Tensor, back: bool) -> Tensor:
    """(…, d) by a table that broadcasts with it; the sum is taken in float32, rounded last."""
    cos, sin = table.chunk(2, dim=-1)
    wide = x.to(torch.promote_types(x.dtype, table.dtype))
    other = wide.roll(x.shape[-1] // 2, dims=-1)
    # in place: what rotation costs is memory
    return (wide * cos).addcmul_(other, sin, value=-1 if back else 1).to(x.dtype)


def _gradient_of_phases(like: Tensor, found: list[Tensor], grads: tuple[Tensor, ...]) -> Tensor:
    """(B, heads, N, d / 2): a phase moves each pair of rotated channels across its direction."""
    total: Any = 0
    for x, grad in zip(found, grads, strict=True):
        (x_1, x_2), (grad_1, grad_2) = x.chunk(2, dim=-1), grad.chunk(2, dim=-1)
        # the first factor makes float32 of half precision
        zero = like.new_zeros([1], dtype=torch.promote_types(x.dtype, like.dtype))
        across = zero.addcmul(grad_2, x_1).addcmul(grad_1, x_2, value=-1)
        total = across + total
    return total


def gradient_of_frequencies(positions: Tensor, of_phases: Tensor) -> Tensor:
    """What :func:`phases_of` (B, heads, N, d / 2) hand back: (2, heads, d / 2)."""
    if positions.shape[0] == 1:
        of_phases = of_phases.sum(dim=0, keepdim=True)
    # (B, 1, 2, N) × (B, heads, N, d / 2), never in half precision
    with torch.autocast(positions.device.type, enabled=False):
        along = positions.transpose(1, 2)[:, None].to(of_phases.dtype) @ of_phases
    return along.sum(dim=0).transpose(0, 1)  # (2, heads, d / 2)
