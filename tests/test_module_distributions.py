"""What the modules really draw, read back from the embedding that they add.

Positions so small, or frequencies so low, that no phase leaves ±π: then the angle is the position.
"""

import itertools
import math

import pytest
import torch
from scipy import stats

from cape_plugins import Positions, patch_grid

pytestmark = pytest.mark.usefixtures("both_ways")

SLOW = 1e-3  # of all frequencies: positions up to ±3000 can be read back


def moved(
    positions: torch.Tensor,
    batch: int,
    *,
    generator: torch.Generator | None = None,
    local: float | tuple[float, ...] | torch.Tensor | None = None,
    **options,
) -> torch.Tensor:
    """(B, N[, 2]) positions that cape in training made of the positions (1, N[, 2])."""
    axes = positions.ndim - 1
    options = {"max_global_shift": 0.0, "max_local_shift": 0.0, **options}
    module = Positions("cape", dim=2 * axes, axes=axes, frequency_scale=SLOW, **options)
    content = torch.zeros(batch, positions.shape[1], 2 * axes, dtype=torch.float64)
    generator = generator or torch.Generator().manual_seed(0)
    out, _ = module(content, positions, generator=generator, max_local_shift=local)
    cosine, sine = out.chunk(2, dim=-1)
    angles = torch.atan2(sine, cosine) / SLOW
    if axes == 1:
        return angles[..., 0]
    # phases of the listing: π · 10^(1/2) · x and π · 10 · (x cos 1 + y sin 1)
    x = angles[..., 0] / (math.pi * math.sqrt(10))
    y = (angles[..., 1] / (10 * math.pi) - x * math.cos(1)) / math.sin(1)
    return torch.stack([x, y], dim=-1)


def line(length: int) -> torch.Tensor:
    return torch.arange(length, dtype=torch.float64)[None]


def plane(height: int, width: int) -> torch.Tensor:
    return patch_grid(height, width)[None].double()


def assert_uniform(values: torch.Tensor, bound: float) -> None:
    found = stats.kstest(values.flatten().numpy(), stats.uniform(-bound, 2 * bound).cdf)
    assert found.pvalue > 1e-3


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1].abs().item()


def test_on_a_line_global_shift_and_scale_are_independent_and_one_per_sample():
    out = moved(line(3), 4000, max_global_shift=50.0, max_global_scale=1.4)
    scale = (out[:, 2:] - out[:, :1]) / 2
    shift = out[:, 1:2] / scale
    expected = (torch.tensor([-1.0, 0, 1]) + shift) * scale
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=0)
    assert_uniform(scale.log(), math.log(1.4))
    assert_uniform(shift, 50.0)
    assert correlation(scale, shift) < 0.06


def test_the_local_shift_on_a_line_is_uniform_and_independent_per_token():
    noise = moved(line(50), 200, max_local_shift=0.5) - (torch.arange(50) - 24.5)
    assert_uniform(noise, 0.5)
    assert correlation(noise[:, 1:], noise[:, :-1]) < 0.05
    assert correlation(noise[1:], noise[:-1]) < 0.05


@pytest.mark.parametrize("axes", [1, 2])
def test_the_local_shift_knows_nothing_of_the_global_one(axes):
    positions = line(200) if axes == 1 else plane(10, 20)
    out = moved(positions, 2000, max_global_shift=5.0, max_local_shift=0.5)
    out = (out - (positions - positions.mean(dim=1, keepdim=True))).view(2000, 200, axes)
    shift = out.mean(dim=1, keepdim=True)  # Δ, but for the mean of 200 ε
    local = out - shift
    for axis, other, token in itertools.product(range(axes), range(axes), range(0, 200, 7)):
        assert correlation(local[:, token, axis], shift[:, 0, other]) < 0.12


@pytest.mark.parametrize("given", ["options", "forward", "tensor"])
def test_an_image_may_have_a_local_shift_of_its_own_along_each_axis(given):
    local, grid = (0.2, 0.5), plane(4, 5)
    if given == "options":
        noise = moved(grid, 500, max_local_shift=local) - grid
    elif given == "forward":
        noise = moved(grid, 500, max_local_shift=9.0, local=local) - grid
    else:
        noise = moved(grid, 500, local=torch.tensor(local)) - grid
    for axis in range(2):
        assert_uniform(noise[..., axis], local[axis])
    assert correlation(noise[..., 0], noise[..., 1]) < 0.05
    assert correlation(noise[:, 1:], noise[:, :-1]) < 0.05


def test_images_of_their_own_grids_get_their_own_local_shift():
    """A padded batch of NaFlexVit: (B, 1, 2), half the spacing of each image."""
    local = torch.tensor([[[1 / 2, 1.0]], [[1 / 8, 1 / 16]]])
    noise = moved(torch.zeros(1, 4000, 2), 2, local=local, mean_normalize=False)
    for image, axis in itertools.product(range(2), range(2)):
        assert_uniform(noise[image, :, axis], local[image, 0, axis].item())


def test_the_axes_of_an_image_share_the_global_scale_and_have_shifts_of_their_own():
    out = moved(plane(2, 3), 4000, max_global_shift=0.5, max_global_scale=1.4)
    scale = (out[:, -1:, 1:] - out[:, :1, 1:]) / 2  # (4000, 1, 1)
    shift = out.mean(dim=1, keepdim=True) / scale  # (4000, 1, 2)
    torch.testing.assert_close(out, (plane(2, 3) + shift) * scale, atol=1e-4, rtol=0)
    assert_uniform(scale.log(), math.log(1.4))
    for axis in range(2):
        assert_uniform(shift[..., axis], 0.5)
    assert correlation(shift[..., 0], shift[..., 1]) < 0.06
