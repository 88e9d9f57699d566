"""Position → embedding: algebra, dtypes, padding, errors."""

import math

import pytest
import torch

from cape_plugins import sinusoid_1d, sinusoid_2d


def test_position_zero_is_cos_one_sin_zero():
    assert sinusoid_1d(torch.zeros(1), 4).tolist() == [[1.0, 1.0, 0.0, 0.0]]
    assert sinusoid_2d(torch.zeros(2), 4).tolist() == [1.0, 1.0, 0.0, 0.0]


def test_scale_multiplies_the_positions():
    for embed, positions in ((sinusoid_1d, torch.rand(50)), (sinusoid_2d, torch.rand(50, 2))):
        positions = positions.double()
        expected = embed(30 * positions, 16)
        torch.testing.assert_close(embed(positions, 16, frequency_scale=30.0), expected)


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


@pytest.mark.parametrize(
    ("options", "named"),
    [
        *((dict(frequency_scale=scale), "frequency_scale") for scale in (0.0, -1.0, math.nan)),
        *((dict(base=base), "base") for base in (1.0, "10000", None, math.inf)),
        *((dict(dim=dim), "dim") for dim in (7, 1, 0, -2, 8.0)),
        *(
            (dict(positions=torch.tensor([[0.0, bad]])), "positions")
            for bad in (math.inf, -math.inf)
        ),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_name(options, named):
    given = {"positions": torch.zeros(2, 2), "dim": 8, **options}
    for embed in (sinusoid_1d,) if "base" in options else (sinusoid_1d, sinusoid_2d):
        with pytest.raises(ValueError, match=named):
            embed(**given)
    with pytest.raises(ValueError, match="positions"):
        sinusoid_2d(torch.zeros(2, 3), 4)
    assert sinusoid_1d(torch.ones(1), 4, base=1.5).isfinite().all()
