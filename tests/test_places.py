"""Positions of tokens, frames and patches; NaN marks padding."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cape_plugins import frame_times, patch_grid, token_positions

NAN = math.nan


@pytest.mark.parametrize(
    ("given", "options", "expected"),
    [
        (torch.tensor([3, 1, 0]), {}, [[0.0, 1, 2], [0, NAN, NAN], [NAN, NAN, NAN]]),
        ([2], dict(max_length=4, spacing=1.5), [[0.0, 1.5, NAN, NAN]]),
        ([], {}, torch.zeros(0, 0)),
        (torch.zeros(0, dtype=torch.long), dict(max_length=5), torch.zeros(0, 5)),
    ],
)
def test_tokens_sit_at_their_index_and_padding_is_nan(given, options, expected):
    positions, expected = token_positions(given, **options), torch.as_tensor(expected)
    torch.testing.assert_close(positions, expected, rtol=0, atol=0, equal_nan=True)
    assert positions.dtype == torch.float32
    assert token_positions([2], 2, device="meta").device.type == "meta"


def test_in_float64_an_hour_of_frames_is_exact_and_float32_is_rounded_once():
    exact = torch.arange(120_000, dtype=torch.float64) * 3 / 100
    times = frame_times([120_000], 0.03, dtype=torch.float64)[0]
    torch.testing.assert_close(times, exact, rtol=1e-15, atol=0)
    assert frame_times([120_000], 0.03)[0].equal(exact.float())


def test_the_grid_is_row_major_with_the_height_in_column_0_and_one_patch_at_zero():
    assert patch_grid(2, 3).tolist() == [[-1, -1], [-1, 0], [-1, 1], [1, -1], [1, 0], [1, 1]]
    assert patch_grid(1, 3).tolist() == [[0, -1], [0, 0], [0, 1]]


@given(st.integers(2, 64), st.integers(2, 64), st.floats(0.1, 4.0))
def test_each_axis_of_the_grid_is_linspace_over_the_extent(height, width, extent):
    grid = patch_grid(height, width, extent=extent).view(height, width, 2)
    rows = torch.linspace(-extent, extent, height)
    columns = torch.linspace(-extent, extent, width)
    torch.testing.assert_close(grid[:, 0, 0], rows, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(grid[0, :, 1], columns, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: token_positions(torch.tensor([4]), 3), "max_length"),
        (lambda: token_positions(torch.tensor([-1]), 3), "lengths"),
        (lambda: token_positions(torch.tensor([2.0])), "lengths"),
        (lambda: token_positions(torch.tensor([True])), "lengths"),
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
