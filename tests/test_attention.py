"""Attention with positions: the base class, what all variants have in common, bias and mask."""

import copy
import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from cape_plugins import Given, PositionalAttention, Sizes
from cape_plugins.attention import as_bool, dtype_of_scores, merge, without
from cape_support import OURS, build, odd, places

SIZES = Sizes(dim=12, heads=3)
# (variant, axes) of every class that sits in attention; that of nopos is the base class
EACH = [case for case in OURS if case[0] in ("rope", "alibi", "relpos")] + [("nopos", 1)]


def inputs(queries: int, keys: int, dtype=torch.float32) -> list[torch.Tensor]:
    return [torch.randn(2, 3, tokens, 4, dtype=dtype) for tokens in (queries, keys, keys)]


def attention_and_given(pos: str, axes: int, mask=None, tokens: int = 6, dtype=torch.float32):
    """An attention of the table, its parameters moved, and what it gets of (2, tokens) places."""
    positions, attention = layer(pos, axes)
    where = places(axes, 6, 4)[:, :tokens]
    return attention.to(dtype), positions(None, where, mask, dtype=dtype)[1]


def layer(pos: str, axes: int):
    positions = build(pos, axes)
    (attention,) = positions.attentions
    for parameter in attention.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    return positions, attention


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

    def embed(self, x, rows):
        return x * (1 + rows[..., 0].nan_to_num()[:, None, :, None])

    def bias(self, query, key, given):
        apart = given.queries - given.keys[..., 0][:, None]
        return -apart.abs().nan_to_num()[:, None]


def test_the_base_is_attention_without_positions():
    query, key, value = inputs(5, 5)
    mask = torch.rand(2, 5, 5) > 0.3
    mask[..., 0] = True
    base, positions = PositionalAttention(SIZES), torch.rand(1, 5, 1)
    given = base.prepare(positions, positions, mask, torch.float32)
    assert given.queries is given.keys is positions
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
    given = tilted.prepare(where[:, 3:, None], where[..., None], mask, torch.float64)
    out, found = tilted(query, key, value, given, need_weights=True)
    torch.testing.assert_close(out, scores.softmax(-1) @ value)
    torch.testing.assert_close(found, scores.softmax(-1))
    turned = tilted.embed_both(query, key, given)
    torch.testing.assert_close(tilted.scores(*turned, given), scores)
    # a cache of keys holds them as they are embedded
    attended, nothing = tilted.attend(*turned, value, given)
    torch.testing.assert_close(attended, out)
    assert nothing is None


# What all variants have in common


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
def test_fewer_queries_than_keys_are_the_rows_of_the_whole(pos, axes):
    (positions, attention), where = layer(pos, axes), places(axes, 6, 6)
    query, key, value = inputs(6, 6)
    causal = torch.ones(1, 6, 6, dtype=torch.bool).tril()
    for mask in (None, padding(), padding(-math.inf), causal):
        given = positions(None, where, mask)[1]
        whole, weights = attention(query, key, value, given, need_weights=True)
        some = mask if mask is None or mask.shape[1] == 1 else mask[:, 3:]
        given = positions(None, where[:, 3:], some, keys=where)[1]
        for need_weights in (False, True):
            out, found = attention(query[:, :, 3:], key, value, given, need_weights=need_weights)
            torch.testing.assert_close(out, whole[:, :, 3:])
            assert found is None or torch.allclose(found, weights[:, :, 3:], atol=1e-6)


@pytest.mark.parametrize(("pos", "axes"), EACH)
@pytest.mark.parametrize("added", [None, -math.inf])
def test_a_query_that_sees_no_key_gets_nothing_with_and_without_weights(pos, axes, added):
    mask = torch.ones(2, 6, 6, dtype=torch.bool)
    mask[1, 2] = False
    if added is not None:
        mask = torch.zeros(2, 6, 6).masked_fill(~mask, added)
    attention, given = attention_and_given(pos, axes, mask)
    tensors = [x.requires_grad_() for x in inputs(6, 6)]
    for need_weights in (False, True):
        out, _ = attention(*tensors, given, need_weights=need_weights)
        assert not out[1, :, 2].any()
        assert out[0].any(dim=-1).all()
        assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), tensors))


