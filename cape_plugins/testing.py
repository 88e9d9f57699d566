"""What every variant must do, as functions that a test calls: each takes a variant by its name::

    @pytest.mark.parametrize("axes", [1, 2])
    @pytest.mark.parametrize("check", testing.CHECKS)
    def test_what_every_variant_does(check, axes):
        check("fire", axes, fire_width=8)

A check builds a small model of two layers of attention and raises AssertionError; those of
:mod:`cape_plugins.inside` build one of each host that is installed, and name the host. Options that
are asked for, such as ``max_local_shift``, are filled in.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from cape_plugins import inside, variants
from cape_plugins.attention import Given
from cape_plugins.part import Part
from cape_plugins.places import patch_grid, token_positions, with_axes
from cape_plugins.positions import Positions
from cape_plugins.tryout import SPREADS

DIM, HEADS, LAYERS = 24, 3, 2
# of variants whose options have no default, for tokens and for patches
_ASKED: tuple[dict[str, Any], ...] = (
    dict(max_local_shift=0.5, max_global_shift=5.0, random_range=9.0, pose_range=90.0),
    dict(max_local_shift=0.3, max_global_shift=0.5, random_range=(-1.0, 1.0)),
)


class Model(nn.Module):
    """A variant in two layers of attention with residuals, whose parameters have been moved."""

    def __init__(self, pos: str, axes: int, **options: Any) -> None:
        super().__init__()
        taken = variants.get(pos, axes).options(axes)
        asked: dict[str, Any] = dict(abspos_context=50.0, relpos_context=3.0, **_ASKED[axes - 1])
        options = {name: one for name, one in asked.items() if name in taken} | options
        sizes: dict[str, Any] = dict(dim=DIM, heads=HEADS, layers=LAYERS, axes=axes)
        self.positions = Positions(pos, **sizes, **options)
        moves = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data.add_(0.05 * torch.randn(parameter.shape, generator=moves))

    def forward(self, content: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, N, dim) → (B, N, dim)."""
        x, given = self.positions(content, positions, mask)
        for attention in self.positions.attentions:
            split = x.unflatten(2, (HEADS, -1)).transpose(1, 2)  # (B, heads, N, head_dim)
            mixed, _ = attention(split, split + 1, split - 1, given)
            x = x + mixed.transpose(1, 2).flatten(2)
        return x


def model(pos: str, axes: int, **options: Any) -> Model:
    """A :class:`Model` in evaluation."""
    return Model(pos, axes, **options).eval()


def content(*sizes: int, seed: int = 1) -> Tensor:
    """Random content, (*sizes, dim)."""
    return torch.randn(*sizes, DIM, generator=torch.Generator().manual_seed(seed))


