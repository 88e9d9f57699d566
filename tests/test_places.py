"""Positions of tokens, frames and patches; NaN marks padding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cape_plugins import frame_times, patch_grid, token_positions


def test_tokens_sit_at_their_index_and_padding_is_nan():
    positions = token_positions(torch.tensor([3, 1, 0]))
    nan = float("nan")
    expected = torch.tensor([[0.0, 1, 2], [0, nan, nan], [nan, nan, nan]])
    torch.testing.assert_close(positions, expected, equal_nan=True)
    assert positions.dtype == torch.float32


def test_tokens_can_be_padded_further_and_scaled():
    positions = token_positions([2], 4, spacing=1.5)
    expected = torch.tensor([[0.0, 1.5, float("nan"), float("nan")]])
    torch.testing.assert_close(positions, expected, equal_nan=True)


def test_frame_i_sits_at_i_times_the_frame_shift_in_seconds():
    times = frame_times(torch.tensor([120_000]), 0.03)
    assert times[0, 100] == pytest.approx(3.0)
    assert times[0, -1] == pytest.approx(3599.97)


def test_in_float64_an_hour_of_frames_is_exact_and_float32_is_rounded_once():
    exact = torch.arange(120_000, dtype=torch.float64) * 3 / 100
    times = frame_times([120_000], 0.03, dtype=torch.float64)[0]
    torch.testing.assert_close(times, exact, rtol=1e-15, atol=0)
    assert frame_times([120_000], 0.03)[0].equal(exact.float())


def test_an_empty_batch_has_no_positions():
    assert token_positions([]).shape == (0, 0)
    assert token_positions([], 5).shape == (0, 5)
    assert frame_times(torch.zeros(0, dtype=torch.long), 0.01, 3).shape == (0, 3)


def test_the_grid_is_row_major_with_the_height_in_column_0():
    grid = patch_grid(2, 3)
    expected = torch.tensor([[-1.0, -1], [-1, 0], [-1, 1], [1, -1], [1, 0], [1, 1]])
    torch.testing.assert_close(grid, expected)


@given(st.integers(2, 64), st.integers(2, 64), st.floats(0.1, 4.0))
def test_each_axis_of_the_grid_is_linspace_over_the_extent(height, width, extent):
    grid = patch_grid(height, width, extent=extent).view(height, width, 2)
    rows = torch.linspace(-extent, extent, height)
    columns = torch.linspace(-extent, extent, width)
    torch.testing.assert_close(grid[:, 0, 0], rows, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(grid[0, :, 1], columns, atol=1e-6, rtol=1e-5)


def test_a_single_patch_sits_at_zero():
    assert patch_grid(1, 1).tolist() == [[0.0, 0.0]]
    assert patch_grid(1, 3)[:, 0].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: token_positions(torch.tensor([4]), 3), "max_length"),
        (lambda: token_positions(torch.tensor([-1]), 3), "lengths"),
        (lambda: token_positions(torch.tensor([1.5])), "lengths"),
        (lambda: token_positions(torch.tensor([[1]])), "lengths"),
        (lambda: token_positions([1], spacing=0.0), "spacing"),
        (lambda: token_positions([1], spacing=float("nan")), "spacing"),
        (lambda: frame_times([1], -0.01), "frame_shift"),
        (lambda: token_positions([1], 2.5), "max_length"),
        (lambda: patch_grid(0, 3), "height"),
        (lambda: patch_grid(2.5, 3), "height"),
        (lambda: patch_grid(2, 0), "width"),
        (lambda: patch_grid(2, 2, extent=float("inf")), "extent"),
    ],
)
def test_bad_input_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
