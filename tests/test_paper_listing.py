"""Equality with the paper's NumPy listing (appendix), fed the same draws.

The arithmetic below is transcribed from the paper's formulas, in float64.
"""

import numpy as np
import pytest
import torch

from cape_plugins import Draw, patch_grid, sinusoid_1d, sinusoid_2d, token_positions
from cape_support import cape, seeded

TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-12}
DTYPES = [torch.float32, torch.float64]


def listing_augment(positions, shift, local_shift, scale):
    """(B, N) or (B, N, 2), centred over the real tokens, + Δ, + ε, × λ."""
    positions = positions - np.nanmean(positions, axis=1, keepdims=True)
    return (positions + shift + local_shift) * scale


def listing_sinusoid_1d(positions, d_model, scale=1.0):
    k = np.arange(d_model // 2)
    phase = positions[..., None] * scale * 10000.0 ** (-2 * k / d_model)
    return np.nan_to_num(np.concatenate([np.cos(phase), np.sin(phase)], axis=-1))


def listing_sinusoid_2d(x, y, d_model):
    half = d_model // 2
    rho = 10.0 ** (np.arange(1, half + 1) / half)
    w_x, w_y = rho * np.cos(np.arange(half)), rho * np.sin(np.arange(half))
    phase = np.pi * (w_x * x[..., None] + w_y * y[..., None])
    return np.concatenate([np.cos(phase), np.sin(phase)], axis=-1)


def local_shift(positions, bounds):
    """The ε that the augmentation draws from a generator seeded with 1."""
    noise = torch.rand(positions.shape, dtype=positions.dtype, generator=seeded(1)) * 2 - 1
    return noise * torch.tensor(bounds, dtype=torch.float64).to(positions.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 30.0], ids=["text", "audio"])
def test_1d_equals_the_listing(dtype, scale):
    rng = np.random.default_rng(0)
    lengths = [50, 31, 2]
    positions = token_positions(lengths).to(dtype) / scale
    augmentation = cape(max_local_shift=0.5 / scale)
    shift = rng.uniform(-5 / scale, 5 / scale, (3, 1))
    lam = np.exp(rng.uniform(-np.log(1.4), np.log(1.4), 3))
    draw = Draw(torch.tensor(shift, dtype=dtype), torch.tensor(lam, dtype=dtype))
    local = local_shift(positions, 0.5 / scale)
    assert local.abs().max() > 0.4 / scale

    augmented = augmentation.in_training(positions[..., None], 3, draw, generator=seeded(1))
    ours = sinusoid_1d(augmented[..., 0], 64, frequency_scale=scale)
    theirs = listing_sinusoid_1d(
        listing_augment(positions.double().numpy(), shift, local.double().numpy(), lam[:, None]),
        64,
        scale,
    )
    assert ours.dtype == dtype
    assert np.abs(ours.double().numpy() - theirs).max() < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("grid", [(14, 14), (7, 24)])
def test_2d_equals_the_listing(dtype, grid):
    rng = np.random.default_rng(0)
    height, width = grid
    # patch_grid is float32; the listing gets the same grid, so this tests what follows from it
    positions = patch_grid(height, width).to(dtype).expand(4, -1, -1)
    augmentation = cape(max_local_shift=(1 / height, 1 / width))
    shift = rng.uniform(-0.5, 0.5, (4, 2))
    lam = np.exp(rng.uniform(-np.log(1.4), np.log(1.4), 4))
    draw = Draw(torch.tensor(shift, dtype=dtype), torch.tensor(lam, dtype=dtype))
    local = local_shift(positions, (1 / height, 1 / width))

    augmented = augmentation.in_training(positions, 4, draw, generator=seeded(1))
    ours = sinusoid_2d(augmented, 64)
    expected = listing_augment(
        positions.double().numpy(), shift[:, None], local.double().numpy(), lam[:, None, None]
    )
    theirs = listing_sinusoid_2d(expected[..., 0], expected[..., 1], 64)
    assert ours.dtype == dtype
    assert np.abs(ours.double().numpy() - theirs).max() < TOLERANCE[dtype]
