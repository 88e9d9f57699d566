"""Rotary attention against rotary-embedding-torch and timm, which no one here wrote."""

import math

import pytest
import torch

from cape_plugins import Given, Sizes, patch_grid
from cape_plugins.rotary import Rotary


def rotary(axes: int, dim: int = 8, scale: float = 1.0, **options) -> Rotary:
    return Rotary(Sizes(dim=3 * dim, heads=3, axes=axes), frequency_scale=scale, **options)


def prepared(module: Rotary, positions: torch.Tensor) -> torch.Tensor:
    """Of positions (B, N) or (B, N, 2)."""
    if module.sizes.axes == 1:
        positions = positions[..., None]
    return module.prepare(positions, positions, None, torch.float32).queries


def rotated(axes: int, x: torch.Tensor, positions: torch.Tensor, scale=1.0) -> torch.Tensor:
    module = rotary(axes, x.shape[3], scale)
    return module.embed(x, prepared(module, positions))


def inputs(tokens: int = 6, dim: int = 8) -> torch.Tensor:
    return torch.randn(3, 2, 3, tokens, dim)


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
    found = rotated(1, x, positions[None] / scale, scale)
    torch.testing.assert_close(interleaved(found), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("height", "width", "scale", "base"),
    [(14, 14, 1.0, None), (3, 5, 0.2, None), (3, 4, 1.0, 30.0)],
)
def test_on_a_plane_it_is_timms_dinov3(height, width, scale, base):
    """timm 1.0.31; DINOv3's centres end half a patch before the image's border, ours on it.

    Its temperature is our base.
    """
    sincos = pytest.importorskip("timm.layers.pos_embed_sincos")
    x = inputs(height * width, 16)[0]
    embed = sincos.RotaryEmbeddingDinoV3(16, temperature=base or 100.0, rotate_half=True)
    expected = sincos.apply_rot_embed_cat(x, embed.get_embed([height, width]), half=True)
    border = torch.tensor([(height - 1) / height, (width - 1) / width]) / scale
    grid = patch_grid(height, width)[None] * border
    module = rotary(2, 16, scale, rope_base=base)
    found = module.embed(x, prepared(module, grid))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", [1, 2])
def test_a_token_without_a_position_is_not_turned_and_the_others_are(axes):
    x, positions = inputs()[0], places(axes)
    for missing in range(axes):  # a position on one axis alone is none
        given = positions.clone()
        given.view(2, 6, axes)[1, 2, missing] = math.nan
        out = rotated(axes, x, given)
        assert torch.equal(out[1, :, 2], x[1, :, 2])
        assert not torch.isclose(out[0], x[0]).all(dim=-1).any()
        torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(axes, dtype):
    module, x = rotary(axes), inputs()[0].to(dtype)
    table = prepared(module, places(axes) * 1000)
    assert table.dtype == torch.float32
    exact = module.embed(x.float(), table)
    assert torch.equal(module.embed(x, table), exact.to(dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module.embed(x, table), exact.to(dtype))
    for one, other in zip(module.embed_both(x, x, Given(table, table)), (x, x), strict=True):
        assert torch.equal(one, module.embed(other, table))  # together as one by one


def test_keys_of_another_sequence_turn_with_their_own_positions():
    """As many as there are queries: shapes do not tell them apart."""
    module = Rotary(Sizes(dim=2, heads=1))  # one pair of channels, which turns 1 radian a token
    x, half = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2), torch.full((1, 1, 1), math.pi / 2)
    given = module.prepare(torch.zeros(1, 1, 1), half, None, torch.float32)
    query, key = module.embed_both(x, x, given)
    torch.testing.assert_close(query, x)
    torch.testing.assert_close(key, torch.tensor([0.0, 1.0]).view(1, 1, 1, 2))


def test_positions_in_float64_are_used():
    seconds = 3600 + torch.arange(6, dtype=torch.float64) / 100
    exact = (seconds * 30).cos().float()
    table = prepared(rotary(1, scale=30.0), seconds[None])
    torch.testing.assert_close(table[0, :, 0], exact, rtol=0, atol=2e-7)


@pytest.mark.parametrize(("axes", "dim"), [(1, 7), (2, 6)])
def test_channels_that_do_not_split_are_refused(axes, dim):
    with pytest.raises(ValueError, match=f"channels.* {dim}"):
        rotary(axes, dim)


# Base, and a part of a head's channels


@pytest.mark.parametrize(("base", "fraction"), [(500_000.0, 1.0), (10_000.0, 0.5), (1000.0, 0.25)])
def test_on_a_line_base_and_fraction_are_those_of_a_published_llama(base, fraction):
    """transformers: ``rope_theta``, ``partial_rotary_factor``; the first channels turn."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    x, where = inputs(dim=16)[:2], torch.arange(6.0)[None] + 3
    module = Rotary(Sizes(dim=48, heads=3), rope_base=base, rope_fraction=fraction)
    given = module.prepare(where[..., None], where[..., None], None, torch.float32)
    channels = int(16 * fraction)
    frequencies = base ** (-torch.arange(0, channels, 2).float() / channels)
    angles = torch.cat([where[..., None] * frequencies] * 2, dim=-1)
    turned = llama.apply_rotary_pos_emb(*x[..., :channels], angles.cos(), angles.sin())
    for found, some, whole in zip(module.embed_both(*x, given), turned, x, strict=True):
        torch.testing.assert_close(found[..., :channels], some, rtol=1e-5, atol=1e-5)
        assert torch.equal(found[..., channels:], whole[..., channels:])


@pytest.mark.parametrize(
    "wrong",
    [
        dict(rope_base=1.0),
        dict(rope_fraction=0.0),
        dict(rope_fraction=0.45),
        dict(rope_fraction=1.5),  # of more channels than there are
    ],
)
def test_a_base_or_a_fraction_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=r"base|rope_fraction"):
        Rotary(Sizes(dim=48, heads=3), **wrong)
