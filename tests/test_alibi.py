"""ALiBi against the paper's code and its formula, on positions of all kinds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cape_plugins import Sizes, distances, frame_times, patch_grid, token_positions
from cape_plugins.alibi import Alibi, alibi_slopes


def alibi(heads: int = 4, axes: int = 1, unit: float | None = None) -> Alibi:
    return Alibi(Sizes(dim=8 * heads, heads=heads, axes=axes), unit)


def bias(positions: torch.Tensor, queries: int | None = None, mask=None, **sizes) -> torch.Tensor:
    """(1 or B, heads, queries, keys), what scores get, of positions (1 or B, N[, 2])."""
    axes = positions.ndim - 1
    positions = positions if axes == 2 else positions[..., None]
    last = positions if queries is None else positions[:, -queries:]
    return alibi(axes=axes, **sizes).prepare(last, positions, mask, torch.float32).bias


def slopes_of_the_paper(heads: int) -> list[float]:
    """``get_slopes`` of ofirpress/attention_with_linear_biases at a35aaca."""

    def series(n: int) -> list[float]:
        first = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [first * first**i for i in range(n)]

    if math.log2(heads).is_integer():
        return series(heads)
    below = 2 ** math.floor(math.log2(heads))
    return series(below) + slopes_of_the_paper(2 * below)[0::2][: heads - below]


@settings(deadline=None)
@given(st.integers(1, 70))
def test_slopes_are_the_papers_for_any_number_of_heads(heads):
    expected = torch.tensor(slopes_of_the_paper(heads))
    torch.testing.assert_close(alibi_slopes(heads), expected, rtol=1e-6, atol=0)


def test_scores_fall_with_the_distance_to_both_sides():
    slopes = alibi_slopes(4)[:, None, None]
    distance = torch.tensor([[0.0, 1, 2], [1, 0, 1], [2, 1, 0]])
    torch.testing.assert_close(bias(token_positions([3])), (-slopes * distance)[None])
    last = bias(token_positions([3]), queries=2)
    torch.testing.assert_close(last, (-slopes * distance)[None, :, 1:])


def test_under_a_causal_mask_it_is_the_papers_row_of_the_keys_positions():
    module, (query, key, value) = alibi(), torch.randn(3, 2, 4, 9, 8).double()
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    row = alibi_slopes(4)[:, None, None].double() * torch.arange(9)
    scores = query @ key.mT / math.sqrt(8) + row
    expected = scores.masked_fill(~causal, -math.inf).softmax(-1) @ value
    where = token_positions([9])[..., None]
    given = module.prepare(where, where, causal[None], torch.float64)
    torch.testing.assert_close(module(query, key, value, given)[0], expected)


def test_a_token_without_a_position_is_near_all_and_moves_nothing():
    """As padding and the class token: 0 for it, and a gradient of 0."""
    where = torch.tensor([[0.0, math.nan, 3.0]], requires_grad=True)
    found = distances(where[..., None, None], where[:, None, :, None])
    assert found.tolist() == [[[0, 0, 3], [0, 0, 0], [3, 0, 0]]]
    found.sum().backward()
    assert where.grad.tolist() == [[-2, 0, 2]]
    slope = 2**-8  # of a single head
    assert bias(where.detach(), heads=1)[0, 0, 0].tolist() == [0, 0, -3 * slope]


@pytest.mark.parametrize("heads", [0, -1, 2.5])
def test_a_number_of_heads_that_is_none_is_refused(heads):
    with pytest.raises(ValueError, match="heads"):
        alibi_slopes(heads)


def test_the_unit_is_a_distance_of_one():
    found = bias(frame_times([5, 5], 0.04), unit=0.04)
    torch.testing.assert_close(found[:1], bias(token_positions([5])))


def test_distances_in_images_are_euclidean_and_a_token_without_a_position_has_none():
    grid = torch.cat([torch.full((1, 1, 2), math.nan), patch_grid(3, 5)[None]], dim=1)
    found = bias(grid, heads=1, unit=0.5)[:, 0]
    expected = -(2.0**-8) * torch.cdist(grid, grid).nan_to_num(0.0) / 0.5
    torch.testing.assert_close(found, expected)
    assert not found[:, 0].any()
    assert not found[:, :, 0].any()
    assert found[:, 1:, 1:].sum() < 0
    half = torch.tensor([[0.0, math.nan]])  # a position on one axis alone is none
    assert distances(half, torch.ones(1, 2)).item() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_layers_take_it_in_their_dtype_as_it_is(dtype):
    """With autocast and without, where a host casts the whole model (fairseq's --fp16)."""
    layer, query = alibi(), torch.zeros(1, 4, 5, 8, dtype=dtype)
    where = token_positions([5])[..., None]
    given = layer.prepare(where, where, None, dtype)
    assert given.bias.dtype == dtype
    found = layer.bias_and_mask(query, query, given)
    assert found.data_ptr() == given.bias.data_ptr()  # made once, for all layers
    with torch.autocast("cpu", torch.bfloat16):
        given = layer.prepare(where, where, None, dtype)
        query = query if dtype == torch.float64 else query.float()  # autocast leaves float64
        found = layer.bias_and_mask(query, query, given)
        assert found.data_ptr() == given.bias.data_ptr()
