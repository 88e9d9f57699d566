"""What the modules really draw, read back from the embedding that they add.

Positions so small, or frequencies so low, that no phase leaves ±π: then the angle is the position.
"""

import math

import pytest
import torch
from scipy import stats

from cape_plugins import PositionalEmbedding1d, PositionalEmbedding2d, patch_grid
from cape_plugins.fused import add_sinusoid

NAN = math.nan
SLOW = 1e-3  # radians per unit: positions up to ±3000 can be read back


def angles(embedding: torch.Tensor) -> torch.Tensor:
    cosine, sine = embedding.double().chunk(2, dim=-1)
    return torch.atan2(sine, cosine)


def moved_on_line(batch: int, length: int, seed: int = 0, **settings) -> torch.Tensor:
    """(B, N) positions that a module in training made of 0 … N - 1."""
    module = PositionalEmbedding1d(2, "cape", frequency_scale=SLOW, **settings)
    content = torch.zeros(batch, length, 2, dtype=torch.float64)
    positions = torch.arange(length, dtype=torch.float64)[None]
    out = module(content, positions, generator=torch.Generator().manual_seed(seed))
    return angles(out)[..., 0] / SLOW


def moved_on_plane(batch: int, grid: tuple[int, int], seed: int = 0, **settings) -> torch.Tensor:
    """(B, N, 2) positions that a module in training made of a grid, as multiples of its extent."""
    extent = 0.01
    for name in ("max_global_shift", "max_local_shift"):
        if settings.get(name) is not None:
            settings[name] = extent * settings[name]
    module = PositionalEmbedding2d(4, "cape", extent=extent, **settings)
    content = torch.zeros(batch, grid[0] * grid[1], 4, dtype=torch.float64)
    first, second = angles(module(content, grid, torch.Generator().manual_seed(seed))).unbind(-1)
    # phases of the listing: π · 10^(1/2) · x and π · 10 · (x cos 1 + y sin 1)
    x = first / (math.pi * math.sqrt(10))
    y = (second / (10 * math.pi) - x * math.cos(1)) / math.sin(1)
    return torch.stack([x, y], dim=-1) / extent


def assert_uniform(values: torch.Tensor, bound: float) -> None:
    assert (
        stats.kstest(values.flatten().numpy(), stats.uniform(-bound, 2 * bound).cdf).pvalue > 1e-3
    )


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1].abs().item()


def test_the_global_shift_on_a_line_is_uniform_and_one_per_sample():
    moved = moved_on_line(4000, 3, max_global_shift=50.0) - torch.tensor([-1.0, 0, 1])
    torch.testing.assert_close(moved, moved[:, :1].expand_as(moved), atol=1e-4, rtol=0)
    assert_uniform(moved[:, 0], 50.0)


def test_the_global_scale_on_a_line_is_log_uniform_and_one_per_sample():
    moved = moved_on_line(4000, 3, max_global_scale=1.4)
    torch.testing.assert_close(moved[:, 0], -moved[:, 2], atol=1e-4, rtol=0)
    assert_uniform(moved[:, 2].log(), math.log(1.4))


def test_the_local_shift_on_a_line_is_uniform_and_independent_per_token():
    noise = moved_on_line(200, 50, max_local_shift=0.5) - (torch.arange(50) - 24.5)
    assert_uniform(noise, 0.5)
    assert correlation(noise[:, 1:], noise[:, :-1]) < 0.05
    assert correlation(noise[1:], noise[:-1]) < 0.05


@pytest.mark.parametrize("ndim", [1, 2])
def test_the_local_shift_knows_nothing_of_the_global_one(ndim):
    if ndim == 1:
        moved = moved_on_line(2000, 200, max_global_shift=5.0, max_local_shift=0.5)[..., None]
        bare = (torch.arange(200.0) - 99.5)[:, None]
    else:
        settings = dict(max_global_shift=0.5, max_local_shift=0.1, max_global_scale=1.0)
        moved, bare = moved_on_plane(2000, (10, 20), **settings), patch_grid(10, 20)
    moved = moved - bare
    shift = moved.mean(dim=1, keepdim=True)  # Δ, but for the mean of 200 ε
    local = moved - shift
    for axis in range(ndim):
        for other in range(ndim):
            for token in range(0, 200, 7):
                assert correlation(local[:, token, axis], shift[:, 0, other]) < 0.12


def test_without_a_generator_the_global_one_draws_the_same_distributions():
    torch.manual_seed(0)
    module = PositionalEmbedding1d(
        2, max_global_shift=50.0, max_local_shift=20.0, frequency_scale=SLOW, mean_normalize=False
    )
    content = torch.zeros(2000, 20, 2, dtype=torch.float64)
    moved = angles(module(content, torch.zeros(1, 20, dtype=torch.float64)))[..., 0] / SLOW
    shift = module.draw(4000, torch.device("cpu")).shift
    assert_uniform(shift, 50.0)
    assert 69 < moved.max() <= 70
    assert -70 <= moved.min() < -69
    assert moved.std().item() == pytest.approx(math.sqrt(50**2 / 3 + 20**2 / 3), rel=0.05)


