"""Gradients of positions, as learned or predicted coordinates take them, through every variant.

They are those of finite differences in float64; padding (NaN) gets 0 and gives no NaN to others.
"""

import math

import pytest
import torch
from torch import Tensor

from cape_support import OURS, Layer, seeded

NAN = math.nan
# random positions are drawn, whatever the given ones are; abspos rounds, nopos and relpos ignore
WITHOUT = {"nopos", "abspos", "relpos", "relpos_first", "random", "random_rope"}
EACH = [case for case in OURS if case[0] not in WITHOUT]
PADDING = torch.tensor([[False] * 5, [False, False, False, True, True]])


def distinct(axes: int) -> Tensor:
    where = torch.tensor([[0.3, -1.2, 2.5, 0.9, 4.0], [1.7, 0.1, -0.6, 3.0, 2.0]])
    if axes == 2:
        where = torch.stack([where, where.flip(1) * 0.7 + 0.05], dim=-1)
    return where.double()


def outputs(pos: str, axes: int, training: bool):
    """What a layer makes of positions (2, 5[, 2]), some of which are padding."""
    torch.manual_seed(0)
    layer = Layer(pos, axes, dim=24).train(training).double()
    content = torch.randn(2, 5, 24).double()
    padding = PADDING[..., None] if axes == 2 else PADDING

    def made_of(positions: Tensor) -> Tensor:
        where = positions.masked_fill(padding, NAN)
        return layer(content, where, ~PADDING[:, None], generator=seeded(1))

    return made_of


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("pos", "axes"), EACH)
def test_they_are_finite_differences_and_zero_in_padding(pos, axes, training):
    made_of, positions = outputs(pos, axes, training), distinct(axes).requires_grad_()
    # rotations and biases are prepared in float32
    step, within = (1e-6, 1e-6) if pos in ("sinpos", "cape") else (3e-3, 3e-3)
    checks = dict(eps=step, atol=within, rtol=1e-3, fast_mode=True)
    assert torch.autograd.gradcheck(made_of, positions, **checks)
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


@pytest.mark.parametrize(("pos", "axes"), EACH)
def test_content_in_half_precision_gives_positions_their_gradient(pos, axes):
    layer, positions = Layer(pos, axes, dim=24).bfloat16(), distinct(axes).float().requires_grad_()
    content = torch.randn(2, 5, 24, dtype=torch.bfloat16, requires_grad=True)
    layer(content, positions).float().square().sum().backward()
    assert positions.grad.isfinite().all()
    assert (positions.grad.reshape(10, -1) != 0).any(dim=1).all()
    assert content.grad.dtype == torch.bfloat16
