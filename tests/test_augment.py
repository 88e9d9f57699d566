"""CAPE's augmentation: what is drawn, in which order it is applied, what stays."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cape_plugins import (
    Augmentation,
    DistanceAugmentation,
    Draw,
    Positions,
    patch_grid,
    token_positions,
)
from cape_support import cape, seeded

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


def test_shift_then_scale_so_that_scale_multiplies_the_shift():
    draw = Draw(shift=torch.tensor([[10.0]]), scale=torch.tensor([2.0]))
    result = moved(cape(max_global_shift=10.0), token_positions([3]), draw)
    assert result.tolist() == [[18.0, 20.0, 22.0]]  # ((-1, 0, 1) + 10) · 2


def test_each_axis_has_its_own_centre_and_shift_and_they_share_the_scale():
    positions = torch.tensor([[[0.0, 10.0], [2.0, 30.0]]])
    draw = Draw(shift=torch.tensor([[1.0, -1.0]]), scale=torch.tensor([3.0]))
    result = moved(cape(), positions, draw)
    assert result.tolist() == [[[0.0, -33.0], [6.0, 27.0]]]


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


def test_the_mean_is_taken_in_float64():
    positions = torch.arange(100_001)[None] * torch.tensor(0.1)
    exact = positions.double() - positions.double().mean()
    assert (moved(cape(), positions).double() - exact).abs().max() < 5e-4
    # in float32 neighbours of 1.7e9, the time of day in seconds, are 128 apart
    steps = torch.arange(1000, dtype=torch.float64)[None]
    found = moved(cape(), 1.7e9 + 0.03 * steps)
    torch.testing.assert_close(found, 0.03 * (steps - 499.5), rtol=0, atol=1e-3)


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
    for count in (-1, 2.5, True):
        with pytest.raises(ValueError, match="batch_size"):
            cape().draw(count)
    assert cape().draw(0, 2).shift.shape == (0, 2)
    three_axes = cape(max_local_shift=(1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="max_local_shift"):
        three_axes.in_training(torch.zeros(2, 3, 2), 2)


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


# What is drawn


def trained(positions: torch.Tensor, batch: int, local=None, **options) -> torch.Tensor:
    """(B, N, axes) positions that cape in training made of the positions (1, N[, 2])."""
    options = {"max_global_shift": 0.0, "max_local_shift": 0.0, **options}
    module = Positions("cape", dim=4, axes=positions.ndim - 1, **options)
    return module.augment(positions, batch, generator=seeded(), max_local_shift=local)


def line(length: int) -> torch.Tensor:
    return torch.arange(length, dtype=torch.float64)[None]


def plane(height: int, width: int) -> torch.Tensor:
    return patch_grid(height, width)[None].double()


def assert_uniform(values: torch.Tensor, bound: float) -> None:
    found = stats.kstest(values.flatten().numpy(), stats.uniform(-bound, 2 * bound).cdf)
    assert found.pvalue > 1e-3


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1].abs().item()


@pytest.mark.parametrize(("axes", "bound"), [(1, 50.0), (2, 0.5)])
def test_each_sample_has_one_scale_for_all_axes_and_a_shift_for_each(axes, bound):
    positions = line(3) if axes == 1 else plane(2, 3)
    out = trained(positions, 4000, max_global_shift=bound, max_global_scale=1.4)
    scale = (out[:, -1:, -1:] - out[:, :1, -1:]) / 2  # (4000, 1, 1)
    shift = out.mean(dim=1, keepdim=True) / scale  # (4000, 1, axes)
    centred = positions.view(1, -1, axes) - positions.view(1, -1, axes).mean(dim=1)
    torch.testing.assert_close(out, (centred + shift) * scale, atol=1e-4, rtol=0)
    assert_uniform(scale.log(), math.log(1.4))
    for axis in range(axes):
        assert_uniform(shift[..., axis], bound)
        assert correlation(scale, shift[..., axis]) < 0.06
    assert axes == 1 or correlation(shift[..., 0], shift[..., 1]) < 0.06


@pytest.mark.parametrize("axes", [1, 2])
def test_the_local_shift_is_independent_per_token_and_knows_nothing_of_the_global_one(axes):
    positions = line(200) if axes == 1 else plane(10, 20)
    out = trained(positions, 2000, max_global_shift=5.0, max_local_shift=0.5)
    places = positions.view(1, 200, axes)
    out = out - (places - places.mean(dim=1))
    shift = out.mean(dim=1, keepdim=True)  # Δ, but for the mean of 200 ε
    local = out - shift
    for axis, other, token in itertools.product(range(axes), range(axes), range(0, 200, 7)):
        assert correlation(local[:, token, axis], shift[:, 0, other]) < 0.12
    assert correlation(local[:, 1:], local[:, :-1]) < 0.05
    assert correlation(local[1:], local[:-1]) < 0.05


@pytest.mark.parametrize("given", ["options", "forward", "tensor", "each image"])
def test_an_image_may_have_a_local_shift_of_its_own_along_each_axis(given):
    local, grid = (0.2, 0.5), plane(4, 5)
    options = {"options": dict(max_local_shift=local), "forward": dict(max_local_shift=9.0)}
    now = {"forward": local, "tensor": torch.tensor(local)}
    if given == "each image":  # a padded batch of NaFlexVit: (B, 1, 2), half of its spacing
        grid, batch = torch.zeros(1, 4000, 2), 2
        bounds = now[given] = torch.tensor([[[1 / 2, 1.0]], [[1 / 8, 1 / 16]]])
    else:
        batch, bounds = 500, torch.tensor(local).expand(500, 1, 2)
    noise = trained(grid, batch, now.get(given), **options.get(given, {})) - grid
    for axis in range(2):
        assert_uniform(noise[..., axis] / bounds[..., axis], 1.0)
    assert correlation(noise[..., 0], noise[..., 1]) < 0.05