def test_an_image_may_have_a_local_shift_of_its_own_along_each_axis():
    still = dict(max_global_shift=0.0, max_global_scale=1.0)
    noise = moved_on_plane(500, (4, 5), max_local_shift=0.2, **still) - patch_grid(4, 5)
    for axis in range(2):
        assert_uniform(noise[..., axis], 0.2)
    module = PositionalEmbedding2d(4, max_local_shift=(0.002, 0.005), extent=0.01, **still)
    out = module(torch.zeros(500, 1, 4, dtype=torch.float64), (1, 1))
    first, second = angles(out).unbind(-1)
    x = first / (math.pi * math.sqrt(10))
    assert_uniform(x, 0.002)
    assert_uniform((second / (10 * math.pi) - x * math.cos(1)) / math.sin(1), 0.005)


def test_the_scale_knows_nothing_of_the_shift():
    moved = moved_on_line(4000, 3, max_global_shift=50.0, max_global_scale=1.4)
    scale = (moved[:, 2] - moved[:, 0]) / 2
    shift = moved[:, 1] / scale
    assert_uniform(scale.log(), math.log(1.4))
    assert_uniform(shift, 50.0)
    assert correlation(scale, shift) < 0.06


def test_each_axis_of_an_image_has_its_own_uniform_global_shift():
    settings = dict(max_global_shift=0.5, max_local_shift=0.0, max_global_scale=1.0)
    moved = moved_on_plane(4000, (2, 3), **settings) - patch_grid(2, 3)
    torch.testing.assert_close(moved, moved[:, :1].expand_as(moved), atol=1e-4, rtol=0)
    for axis in range(2):
        assert_uniform(moved[:, 0, axis], 0.5)
    assert correlation(moved[:, 0, 0], moved[:, 0, 1]) < 0.06


def test_the_axes_of_an_image_share_a_log_uniform_global_scale():
    settings = dict(max_global_shift=0.0, max_local_shift=0.0, max_global_scale=1.4)
    moved = moved_on_plane(4000, (2, 2), **settings)
    scale = moved / patch_grid(2, 2)
    torch.testing.assert_close(scale, scale[:, :1, :1].expand_as(scale), atol=1e-4, rtol=0)
    assert_uniform(scale[:, 0, 0].log(), math.log(1.4))


def test_the_defaults_of_an_image_are_the_papers():
    grid = (4, 10)
    moved = moved_on_plane(4000, grid, max_global_shift=0.5, max_local_shift=None)
    scale = (moved[:, -1] - moved[:, 0]) / 2  # λ · (1 + half a difference of two ε)
    assert 1.4 < scale.max() <= 1.4 * 1.25
    still = moved_on_plane(500, grid, max_global_shift=0.0, max_global_scale=1.0)
    noise = still - patch_grid(*grid)
    for axis, patches in enumerate(grid):
        assert_uniform(noise[..., axis], 1 / patches)  # in multiples of the extent
    assert correlation(noise[..., 0], noise[..., 1]) < 0.05
    assert correlation(noise[:, 1:], noise[:, :-1]) < 0.05


@pytest.mark.parametrize("extent", [0.5, 1.0, 2.0])
def test_neighbouring_patches_keep_their_order_at_every_extent(extent):
    module = PositionalEmbedding2d(
        4, max_global_shift=0.0, max_global_scale=1.0, extent=extent / 100
    )
    out = module(torch.zeros(500, 14, 4, dtype=torch.float64), (14, 1))
    along_height = angles(out)[..., 0]
    assert (along_height.diff(dim=1) > 0).all()


def test_images_of_their_own_grids_get_their_own_local_shift():
    module = PositionalEmbedding2d(4, max_global_shift=0.0, max_global_scale=1.0, extent=0.01)
    grids = torch.tensor([[[2, 1]], [[8, 1]]])
    content, positions = torch.zeros(2, 4000, 4, dtype=torch.float64), torch.zeros(2, 4000, 2)
    out = module.forward_at(content, positions, grids, torch.Generator().manual_seed(0))
    noise = angles(out)[..., 0] / (math.pi * math.sqrt(10)) / 0.01
    assert_uniform(noise[0], 1 / 2)
    assert_uniform(noise[1], 1 / 8)


def test_forward_at_adds_at_the_positions_given_and_nothing_at_padding():
    module = PositionalEmbedding2d(8).eval()
    content, positions = torch.randn(2, 5, 8), torch.rand(2, 5, 2)
    positions[1, 3:] = NAN
    out = module.forward_at(content, positions, torch.tensor([[[2, 3]], [[1, 3]]]))
    torch.testing.assert_close(out, add_sinusoid(content, positions))
    assert torch.equal(out[1, 3:], content[1, 3:])
    shared = module.forward_at(content, positions[:1], torch.ones(1, 1, 2))
    torch.testing.assert_close(shared, add_sinusoid(content, positions[:1]))
    with pytest.raises(ValueError, match=r"needs positions \[2, 5, 2\], got \[2, 4, 2\]"):
        module.forward_at(content, positions[:, :4], torch.ones(2, 1, 2))
    with pytest.raises(ValueError, match="a table of one grid"):
        PositionalEmbedding2d(8, "abspos", grid=(2, 2)).forward_at(
            content, positions, torch.ones(2, 1, 2)
        )


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # fused and plain
def test_a_patch_without_one_of_its_coordinates_is_padding(missing, dtype):
    content, positions = torch.randn(1, 3, 8, dtype=dtype), torch.rand(1, 3, 2)
    positions[0, 1, missing] = NAN
    out = add_sinusoid(content, positions)
    assert torch.equal(out[0, 1], content[0, 1])
    assert not torch.isclose(out[0, [0, 2]], content[0, [0, 2]]).all()