@pytest.mark.parametrize("pos", ["cape", "cape_rope", "cape_alibi", "random", "random_rope"])
def test_positions_that_depend_on_the_whole_sequence_are_refused_in_a_step(pos):
    module, where = build(pos).eval(), places(1)
    with pytest.raises(ValueError, match=r"keys=.*(mean_normalize|spread)=False"):
        module(torch.zeros(1, 1, 12), where[:, -1:], keys=where)
    if pos.startswith(("random", "pose")):  # its draws are sorted
        with pytest.raises(ValueError, match="keys="):
            build(pos, spread=False)(torch.zeros(1, 1, 12), where[:, -1:], keys=where)


def test_another_sequence_shares_shift_and_scale_in_training():
    module = build("cape_rope", 2, max_local_shift=0.0, mean_normalize=False)
    here, there = places(2), places(2)[:, :4] + 0.5
    draw = module.draw(1, here.device, torch.Generator().manual_seed(0))
    _, given = module(None, here, draw=draw, keys=there)
    for found, where in ((given.queries, here), (given.keys, there)):
        torch.testing.assert_close(found, module(None, where, draw=draw)[1].queries)
    with pytest.raises(ValueError, match="draw="):  # keys of a cache would have other draws
        module(None, here, keys=there)
    _, given = module(None, here, keys=there, draws=False)
    module.eval()
    for found, where in ((given.queries, here), (given.keys, there)):
        torch.testing.assert_close(found, module(None, where)[1].queries)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("pos", ["nopos", "relpos"])
def test_a_head_of_keys_serves_neighbouring_heads_of_queries(pos, need_weights):
    positions = build(pos, dim=16, heads=4)
    (attention,) = positions.attentions
    _, given = positions(None, places(1))
    query, key, value = torch.randn(3, 2, 4, 6, 4)
    found = attention(query, key[:, :2], value[:, :2], given, need_weights=need_weights)[0]
    each = (x[:, [0, 0, 1, 1]] for x in (key, value))
    torch.testing.assert_close(found, attention(query, *each, given)[0])
    with pytest.raises(ValueError, match="heads"):
        attention(query, key[:, :3], value[:, :3], given, need_weights=need_weights)
    reads_keys = odd(PositionalAttention, bias=lambda self, query, key, given: query @ key.mT)
    made, each = reads_keys(positions.sizes), [x[:, [0, 0, 1, 1]] for x in (key, value)]
    found = made(query, key[:, :2], value[:, :2], need_weights=need_weights)[0]
    torch.testing.assert_close(found, made(query, *each)[0])


def test_a_mask_for_other_queries_or_keys_is_refused():
    query, key, value = inputs(2, 6)
    for shape in ((1, 1, 6, 6), (1, 1, 2, 5)):
        with pytest.raises(ValueError, match="mask"):
            PositionalAttention(SIZES)(query, key, value, Given(mask=torch.ones(shape).bool()))
    with pytest.raises(ValueError, match="bias"):  # of a bias no column stands for all
        PositionalAttention(SIZES)(query, key, value, Given(bias=torch.zeros(1, 1, 2, 1)))
    rows = Given(torch.zeros(1, 6, 1), torch.zeros(1, 6, 1))
    with pytest.raises(ValueError, match="queries"):
        PositionalAttention(SIZES)(query, key, value, rows)


def test_a_hosts_own_function_attends_in_place_of_ours():
    query, key, value = inputs(6, 6)
    tilted, given = Tilted(SIZES), Given(torch.ones(1, 6, 1), torch.ones(1, 6, 1))
    got = tilted(query, key, value, given, attend=lambda *three: (three, None))[0]
    for found, expected in zip(got, (2 * query, 2 * key, value), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["bias", "bias_and_mask", "scores", "attend", "forward", "embed"])