def places(axes: int, tokens: int = 6) -> Tensor:
    """Positions of six tokens, or of 2 × 3 patches; of four, or 2 × 2: (1, N[, 2])."""
    return token_positions([tokens]) if axes == 1 else patch_grid(2, tokens // 2)[None]


def check_methods(pos: str, axes: int, **options: Any) -> None:
    """What the methods of its parts give is of the right shape, is no NaN, and is new.

    It is so of a class token and of padding too, whose position is NaN, and nothing is added there.
    A wrong shape may fit by chance, as a bias (B, queries, keys) does where there are as many
    samples as heads; what is written into is shared with other layers and models.
    """
    made, known = model(pos, axes, **options).positions, places(axes)
    nowhere = torch.full_like(known[:, :1], math.nan)
    where = with_axes(torch.cat([nowhere, known, nowhere], dim=1).repeat_interleave(2, dim=0))
    x = content(2, 8)
    if (added := made.added) is not None:
        method = "add" if added.needs_content() else "embedding"
        with _untouched(added, method, where):
            given = added.add(x, where) if method == "add" else added.embedding(where, x.dtype)
        wanted = "(1 or B, N, dim)" if method == "embedding" else "(B, N, dim)"
        _check_given(added, method, given, wanted, [*x.shape])
        nothing = method == "add" or not given[:, 0].any()
        assert nothing, f"{added.said(method)} adds something to a token without a position"
    if made.variant.attends is not None:
        layer: Any = made.first
        mask = torch.ones(2, 1, 1, 8, dtype=torch.bool)
        mask[..., -1] = False
        query = x.unflatten(2, (HEADS, -1)).transpose(1, 2)
        with _untouched(layer, "prepare", where):
            given = layer.prepare(where, where, mask, x.dtype)
        with _untouched(layer, "embed or bias", *given):
            both = layer.embed_both(query, query.flip(2), given)
            for one in both:
                _check_given(layer, "embed", one, "(B, heads, N, head_dim)", [*query.shape])
            bias = layer.bias(*both, given)
        if bias is not None:
            shape = "(B or 1, heads or 1, queries or 1, keys or 1), or None"
            _check_given(layer, "bias", bias, shape, [2, HEADS, 8, 8], fewer=True)
        whole: Any = Given(where, where, mask) if layer.prepares else given
        told = f"{pos}: NaN where a token has no position"
        assert layer(query, query, query, whole)[0].isfinite().all(), told


def _check_given(
    part: Part, method: str, found: Any, form: str, wanted: list[int], fewer: bool = False
) -> None:
    is_tensor = isinstance(found, Tensor)
    sizes = [*found.shape] if is_tensor else []
    shown = sizes if is_tensor else type(found).__name__
    fits = len(sizes) == len(wanted) and all(
        is_ == size or (is_ == 1 and (fewer or (axis == 0 and "1 or B" in form)))
        for axis, (is_, size) in enumerate(zip(sizes, wanted, strict=True))
    )
    assert fits, f"{part.said(method)} must give {form}, here {wanted}: it gave {shown}"
    assert not found.isnan().any(), f"{part.said(method)} {SPREADS}"


@contextmanager
def _untouched(part: Part, method: str, *given: Tensor | None) -> Iterator[None]:
    before = [x if x is None else x.clone() for x in given]
    yield
    for now, was in zip(given, before, strict=True):
        same = now is None or was is None or bool(((now == was) | now.isnan() & was.isnan()).all())
        assert same, (
            f"{part.said(method)} writes into what it gets, which other layers and models share: "
            "write `x = x + …` in place of `x += …`, or into a clone()"
        )


def check_padding(pos: str, axes: int, **options: Any) -> None:
    """A sample is what it is without its padding, and nothing is NaN, in padding neither."""
    made, x, short = model(pos, axes, **options), content(2, 6), places(axes, 4)
    where = places(axes).repeat_interleave(2, dim=0)
    where[1] = math.nan
    where[1, :4] = short[0]
    seen = torch.ones(2, 1, 6, dtype=torch.bool)
    seen[1, :, 4:] = False
    expected = made(x[:1], where[:1]), made(x[1:, :4], short)
    for mask in (seen, torch.zeros(2, 1, 6).masked_fill(~seen, -math.inf)):
        found = made(x, where, mask)
        assert found.isfinite().all(), f"{pos}: NaN where there is padding"
        assert_close(found[:1], expected[0])
        assert_close(found[1:, :4], expected[1])


def check_batch(pos: str, axes: int, **options: Any) -> None:
    """A sample does not depend on those beside it, with its own positions or shared ones."""
    made, x = model(pos, axes, **options), content(2, 6)
    where = places(axes).repeat_interleave(2, dim=0)
    where[1, 4:] = math.nan
    alone = torch.cat([made(x[i : i + 1], where[i : i + 1]) for i in range(2)])
    assert_close(made(x, where), alone)
    assert_close(made(x, where[:1]), made(x, where[:1].repeat_interleave(2, dim=0)))


def check_mask(pos: str, axes: int, **options: Any) -> None:
    """Keys that a mask hides are not seen; the weights say so, and the result is that without."""
    made, tokens = model(pos, axes, **options), 6
    seen = torch.ones(1, tokens, tokens, dtype=torch.bool).tril()
    seen[:, 0, -1] = True  # no decoder's mask, which goes not with centred positions
    _, given = made.positions(content(2, tokens), places(axes), seen)
    query, key, value = content(3, 2, tokens).unflatten(3, (HEADS, -1)).transpose(2, 3)
    for attention in made.positions.attentions:
        out, weights = attention(query, key, value, given, need_weights=True)
        assert not weights.masked_select(~seen).any(), f"{pos}: hidden keys have weights"
        assert_close(weights.sum(-1), torch.ones(2, HEADS, tokens))
        assert_close(attention(query, key, value, given)[0], out)


def check_cache(pos: str, axes: int, **options: Any) -> None:
    """Step by step, with keys that are kept as ``embed`` left them, is as at once."""
    made, tokens, where = model(pos, axes, **options), 6, places(axes)
    positions = made.positions
    if positions.augmentation.needs_whole_sequence(False) or positions.variant.attends is None:
        return
    seen = torch.ones(1, tokens, tokens, dtype=torch.bool).tril()
    query, key, value = content(3, 2, tokens).unflatten(3, (HEADS, -1)).transpose(2, 3)
    x = content(2, tokens)
    for attention in made.positions.attentions:
        at_once, _ = attention(query, key, value, positions(x, where, seen)[1])
        cache = Kept()
        for t in range(tokens):
            now = slice(t, t + 1)
            _, given = positions(x[:, now], where[:, now], keys=where[:, : t + 1])
            new = query[:, :, now], key[:, :, now], value[:, :, now]
            step, _ = attention(*new, given, cache=cache)
            assert_close(step, at_once[:, :, now])


class Kept:
    """A cache of keys and values, as plain as can be: the argument ``cache`` of attention."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor, Tensor]] = []

    def __call__(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values so far, (B, heads, keys, head_dim)."""
        self.parts.append((key, value))
        keys, values = (torch.cat(each, dim=2) for each in zip(*self.parts, strict=True))
        return keys, values


def check_training(pos: str, axes: int, **options: Any) -> None:
    """In training all is finite, every parameter gets a gradient, and a seed repeats it."""
    made, x = Model(pos, axes, **options), content(2, 6).requires_grad_()
    torch.manual_seed(3)
    first = made(x, places(axes))
    torch.manual_seed(3)
    assert torch.equal(made(x, places(axes)), first), f"{pos}: a seed does not repeat a training"
    first.square().mean().backward()
    for name, parameter in made.named_parameters():
        grad = parameter.grad
        assert grad is not None, f"{pos}: {name} gets no gradient"
        assert grad.isfinite().all(), f"{pos}: the gradient of {name} is not finite"


def check_half_precision(pos: str, axes: int, **options: Any) -> None:
    """In bfloat16, and under autocast, it is nearly what it is in float32."""
    made, x, where = model(pos, axes, **options), content(2, 6), places(axes)
    expected = made(x, where)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(made(x, where).float(), expected, atol=0.15, rtol=0.1)
    half = copy.deepcopy(made).bfloat16()(x.bfloat16(), where)
    assert half.dtype == torch.bfloat16, f"{pos}: bfloat16 becomes {half.dtype}"
    assert_close(half.float(), expected, atol=0.15, rtol=0.1)


def check_checkpoint(pos: str, axes: int, **options: Any) -> None:
    """Its state dict makes the same model of a new one; the mark in it refuses another variant's.

    Activation checkpointing gives the same gradients.
    """
    made, new = model(pos, axes, **options), model(pos, axes, **options)
    x, where = content(2, 6), places(axes)
    for parameter in made.parameters():
        parameter.data.add_(0.1)
    new.load_state_dict(made.state_dict())
    assert_close(new(x, where), made(x, where))
    other = "sinpos" if pos == "nopos" else "nopos"
    for one, another in ((new, Model(other, axes)), (Model(other, axes), new)):
        try:
            one.positions.mark.load_state_dict(another.positions.mark.state_dict())
        except ValueError:
            continue
        raise AssertionError(f"{pos} and {other} take each other's checkpoints")
    plain = torch.autograd.grad(made(x.requires_grad_(), where).square().mean(), x)
    again = checkpoint(made, x, where, use_reentrant=False)
    assert_close(torch.autograd.grad(again.square().mean(), x), plain)


def check_compile(pos: str, axes: int, **options: Any) -> None:
    """torch.compile takes it whole, with sizes that change, and gives the same."""
    made = model(pos, axes, **options)
    torch._dynamo.reset()
    compiled = torch.compile(made, backend="eager", fullgraph=True, dynamic=True)
    for tokens in (6, 4):
        x, where = content(2, tokens), places(axes, tokens)
        assert_close(compiled(x, where), made(x, where))


#: all of them; ``check_compile`` takes seconds, and so do those inside the hosts that are installed
CHECKS: tuple[Callable[..., None], ...] = (
    check_methods,
    check_padding,
    check_batch,
    check_mask,
    check_cache,
    check_training,
    check_half_precision,
    check_checkpoint,
    check_compile,
    *inside.CHECKS,
)
