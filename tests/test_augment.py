"""CAPE's augmentation: what is drawn, in which order it is applied, what stays."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cape_plugins import Augmentation, DistanceAugmentation, Draw, token_positions
from cape_support import cape, seeded

pytestmark = pytest.mark.usefixtures("both_ways")

NAN = float("nan")


def moved(augmentation: Augmentation, positions: torch.Tensor, draw=None, **options):
    """Positions (B, N[, axes]) in evaluation, or in training with the draw."""
    wide = positions if positions.ndim == 3 else positions[..., None]
    if draw is None:
        return augmentation.in_evaluation(wide).view(positions.shape)
    return augmentation.in_training(wide, len(wide), draw, **options).view(positions.shape)


def test_without_a_draw_only_the_mean_of_the_real_tokens_is_subtracted():
    augmentation = cape(max_global_shift=5.0, max_local_shift=0.5, max_global_scale=2.0)
    positions = token_positions([5, 3])
    expected = torch.tensor([[-2.0, -1, 0, 1, 2], [-1, 0, 1, NAN, NAN]])
    torch.testing.assert_close(moved(augmentation, positions), expected, equal_nan=True)


def test_without_mean_normalize_and_draw_positions_stay_as_given():
    positions = token_positions([4, 2])
    result = moved(cape(mean_normalize=False), positions)
    torch.testing.assert_close(result, positions, equal_nan=True)


def test_shift_then_scale_so_that_scale_multiplies_the_shift():
    draw = Draw(shift=torch.tensor([[10.0]]), scale=torch.tensor([2.0]))
    result = moved(cape(max_global_shift=10.0), token_positions([3]), draw)
    assert result.tolist() == [[18.0, 20.0, 22.0]]  # ((-1, 0, 1) + 10) · 2


def test_each_axis_has_its_own_centre_and_shift_and_they_share_the_scale():
    positions = torch.tensor([[[0.0, 10.0], [2.0, 30.0]]])
    draw = Draw(shift=torch.tensor([[1.0, -1.0]]), scale=torch.tensor([3.0]))
    result = moved(cape(), positions, draw)
    assert result.tolist() == [[[0.0, -33.0], [6.0, 27.0]]]


def test_two_calls_with_one_draw_share_shift_and_scale_but_not_the_local_shift():
    augmentation = cape(
        max_global_shift=100.0, max_local_shift=0.5, max_global_scale=2.0, mean_normalize=False
    )
    draw = augmentation.draw(4, generator=seeded())
    zeros = torch.zeros(4, 1000)
    first = moved(augmentation, zeros, draw, generator=seeded(1))
    second = moved(augmentation, zeros, draw, generator=seeded(2))
    assert not torch.equal(first, second)
    middle = (draw.shift * draw.scale[:, None])[:, 0]
    torch.testing.assert_close(first.mean(1), middle, atol=0.1, rtol=0)
    torch.testing.assert_close(second.mean(1), middle, atol=0.1, rtol=0)


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=5),
    padding=st.integers(0, 7),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_padding_stays_nan_and_never_changes_a_real_token(lengths, padding, dtype):
    augmentation = cape(max_global_shift=5.0, max_global_scale=2.0)
    draw = augmentation.draw(len(lengths), generator=seeded())
    positions = token_positions(lengths, max(lengths) + padding).to(dtype)
    result = moved(augmentation, positions, draw)
    assert result.dtype == dtype
    assert torch.equal(result.isnan(), positions.isnan())
    for i, length in enumerate(lengths):
        alone = moved(
            augmentation, positions[i : i + 1, :length], Draw(*(d[i : i + 1] for d in draw))
        )
        torch.testing.assert_close(result[i, :length], alone[0], rtol=0, atol=1e-6)


def test_the_mean_of_many_tokens_is_taken_in_float64():
    positions = torch.arange(100_001)[None] * torch.tensor(0.1)
    exact = positions.double() - positions.double().mean()
    assert (moved(cape(), positions).double() - exact).abs().max() < 5e-4


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("max_global_shift", value) for value in (-1.0, NAN, "5")),
        *(("max_local_shift", value) for value in (math.inf, (0.1, -0.1), ())),
        ("max_global_scale", 0.9),
        ("mean_normalize", "no"),
    ],
)
def test_options_out_of_range_are_refused_at_construction(option, value):
    with pytest.raises(ValueError, match=option):
        cape(**{option: value})


def test_draws_that_do_not_fit_say_which_shape_is_needed():
    draw = cape().draw(2)
    for other in (draw._replace(shift=torch.zeros(2, 2)), draw._replace(scale=torch.ones(3))):
        with pytest.raises(ValueError, match="shift"):
            cape().in_training(torch.zeros(2, 3, 1), 2, other)
    three_axes = cape(max_local_shift=(1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="max_local_shift"):
        three_axes.in_training(torch.zeros(2, 3, 2), 2)


@pytest.mark.parametrize("count", [-1, 2.5, True])
def test_draws_are_for_a_number_of_samples(count):
    with pytest.raises(ValueError, match="batch_size"):
        cape().draw(count)
    assert cape().draw(0, 2).shift.shape == (0, 2)


@pytest.mark.parametrize(
    "shift", [NAN, -0.1, math.inf, (0.1, NAN), torch.tensor([0.1, NAN]), torch.tensor(-0.1)]
)
def test_the_local_shift_of_a_call_is_checked_as_that_of_the_options(shift):
    with pytest.raises(ValueError, match="max_local_shift"):
        cape().in_training(torch.zeros(2, 3, 2), 2, max_local_shift=shift)


def test_distances_see_no_global_shift_so_their_augmentation_draws_none():
    draw = DistanceAugmentation(max_local_shift=0.0, max_global_scale=1.4).draw(100, 2)
    assert not draw.shift.any()
    assert draw.scale.std() > 0
    with pytest.raises(TypeError, match="max_global_shift"):
        DistanceAugmentation(max_local_shift=0.0, max_global_shift=1.0)
