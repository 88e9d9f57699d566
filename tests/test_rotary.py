"""Rotary attention against rotary-embedding-torch and timm, which no one here wrote."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cape_plugins import patch_grid, token_positions
from cape_plugins.rotary import MixedRotaryAttention, RotaryAttention

NAN = math.nan


def inputs(tokens: int = 6, dim: int = 8, batch: int = 2, heads: int = 3, dtype=torch.float32):
    return torch.randn(3, batch, heads, tokens, dim, dtype=dtype)


def interleaved(x: torch.Tensor) -> torch.Tensor:
    """Channel k beside channel k + d / 2, where others have the pairs that turn together."""
    return x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


@pytest.mark.parametrize("first", [0.0, -7.25])
def test_on_a_line_it_is_rotary_embedding_torch(first):
    """Version 0.9.1: theta 10 000, pairs of neighbouring channels."""
    reference = pytest.importorskip("rotary_embedding_torch")
    attention, (x, _, _) = RotaryAttention(16), inputs(dim=16)
    positions = first + torch.arange(6.0) * 1.5
    rotate = reference.RotaryEmbedding(dim=16)
    expected = reference.apply_rotary_emb(rotate(positions), interleaved(x))
    found = attention.place(x, attention.prepare(positions[None]))
    torch.testing.assert_close(interleaved(found), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(14, 14), (3, 5)])
def test_on_a_plane_it_is_timms_dinov3(height, width):
    """timm 1.0.31; DINOv3's centres end half a patch before the image's border, ours on it."""
    sincos = pytest.importorskip("timm.layers.pos_embed_sincos")
    attention, (x, _, _) = RotaryAttention(16, 2), inputs(height * width, 16)
    embed = sincos.RotaryEmbeddingDinoV3(16, temperature=100.0, rotate_half=True)
    expected = sincos.apply_rot_embed_cat(x, embed.get_embed([height, width]), half=True)
    border = torch.tensor([(height - 1) / height, (width - 1) / width])
    found = attention.place(x, attention.prepare(patch_grid(height, width)[None] * border))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_mixed_frequencies_are_timms_of_rope_vit():
    """timm 1.0.31, whose unit is a patch."""
    sincos = pytest.importorskip("timm.layers.pos_embed_sincos")
    attention, (x, _, _) = MixedRotaryAttention(16, 3), inputs(4 * 5, 16)
    patches = torch.cartesian_prod(torch.arange(4.0), torch.arange(5.0))
    given = 2 * math.pi * attention.frequencies
    embed = sincos.get_mixed_freqs(given, patches[:, 0], patches[:, 1])  # (heads, N, 2 · 16)
    expected = sincos.apply_rot_embed_cat(interleaved(x), embed)
    found = interleaved(attention.place(x, patches[None]))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)


def test_mixed_frequencies_begin_as_timms():
    sincos = pytest.importorskip("timm.layers.pos_embed_sincos")
    frequencies = MixedRotaryAttention(16, 500).frequencies
    reference = sincos.init_random_2d_freqs(16, 1, 500)[:, 0]
    for each in (frequencies, reference):  # half along a direction, half across
        along, across = each.chunk(2, dim=2)
        torch.testing.assert_close(
            (along * across).sum(dim=0), torch.zeros(500, 4), atol=1e-6, rtol=0
        )
    torch.testing.assert_close(frequencies.norm(dim=0), reference.norm(dim=0))
    direction = torch.atan2(frequencies[1, :, 0], frequencies[0, :, 0])
    assert direction.sin().mean().abs() < 0.15
    assert direction.cos().mean().abs() < 0.15


def all_kinds() -> list:
    return [RotaryAttention(8), RotaryAttention(8, 2), MixedRotaryAttention(8, 3)]


def places(attention, batch: int = 2, tokens: int = 6) -> torch.Tensor:
    one_axis = isinstance(attention, RotaryAttention) and attention.axes == 1
    return torch.randn(batch, tokens, *(() if one_axis else (2,)))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2), st.floats(-3, 3, allow_subnormal=False), st.integers(0, 2**31))
def test_only_distances_matter(kind, shift, seed):
    torch.manual_seed(seed)
    attention, (query, key, value) = all_kinds()[kind], inputs()
    positions = places(attention)
    here = attention(query, key, value, attention.prepare(positions))
    there = attention(query, key, value, attention.prepare(positions + shift))
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", range(3))
def test_a_token_without_a_position_is_not_turned_and_the_others_are(kind):
    attention, (x, _, _) = all_kinds()[kind], inputs()
    positions = places(attention)
    positions[1, 2] = NAN
    out = attention.place(x, attention.prepare(positions))
    assert torch.equal(out[1, :, 2], x[1, :, 2])
    assert not torch.isclose(out[0], x[0]).all(dim=-1).any()
    torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(kind, dtype):
    attention, (x, _, _) = all_kinds()[kind], inputs().to(torch.float32)
    x = x.to(dtype)
    prepared = attention.prepare(places(attention) * 1000)
    assert prepared.dtype == torch.float32
    exact = attention.place(x.float(), prepared)
    assert torch.equal(attention.place(x, prepared), exact.to(dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(attention.place(x, prepared), exact.to(dtype))


def test_positions_in_float64_are_used():
    attention = RotaryAttention(8, frequency_scale=30.0)
    seconds = 3600 + torch.arange(6, dtype=torch.float64) / 100
    exact = (seconds * 30).cos().float()
    torch.testing.assert_close(attention.prepare(seconds[None])[0, :, 0], exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", range(3))
def test_gradients_are_right(kind):
    attention = all_kinds()[kind].double()
    tensors = [t.requires_grad_() for t in inputs(4, dtype=torch.float64)]
    positions = attention.prepare(places(attention, tokens=4)).double()
    parameters = list(attention.parameters())
    torch.autograd.gradcheck(
        lambda *given: attention(*given[:3], positions), (*tensors, *parameters), atol=1e-4
    )


@pytest.mark.parametrize("kind", range(3))
def test_decoding_step_by_step_is_decoding_at_once(kind):
    attention, (query, key, value) = all_kinds()[kind], inputs()
    positions = attention.prepare(places(attention))
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    at_once = attention(query, key, value, positions, causal)
    for t in range(6):
        seen = (key[:, :, : t + 1], value[:, :, : t + 1], positions[:, : t + 1])
        step = attention(query[:, :, t : t + 1], *seen)
        torch.testing.assert_close(step, at_once[:, :, t : t + 1])


@pytest.mark.parametrize("kind", range(3))
def test_it_compiles_into_one_graph(kind):
    attention, (query, key, value) = all_kinds()[kind], inputs()

    def attend(query, key, value, positions):
        return attention(query, key, value, attention.prepare(positions))

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    positions = places(attention)
    positions[0, 3:] = NAN
    torch.testing.assert_close(
        compiled(query, key, value, positions), attend(query, key, value, positions)
    )


def test_padding_has_no_position():
    positions = token_positions([6, 4])
    table = RotaryAttention(8).prepare(positions)
    assert table.isfinite().all()
    assert torch.equal(table[1, 4:, :8], torch.ones(2, 8))
    assert not table[1, 4:, 8:].any()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RotaryAttention(7), "1 axis need heads of a multiple of 2 channels, got 7"),
        (lambda: RotaryAttention(0), "a multiple of 2 channels, got 0"),
        (lambda: RotaryAttention(6, 2), "2 axes need heads of a multiple of 4 channels, got 6"),
        (lambda: MixedRotaryAttention(10, 2), "a multiple of 4 channels, got 10: change the width"),
    ],
)
def test_channels_that_do_not_split_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
