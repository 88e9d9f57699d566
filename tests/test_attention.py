"""Attention with positions: the base class, what all variants have in common, bias and mask."""

import copy
import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from cape_plugins import Given, PositionalAttention, Sizes
from cape_plugins.attention import merge
from cape_support import OURS, build, places

pytestmark = pytest.mark.usefixtures("both_ways")

SIZES = Sizes(dim=12, heads=3)
# (variant, axes) of every class that sits in attention; that of nopos is the base class
EACH = [case for case in OURS if case[0] in ("rope", "alibi", "relpos")] + [("nopos", 1)]


def inputs(queries: int, keys: int, dtype=torch.float32) -> list[torch.Tensor]:
    return [torch.randn(2, 3, tokens, 4, dtype=dtype) for tokens in (queries, keys, keys)]


def attention_and_given(pos: str, axes: int, mask=None, tokens: int = 6, dtype=torch.float32):
    """An attention of the table, its parameters moved, and what it gets of (2, tokens) places."""
    positions = build(pos, axes)
    (attention,) = positions.attentions
    attention = (attention or PositionalAttention(positions.sizes)).to(dtype)
    for parameter in attention.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    where = places(axes, 6, 4)[:, :tokens]
    return attention, positions(None, where, mask, dtype=dtype)[1]


def padding(added: float | None = None, dtype=torch.float32) -> torch.Tensor:
    """(2, 1, 6), the last two keys of sample 1 hidden: bool, or added to the scores."""
    mask = torch.ones(2, 1, 6, dtype=torch.bool)
    mask[1, :, 4:] = False
    if added is None:
        return mask
    return torch.zeros(2, 1, 6, dtype=dtype).masked_fill(~mask, added)


# The base class


@dataclass(eq=False, repr=False)
class Tilted(PositionalAttention):
    """Scores fall with the distance of positions."""

    def embed(self, x, prepared):
        return x * (1 + prepared[..., 0].nan_to_num()[:, None, :, None])

    def bias(self, query, keys, prepared):
        where = prepared[..., 0]
        last = where[:, keys - query.shape[2] :, None]
        return -(last - where[:, None]).abs().nan_to_num()[:, None]


def test_the_base_is_attention_without_positions():
    query, key, value = inputs(5, 5)
    mask = torch.rand(2, 5, 5) > 0.3
    mask[..., 0] = True
    base, positions = PositionalAttention(SIZES), torch.rand(1, 5, 1)
    given = base.prepare(positions, mask, torch.float32)
    assert given.prepared is positions
    out, weights = base(query, key, value, given)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None])
    torch.testing.assert_close(out, expected)
    assert weights is None
    assert torch.equal(base(query, key, value)[0], base(query, key, value, Given())[0])


def test_embeddings_and_scores_reach_the_output():
    query, key, value = inputs(2, 5, torch.float64)
    where = torch.rand(1, 5, dtype=torch.float64) * 3
    mask = torch.ones(2, 2, 5, dtype=torch.bool)
    mask[1, ..., 1] = False
    placed = key * (1 + where[:, None, :, None])
    scores = (query * (1 + where[:, None, 3:, None])) @ placed.transpose(2, 3) / 2
    scores = scores - (where[:, 3:, None] - where[:, None]).abs()[:, None]
    scores = scores.masked_fill(~mask[:, None], -torch.inf)
    tilted = Tilted(SIZES)
    given = tilted.prepare(where[..., None], mask, torch.float64)
    out, found = tilted(query, key, value, given, need_weights=True)
    torch.testing.assert_close(out, scores.softmax(-1) @ value)
    torch.testing.assert_close(found, scores.softmax(-1))
    turned = tilted.embed_both(query, key, given.prepared)
    torch.testing.assert_close(tilted.scores(*turned, given), scores)
    # a cache of keys holds them as they are embedded
    attended, nothing = tilted.attend(*turned, value, given)
    torch.testing.assert_close(attended, out)
    assert nothing is None


# What all variants have in common


@pytest.mark.parametrize("added", [None, -math.inf, -1e4])
@pytest.mark.parametrize(("pos", "axes"), EACH)
def test_masked_keys_are_not_seen_with_and_without_weights(pos, axes, added):
    attention, given = attention_and_given(pos, axes, padding(added))
    tensors = inputs(6, 6)
    out, weights = attention(*tensors, given, need_weights=True)
    torch.testing.assert_close(attention(*tensors, given)[0], out)
    assert weights.shape == (2, 3, 6, 6)
    assert not weights[1, ..., 4:].any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 6))


