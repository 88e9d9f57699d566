"""Sorted random positions: order, range, distribution, padding, grids."""

import math

import pytest
import torch

from cape_plugins import Draw, frame_times, patch_grid, token_positions
from cape_plugins.random_positions import RandomPositions, randomise, spread_evenly
from cape_support import seeded

NAN = math.nan


def tokens(*lengths: int) -> torch.Tensor:
    return token_positions(list(lengths))[..., None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_are_in_range_in_order_and_in_their_dtype_and_padding_stays(dtype):
    given = tokens(1, 20, 7).to(dtype)
    drawn = RandomPositions((5.0, 100.0)).in_training(given, 3, generator=seeded())
    assert drawn.dtype == dtype
    assert torch.equal(drawn.isnan(), given.isnan())
    for row, length in zip(drawn[..., 0], (1, 20, 7), strict=True):
        assert (row[:length].diff() > 0).all()
        assert ((row[:length] >= 5) & (row[:length] <= 100)).all()
    shared = RandomPositions(1.0).in_training(torch.rand(1, 5, 2, dtype=dtype), 3)
    assert shared.shape == (3, 5, 2)
    assert not torch.equal(shared[0], shared[1])
    assert RandomPositions(1.0).in_evaluation(given).dtype == dtype


def test_each_position_is_that_order_statistic_of_a_uniform_distribution():
    drawn = randomise(tokens(4).expand(20_000, 4, 1), 0.0, 10.0, seeded())[..., 0]
    order = torch.arange(1.0, 5)
    torch.testing.assert_close(drawn.mean(0), 10 * order / 5, rtol=0, atol=0.05)
    variance = 100 * order * (5 - order) / (5**2 * 6)  # of Beta(i, n + 1 - i), times the range²
    torch.testing.assert_close(drawn.var(0), variance, rtol=0.03, atol=0)


def test_tokens_keep_their_order_whatever_it_is():
    positions = torch.tensor([[3.5, math.nan, -1.0, 7.0]])[..., None]
    drawn = randomise(positions, 0.0, 1.0, seeded())[0, :, 0]
    assert drawn[2] < drawn[0] < drawn[3]
    assert drawn[1].isnan()


def test_a_grid_stays_a_grid():
    grid = patch_grid(3, 5)[None].expand(2, 15, 2)
    drawn = randomise(grid, -1.0, 1.0, seeded()).view(2, 3, 5, 2)
    rows, columns = drawn[..., 0], drawn[..., 1]
    assert torch.equal(rows, rows[:, :, :1].expand_as(rows))
    assert torch.equal(columns, columns[:, :1].expand_as(columns))
    assert (rows[:, :, 0].diff() > 0).all()
    assert (columns[:, 0].diff() > 0).all()
    assert not torch.equal(rows[0], rows[1])


def test_evaluation_is_the_mean_of_the_draws():
    expected = 3 + torch.tensor([[1.0, 2, 3, 4], [5 / 3, 10 / 3, math.nan, math.nan]])[..., None]
    found = spread_evenly(tokens(4, 2), 3.0, 8.0)
    torch.testing.assert_close(found, expected, equal_nan=True)
    sampled = randomise(tokens(4, 2).repeat(10_000, 1, 1), 3.0, 8.0, seeded())
    mean = sampled.view(10_000, 2, 4, 1).nanmean(dim=0)
    torch.testing.assert_close(mean, expected, rtol=0, atol=0.05, equal_nan=True)


def test_padding_on_the_left_changes_nothing_in_evaluation():
    left = torch.full((1, 3, 1), math.nan)
    padded = spread_evenly(torch.cat([left, tokens(4)], dim=1), 0.0, 60.0)
    assert torch.equal(padded[:, 3:], spread_evenly(tokens(4), 0.0, 60.0))


@pytest.mark.parametrize("spread", [True, False])
def test_the_augmentation_draws_in_training_only(spread):
    augmentation = RandomPositions((20.0, 60.0), spread)
    seconds = frame_times([5, 3], 0.03)[..., None]
    first, second = (augmentation.in_training(seconds, 2) for _ in range(2))
    assert not torch.equal(first[0], second[0])
    assert 20 <= first[0].min() < first[0].max() <= 60
    # Δ and λ change nothing: it draws none
    assert augmentation.draw(2, 1) is None
    draw, same = Draw(torch.full((2, 1), 9.0), torch.full((2,), 9.0)), seeded()
    by_draw = augmentation.in_training(seconds, 2, draw, max_local_shift=9.0, generator=same)
    expected = randomise(seconds, 20.0, 60.0, seeded())
    torch.testing.assert_close(by_draw, expected, rtol=0, atol=0, equal_nan=True)
    expected = spread_evenly(seconds, 20.0, 60.0) if spread else seconds
    found = augmentation.in_evaluation(seconds)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "given_range", [(1.0, 1.0), (2.0, 1.0), (0.0, math.inf), ("0", 1.0), 0, -3, (1.0,), "09", NAN]
)
def test_a_number_is_a_range_from_0_and_what_is_no_range_is_refused(given_range):
    assert RandomPositions(60).range == (0.0, 60)
    assert RandomPositions([20.0, 60.0]).range == (20.0, 60.0)  # of a config
    with pytest.raises(ValueError, match="random_range"):
        RandomPositions(given_range)