def test_what_does_more_than_embed_is_known_by_its_methods(name):
    made = odd(PositionalAttention, **{name: lambda self, *_: None})(SIZES)
    assert made.changes_scores == (name != "embed")
    assert made.has_bias == name.startswith("bias")


def test_one_module_for_all_layers_prepares_in_each_with_the_mask():
    positions, (query, key, value) = build("rope"), inputs(6, 6)
    (attention,) = positions.attentions
    _, given = positions(None, places(1), padding())
    expected, _ = attention(query, key, value, given)
    attention.prepares = True
    where = places(1)[..., None]
    found, _ = attention(query, key, value, Given(where, where, mask=padding()[:, None]))
    torch.testing.assert_close(found, expected)


def test_a_layer_that_a_variant_leaves_out_has_the_mask_alone():
    query, key, value = inputs(6, 6)
    mask, rows = padding()[:, None], torch.ones(1, 6, 1)
    given = Given(rows, rows, mask=mask, bias=torch.ones(1, 1, 6, 6))
    expected = PositionalAttention(SIZES)(query, key, value, Given(mask=mask))[0]
    assert torch.equal(without(SIZES)(query, key, value, given)[0], expected)


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


# Bias and mask as one


def test_bias_and_mask_merge_whatever_their_kinds():
    bias, hidden = torch.randn(1, 3, 6, 6), ~padding()[:, None].expand(2, 3, 6, 6)
    assert merge(None, None, torch.float32) is None
    assert merge(None, padding(), torch.float16).dtype == torch.bool
    assert merge(bias, None, torch.float16).equal(bias.half())
    assert merge(None, padding(-1e4), torch.bfloat16).equal(padding(-1e4).bfloat16())
    for dtype in (torch.float32, torch.bfloat16):
        found = merge(bias, padding()[:, None], dtype)
        assert found.equal(bias.to(dtype).expand(2, 3, 6, 6).masked_fill(hidden, -math.inf))
    later = torch.ones(6, 6, dtype=torch.bool).tril()
    assert merge(padding(), later, torch.float32).equal(padding() & later)


def test_another_mask_besides_hides_keys_in_what_all_layers_add_too():
    later = torch.ones(6, 6, dtype=torch.bool).tril()
    bias, mask = torch.randn(1, 3, 6, 6), padding()[:, None]
    given = Given(mask=mask, bias=merge(bias, mask, torch.float32))
    assert given.seeing(None, torch.float32) is given
    found = given.seeing(later, torch.float32)
    assert found.mask.equal(mask & later)
    assert found.bias.equal(bias.expand(2, 3, 6, 6).masked_fill(~(mask & later), -math.inf))
    assert Given(mask=mask).seeing(later, torch.float32).bias is None


def test_masks_of_numbers_and_autocasts_dtype_are_understood():
    hidden = torch.tensor([0.0, -500.0, -1e4, torch.finfo(torch.float16).min, -math.inf])
    assert as_bool(hidden).tolist() == [True, True, False, False, False]
    with torch.autocast("cpu", torch.bfloat16):
        for dtype, scores in ((torch.float32, torch.bfloat16), (torch.float64, torch.float64)):
            assert dtype_of_scores(dtype, torch.device("cpu")) == scores


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("narrow", [torch.float32, torch.bfloat16])
def test_a_host_that_hides_with_the_least_number_does_so_whatever_the_dtype(dtype, narrow):
    """Bias or mask may be narrower than the scores, as autocast or a host makes them."""
    bias = torch.randn(1, 3, 6, 6).to(narrow)
    hidden = ~padding()[:, None].expand(2, 3, 6, 6)
    for of_mask in (torch.float32, narrow):
        for added in (-math.inf, torch.finfo(of_mask).min):
            found = merge(bias, padding(added, of_mask)[:, None], dtype)
            assert found.dtype == dtype
            assert found[~hidden].equal(bias.expand_as(hidden)[~hidden].to(dtype))
            if added == -math.inf:
                assert found[hidden].isneginf().all()
            else:
                assert found[hidden].isfinite().all()
                assert (found[hidden] < torch.finfo(dtype).min / 2.1).all()