@pytest.mark.parametrize(("pos", "axes"), EACH)
def test_weights_are_float32_where_layers_are_in_half_precision(pos, axes):
    attention, given = attention_and_given(pos, axes, padding())
    tensors = inputs(6, 6)
    _, expected = attention(*tensors, given, need_weights=True)
    half = [x.bfloat16() for x in tensors]
    out, weights = copy.deepcopy(attention).bfloat16()(*half, given, need_weights=True)
    assert (out.dtype, weights.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(weights, expected, atol=0.02, rtol=0.02)


@pytest.mark.parametrize(("pos", "axes"), EACH)
def test_decoding_step_by_step_is_decoding_at_once(pos, axes):
    causal = torch.ones(1, 6, 6, dtype=torch.bool).tril()
    attention, given = attention_and_given(pos, axes, causal)
    query, key, value = inputs(6, 6)
    at_once, _ = attention(query, key, value, given)
    for t in range(6):
        _, seen = build(pos, axes)(None, places(axes, 6, 4)[:, : t + 1])
        step, _ = attention(query[:, :, t : t + 1], key[:, :, : t + 1], value[:, :, : t + 1], seen)
        torch.testing.assert_close(step, at_once[:, :, t : t + 1])


@pytest.mark.parametrize(("pos", "axes"), EACH)
def test_gradients_are_right(pos, axes):
    attention, given = attention_and_given(pos, axes, tokens=4, dtype=torch.float64)
    tensors = [x.requires_grad_() for x in inputs(3, 4, torch.float64)]
    torch.autograd.gradcheck(
        lambda *x: attention(*x[:3], given)[0],
        (*tensors, *attention.parameters()),
        atol=1e-4,
        nondet_tol=1e-12,
        fast_mode=True,
    )


@pytest.mark.parametrize(("pos", "axes"), EACH)
def test_dropout_falls_on_the_weights(pos, axes):
    attention, given = attention_and_given(pos, axes)
    tensors = [x.repeat(200, 1, 1, 1) for x in inputs(6, 6)]
    given = Given(*(x if x is None else x.repeat(200, *[1] * (x.ndim - 1)) for x in given))
    plain, weights = attention(*tensors, given, need_weights=True)
    for need_weights in (False, True):
        out, found = attention(*tensors, given, dropout=0.5, need_weights=need_weights)
        assert not torch.allclose(out, plain)
        mean = [x.view(200, 2, *x.shape[1:]).mean(dim=0) for x in (out, plain)]
        torch.testing.assert_close(*mean, atol=0.6, rtol=0)
        # what is handed out is before dropout
        assert found is None or torch.equal(found, weights)


def test_more_queries_than_keys_are_refused():
    attention, given = attention_and_given("rope", 1, tokens=5)
    with pytest.raises(ValueError, match="queries"):
        attention(*inputs(6, 5), given)


# Bias and mask as one


def test_bias_and_mask_merge_whatever_their_kinds():
    bias, hidden = torch.randn(1, 3, 6, 6), ~padding()[:, None].expand(2, 3, 6, 6)
    assert merge(None, None, torch.float32) is None
    assert merge(None, padding(), torch.float16).dtype == torch.bool
    assert merge(bias, None, torch.float16).equal(bias.half())
    assert merge(None, padding(-1e4), torch.bfloat16).equal(padding(-1e4).bfloat16())
    found = merge(bias, padding()[:, None], torch.float32)
    assert found.equal(bias.expand(2, 3, 6, 6).masked_fill(hidden, -math.inf))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("narrow", [torch.float32, torch.bfloat16])
def test_what_is_added_hides_with_numbers_so_that_a_row_of_padding_stays_one(dtype, narrow):
    """Bias or mask may be narrower than the scores, as autocast or a host makes them."""
    bias = torch.randn(1, 3, 6, 6).to(narrow)
    hidden = ~padding()[:, None].expand(2, 3, 6, 6)
    for of_mask in (torch.float32, narrow):
        for added in (-math.inf, torch.finfo(of_mask).min):
            found = merge(bias, padding(added, of_mask)[:, None], dtype)
            assert found.dtype == dtype
            assert found[~hidden].equal(bias.expand_as(hidden)[~hidden].to(dtype))
            assert found[hidden].isfinite().all()
            assert (found[hidden] <= torch.finfo(dtype).min / 2).all()
