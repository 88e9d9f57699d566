"""Gradients of positions, as learned or predicted coordinates take them, through every variant.

They are those of finite differences in float64; padding (NaN) gets 0 and gives no NaN to others.
"""

import math

import pytest
import torch
from torch import Tensor

from cape_plugins import PositionalEmbedding, variants
from cape_plugins.attention import AttentionSettings

NAN = math.nan
# random positions are drawn, whatever the given ones are; abspos rounds, nopos and relpos ignore
WITHOUT = {"nopos", "abspos", "relpos", "relpos_first", "random", "random_rope"}
EACH = [(pos, axes) for axes in (1, 2) for pos in variants.names(axes) if pos not in WITHOUT]
PADDING = torch.tensor([[False] * 5, [False, False, False, True, True]])


def distinct(axes: int) -> Tensor:
    where = torch.tensor([[0.3, -1.2, 2.5, 0.9, 4.0], [1.7, 0.1, -0.6, 3.0, 2.0]])
    if axes == 2:
        where = torch.stack([where, where.flip(1) * 0.7 + 0.05], dim=-1)
    return where.double()


def outputs(pos: str, axes: int, training: bool):
    """What a variant makes of positions (2, 5[, 2]): tokens with positions, and their attention."""
    torch.manual_seed(0)
    sizes = AttentionSettings(head_dim=8, heads=2, axes=axes)
    embedding = PositionalEmbedding(16, pos, axes=axes).train(training).double()
    (attention,) = variants.attention_layers(pos, 1, sizes)
    tensors = torch.randn(3, 2, 2, 5, 8).double()
    if attention is not None:
        attention.double()

    def made_of(positions: Tensor) -> Tensor:
        if axes == 2:
            positions = positions.masked_fill(PADDING[..., None], NAN)
        else:
            positions = positions.masked_fill(PADDING, NAN)
        moved = embedding.augment(positions, 2, generator=torch.Generator().manual_seed(1))
        added = embedding.add(torch.zeros(2, 5, 16).double(), moved)
        if attention is None:
            return added
        prepared = variants.prepare(pos, moved, sizes)
        mask = ~PADDING[:, None, None]
        return attention(*tensors, prepared, mask)[0]

    return made_of


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("pos", "axes"), EACH)
def test_they_are_finite_differences_and_zero_in_padding(pos, axes, training):
    made_of, positions = outputs(pos, axes, training), distinct(axes).requires_grad_()
    # rotations and biases are prepared in float32
    step, within = (1e-6, 1e-6) if pos in ("sinpos", "cape") else (3e-3, 3e-3)
    assert torch.autograd.gradcheck(made_of, positions, eps=step, atol=within, rtol=1e-3)
    (grad,) = torch.autograd.grad(made_of(positions).square().sum(), positions)
    assert (grad[PADDING] == 0).all()
    assert (grad[~PADDING] != 0).any()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("pos", "axes"), EACH)
def test_they_are_finite_where_tokens_share_a_position_or_one_is_alone(pos, axes, training):
    shared = torch.zeros_like(distinct(axes)).requires_grad_()
    made_of = outputs(pos, axes, training)
    (grad,) = torch.autograd.grad(made_of(shared).square().sum(), shared)
    assert grad.isfinite().all()
    assert (grad[PADDING] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pos", ["sinpos", "cape"])
def test_content_of_any_dtype_gives_positions_their_gradient(pos, dtype):
    module = PositionalEmbedding(16, pos)
    positions = distinct(1).float().requires_grad_()
    content = torch.zeros(2, 5, 16, dtype=dtype, requires_grad=True)
    module(content, positions).float().square().sum().backward()
    assert positions.grad.isfinite().all()
    assert content.grad.dtype == dtype
