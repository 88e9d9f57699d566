"""Rotary attention against rotary-embedding-torch and timm, which no one here wrote."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cape_plugins import patch_grid
from cape_plugins.attention import AttentionSettings
from cape_plugins.rotary import MixedRotaryAttention, RotaryAttention

KINDS = [(RotaryAttention, 1), (RotaryAttention, 2), (MixedRotaryAttention, 2)]


def sizes(dim: int = 8, axes: int = 1, heads: int = 3, scale: float = 1.0) -> AttentionSettings:
    return AttentionSettings(head_dim=dim, heads=heads, axes=axes, frequency_scale=scale)


def rotated(kind, axes: int, x: torch.Tensor, positions: torch.Tensor, **settings) -> torch.Tensor:
    settings = sizes(x.shape[3], axes, x.shape[1], **settings)
    return kind(settings).embed(x, kind.prepare(positions, settings))


def inputs(tokens: int = 6, dim: int = 8, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(3, 2, 3, tokens, dim, dtype=dtype)


def places(axes: int, tokens: int = 6) -> torch.Tensor:
    return torch.randn(2, tokens, *([2] if axes == 2 else []))


def interleaved(x: torch.Tensor) -> torch.Tensor:
    """Channel k beside channel k + d / 2, where others have the pairs that turn together."""
    return x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("first", [0.0, -7.25])
def test_on_a_line_it_is_rotary_embedding_torch(first, scale):
    """Version 0.9.1: theta 10 000, pairs of neighbouring channels."""
    reference = pytest.importorskip("rotary_embedding_torch")
    x, positions = inputs(dim=16)[0], first + torch.arange(6.0) * 1.5
    rotate = reference.RotaryEmbedding(dim=16)
    expected = reference.apply_rotary_emb(rotate(positions), interleaved(x))
    found = rotated(RotaryAttention, 1, x, positions[None] / scale, scale=scale)
    torch.testing.assert_close(interleaved(found), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 0.2])
@pytest.mark.parametrize(("height", "width"), [(14, 14), (3, 5)])
def test_on_a_plane_it_is_timms_dinov3(height, width, scale):
    """timm 1.0.31; DINOv3's centres end half a patch before the image's border, ours on it."""
    sincos = pytest.importorskip("timm.layers.pos_embed_sincos")
    x = inputs(height * width, 16)[0]
    embed = sincos.RotaryEmbeddingDinoV3(16, temperature=100.0, rotate_half=True)
    expected = sincos.apply_rot_embed_cat(x, embed.get_embed([height, width]), half=True)
    border = torch.tensor([(height - 1) / height, (width - 1) / width]) / scale
    grid = patch_grid(height, width)[None] * border
    found = rotated(RotaryAttention, 2, x, grid, scale=scale)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_mixed_frequencies_are_timms_of_rope_vit():
    """timm 1.0.31, whose unit is a patch."""
    sincos = pytest.importorskip("timm.layers.pos_embed_sincos")
    attention, x = MixedRotaryAttention(sizes(16, 2)), inputs(4 * 5, 16)[0]
    patches = torch.cartesian_prod(torch.arange(4.0), torch.arange(5.0))
    given = 2 * math.pi * attention.frequencies
    embed = sincos.get_mixed_freqs(given, patches[:, 0], patches[:, 1])  # (heads, N, 2 · 16)
    expected = sincos.apply_rot_embed_cat(interleaved(x), embed)
    found = interleaved(attention.embed(x, patches[None]))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)


def test_mixed_frequencies_begin_as_timms():
    sincos = pytest.importorskip("timm.layers.pos_embed_sincos")
    attention = MixedRotaryAttention(sizes(16, 2, heads=500))
    reference = sincos.init_random_2d_freqs(16, 1, 500)[:, 0]
    for _ in range(2):
        frequencies = attention.frequencies.detach().clone()
        for each in (frequencies, reference):  # half along a direction, half across
            along, across = each.chunk(2, dim=2)
            product = (along * across).sum(dim=0)
            torch.testing.assert_close(product, torch.zeros(500, 4), atol=1e-6, rtol=0)
        torch.testing.assert_close(frequencies.norm(dim=0), reference.norm(dim=0))
        direction = torch.atan2(frequencies[1, :, 0], frequencies[0, :, 0])
        assert direction.sin().mean().abs() < 0.15
        assert direction.cos().mean().abs() < 0.15
        attention.reset_parameters()
        assert not torch.equal(attention.frequencies, frequencies)


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(KINDS), st.floats(-3, 3, allow_subnormal=False), st.integers(0, 2**31))
def test_only_distances_matter(kind, shift, seed):
    torch.manual_seed(seed)
    (kind, axes), (query, key, value) = kind, inputs()
    attention, positions = kind(sizes(8, axes)), places(axes)
    here, there = (
        attention(query, key, value, kind.prepare(given, sizes(8, axes)))[0]
        for given in (positions, positions + shift)
    )
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "axes"), KINDS)
def test_a_token_without_a_position_is_not_turned_and_the_others_are(kind, axes):
    x, positions = inputs()[0], places(axes)
    for missing in range(axes):  # a position on one axis alone is none
        given = positions.clone()
        given.view(2, 6, axes)[1, 2, missing] = math.nan
        out = rotated(kind, axes, x, given)
        assert torch.equal(out[1, :, 2], x[1, :, 2])
        assert not torch.isclose(out[0], x[0]).all(dim=-1).any()
        torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize(("kind", "axes"), KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(kind, axes, dtype):
    attention, x = kind(sizes(8, axes)), inputs()[0].to(dtype)
    prepared = kind.prepare(places(axes) * 1000, sizes(8, axes))
    assert prepared.dtype == torch.float32
    exact = attention.embed(x.float(), prepared)
    assert torch.equal(attention.embed(x, prepared), exact.to(dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(attention.embed(x, prepared), exact.to(dtype))


def test_positions_in_float64_are_used():
    seconds = 3600 + torch.arange(6, dtype=torch.float64) / 100
    exact = (seconds * 30).cos().float()
    table = RotaryAttention.prepare(seconds[None], sizes(scale=30.0))
    torch.testing.assert_close(table[0, :, 0], exact, rtol=0, atol=2e-7)


@pytest.mark.parametrize(
    ("kind", "dim", "axes", "message"),
    [
        (RotaryAttention, 7, 1, "1 axis need heads of a multiple of 2 channels, got 7"),
        (RotaryAttention, 6, 2, "2 axes need heads of a multiple of 4 channels, got 6"),
        (MixedRotaryAttention, 10, 2, "a multiple of 4 channels, got 10: change the width"),
    ],
)
def test_channels_that_do_not_split_are_refused(kind, dim, axes, message):
    with pytest.raises(ValueError, match=message):
        kind(sizes(dim, axes))
