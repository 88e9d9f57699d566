"""Position → embedding: algebra, dtypes, padding, errors."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cape_plugins import sinusoid_1d, sinusoid_2d

pytestmark = pytest.mark.usefixtures("both_ways")

ANGLE = st.floats(-1, 1, allow_subnormal=False)


def rotate(embedding: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """The operator S^Δ of the paper: turns each (cos, sin) pair by its own angle."""
    cos, sin = embedding.chunk(2, dim=-1)
    return torch.cat(
        [cos * angle.cos() - sin * angle.sin(), sin * angle.cos() + cos * angle.sin()], dim=-1
    )


@settings(deadline=None)
@given(st.floats(-100, 100, allow_subnormal=False), st.integers(1, 32))
def test_a_global_shift_rotates_the_1d_embedding(delta, pairs):
    positions = torch.arange(20, dtype=torch.float64)
    frequencies = 10_000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    shifted = sinusoid_1d(positions + delta, 2 * pairs)
    expected = rotate(sinusoid_1d(positions, 2 * pairs), delta * frequencies)
    torch.testing.assert_close(shifted, expected, atol=1e-11, rtol=0)


@settings(deadline=None)
@given(ANGLE, ANGLE, st.integers(1, 32))
def test_a_global_shift_rotates_the_2d_embedding(along_height, along_width, pairs):
    positions = torch.rand(20, 2, dtype=torch.float64)
    j = torch.arange(pairs, dtype=torch.float64)
    angle = math.pi * 10 ** ((j + 1) / pairs) * (j.cos() * along_height + j.sin() * along_width)
    shift = torch.tensor([along_height, along_width], dtype=torch.float64)
    shifted = sinusoid_2d(positions + shift, 2 * pairs)
    expected = rotate(sinusoid_2d(positions, 2 * pairs), angle)
    torch.testing.assert_close(shifted, expected, atol=1e-11, rtol=0)


def test_position_zero_is_cos_one_sin_zero():
    assert sinusoid_1d(torch.zeros(1), 4).tolist() == [[1.0, 1.0, 0.0, 0.0]]
    assert sinusoid_2d(torch.zeros(2), 4).tolist() == [1.0, 1.0, 0.0, 0.0]


def test_scale_multiplies_the_positions():
    for embed, positions in ((sinusoid_1d, torch.rand(50)), (sinusoid_2d, torch.rand(50, 2))):
        positions = positions.double()
        expected = embed(30 * positions, 16)
        torch.testing.assert_close(embed(positions, 16, frequency_scale=30.0), expected)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_scale_that_is_no_positive_number_is_refused(scale):
    for embed, zeros in ((sinusoid_1d, torch.zeros(3)), (sinusoid_2d, torch.zeros(3, 2))):
        with pytest.raises(ValueError, match="frequency_scale"):
            embed(zeros, 8, frequency_scale=scale)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_the_dtype_is_that_of_the_positions_and_float32_at_least(dtype):
    returned = torch.float64 if dtype == torch.float64 else torch.float32
    assert sinusoid_1d(torch.ones(3, dtype=dtype), 4).dtype == returned
    assert sinusoid_2d(torch.ones(3, 2, dtype=dtype), 4).dtype == returned


def test_padding_is_zero_and_leaves_its_neighbours_alone():
    nan = float("nan")
    embedding = sinusoid_1d(torch.tensor([0.0, nan, 2.0]), 8)
    assert embedding[1].tolist() == [0.0] * 8
    assert torch.equal(embedding[[0, 2]], sinusoid_1d(torch.tensor([0.0, 2.0]), 8))
    assert sinusoid_2d(torch.tensor([[nan, nan]]), 8).tolist() == [[0.0] * 8]


@pytest.mark.parametrize("shape", [(0, 5), (3,), (2, 3, 4)])
def test_any_leading_shape_is_kept(shape):
    assert sinusoid_1d(torch.zeros(shape), 6).shape == (*shape, 6)
    assert sinusoid_2d(torch.zeros(*shape, 2), 6).shape == (*shape, 6)


@pytest.mark.parametrize("dim", [7, 1, 0, -2, 8.0])
def test_an_odd_or_empty_dim_is_refused(dim):
    for embed, axes in ((sinusoid_1d, ()), (sinusoid_2d, (2,))):
        with pytest.raises(ValueError, match="dim"):
            embed(torch.zeros(2, *axes), dim)


def test_other_bad_input_is_refused_by_name():
    assert sinusoid_1d(torch.ones(1), 4, base=1.5).isfinite().all()
    for base in (1.0, "10000", None, math.inf):
        with pytest.raises(ValueError, match="base"):
            sinusoid_1d(torch.zeros(2), 4, base=base)
    with pytest.raises(ValueError, match="positions"):
        sinusoid_2d(torch.zeros(2, 3), 4)
    with pytest.raises(ValueError, match="positions"):
        sinusoid_1d(torch.tensor([math.inf]), 4)
    with pytest.raises(ValueError, match="positions"):
        sinusoid_2d(torch.tensor([[0.0, -math.inf]]), 4)
