"""Relative positions against the formula of Shaw et al., written out with its (T, T, d).

The buffer and the parts of cape_plugins.fused are compared with plain operations.
"""

import math
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cape_plugins import Given, Sizes, fused
from cape_plugins.fused import relative
from cape_plugins.relpos import RelativePositions
from cape_support import Made


def module(context: int = 3, dtype=torch.float64, head_dim: int = 8) -> RelativePositions:
    torch.manual_seed(0)
    return RelativePositions(Sizes(dim=3 * head_dim, heads=3), context).to(dtype)


def tensors(queries: int, keys: int, dtype=torch.float64, dim: int = 8) -> list[Tensor]:
    torch.manual_seed(1)
    shapes = (queries, keys, keys)
    return [torch.randn(2, 3, n, dim, dtype=dtype, requires_grad=True) for n in shapes]


def masks(queries: int, keys: int) -> dict[str, Tensor | None]:
    padding = torch.ones(2, 1, 1, keys, dtype=torch.bool)
    padding[1, ..., -3:] = False
    causal = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    added = torch.zeros(2, 1, 1, keys, dtype=torch.float64).masked_fill(~padding, -1e9)
    return {"none": None, "padding": padding, "causal": padding & causal, "added": added}


def in_place(attention, inputs: list[Tensor], mask) -> Given:
    """What attention gets where the queries are the last of the keys."""
    queries, keys = inputs[0].shape[2], inputs[1].shape[2]
    where = torch.arange(float(keys))[None, :, None]
    last = where if queries == keys else where[:, keys - queries :]
    return attention.prepare(last, where, mask, torch.float64)


def results(attention, inputs: list[Tensor], mask, **options) -> list[Tensor]:
    out = attention(*inputs, in_place(attention, inputs, mask), **options)[0]
    torch.manual_seed(2)
    weights = torch.randn(out.shape).to(out.dtype)
    return [out, *torch.autograd.grad(out, [*inputs, attention.keys], weights)]


def written_out(module, query, key, value, mask=None) -> Tensor:
    """Equations 3 and 4 of Shaw et al.; queries are the last positions."""
    queries, keys = query.shape[2], key.shape[2]
    i = torch.arange(keys - queries, keys)[:, None]
    distance = (torch.arange(keys) - i).clamp(-module.context, module.context) + module.context
    with_distance = key[:, :, None] + module.keys[distance]  # (B, heads, queries, keys, d)
    scores = torch.einsum("bhid,bhijd->bhij", query, with_distance) / math.sqrt(query.shape[3])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1) @ value


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(0, 12), st.integers(1, 15), st.booleans())
def test_it_is_the_formula(queries, earlier, context, masked):
    attention, inputs = module(context), tensors(queries, queries + earlier)
    mask = torch.rand(2, 1, queries, queries + earlier) > 0.3 if masked else None
    if masked:
        mask[..., 0] = True
    expected = written_out(attention, *inputs, mask)
    given = in_place(attention, inputs, mask)
    torch.testing.assert_close(attention(*inputs, given)[0], expected)


N = math.nan


@pytest.mark.parametrize(
    "tokens",
    [
        [[0, 1, 2, 3, 4, 5], [7, 8, 9, 10, N, N], [N, N, -1, 0, 1, 2]],
        [[0.1, 1.2, 2.0, 3.3, 4.0, 5.1]],
        [[0.0, 1.5, 3.0, 4.5, 6.0, 7.5], [0.0, 0.9, 1.8, 2.7, N, N]],  # each by its own spacing
        [[2, N, 4, 5, 6, 7]],  # one has no position, and takes a place
    ],
)
@pytest.mark.parametrize("spacing", [1.0, 0.04])
def test_tokens_of_a_sequence_are_counted_where_they_are_evenly_spaced(tokens, spacing):
    attention = RelativePositions(Sizes(dim=12, heads=3, spacing=spacing), 3 * spacing).eval()
    positions = spacing * torch.tensor(tokens)[..., None]
    mask = torch.ones(len(tokens), 1, 6, dtype=torch.bool)
    given = attention.prepare(positions, positions, mask, torch.float32)
    assert given.queries is given.keys is None
    assert given.mask.shape == (len(tokens), 1, 1, 6)


@pytest.mark.parametrize(
    ("tokens", "index"),
    [
        ([0, 1, 5, 6, 14, 30], 1),  # stamps of time
        ([3, 0, 5, 1, 4, 2], 0),  # in another order
        ([5, 4, 3, 2, 1, 0], 0),
        ([0, 1, N, 2, 3, 4], 3),  # a place that is not counted
        ([0, 1, 2.4, 3.4, 4.8, 5.8], 4),  # 0.8 of a token off
        ([0, 1, 2, 0, 1, 2], 3),
    ],
)
def test_positions_that_counting_does_not_give_are_refused(tokens, index):
    positions = torch.tensor([[0.0, 1, 2, 3, 4, 5], tokens])[..., None]
    with pytest.raises(ValueError, match=rf"relpos counts .* even .*at index \[1, {index}\]"):
        module().eval().prepare(positions, positions, None, torch.float32)


def test_in_training_frames_may_be_left_out():
    """The paper's front end does so by chance."""
    positions = torch.tensor([[0.0, 1, 2, 4, 5, 7]])[..., None]
    assert module().train().prepare(positions, positions, None, torch.float32).pairs is None


def test_other_keys_are_refused_where_steps_would_not_count_as_the_whole():
    """By 1.5 the whole counts 0, 1, 2, and a step would round 0, 1.5 and 3."""
    whole = torch.tensor([[0.0, 1.5, 3.0]])[..., None]
    module().eval().prepare(whole, whole, None, torch.float32)
    with pytest.raises(ValueError, match=r"1 apart .*at index \[0, 1\]"):
        module().eval().prepare(whole[:, -1:], whole, None, torch.float32)


@pytest.mark.parametrize(
    ("tokens", "what"),
    [
        ([0, 1, 2, 0, 1, 0], nullcontext()),
        ([0, 1, 2, 0, 2, 3], pytest.raises(ValueError, match="even")),
    ],
)
def test_texts_in_one_row_begin_again_where_there_is_a_mask(tokens, what):
    positions, text = torch.tensor([tokens])[..., None], torch.tensor([[0, 0, 0, 1, 1, 2]])
    with what:
        mask = text[:, None] == text[..., None]
        module().eval().prepare(positions, positions, mask, torch.float32)


def test_between_queries_and_other_keys_distances_are_positions_in_the_nearest_tokens():
    """Frames 0.04 s apart, nearly; two to each side have vectors of their own."""
    attention = RelativePositions(Sizes(dim=8, spacing=0.04), relpos_context=0.08)
    keys = torch.tensor([0.0, 0.0401, 0.0799, 0.1199, 0.16, math.nan])[None, :, None]
    given = attention.prepare(keys[:, 3:4], keys, None, torch.float32)
    # 3, 2 and 1 to the left, itself, 1 to the right; one without a position counts as itself
    assert given.pairs.tolist() == [[[0, 0, 1, 2, 3, 2]]]


def test_the_vectors_begin_uniform_in_a_tenth():
    table = module(100, head_dim=64)
    for _ in range(2):
        assert -0.1 <= table.keys.min() < -0.099
        assert 0.099 < table.keys.max() <= 0.1
        assert table.keys.mean().abs() < 0.005
        before = table.keys.clone()
        table.reset_parameters()
        assert not torch.equal(table.keys, before)


def test_nothing_as_large_as_length_squared_times_channels_is_made():
    attention = RelativePositions(Sizes(dim=64), 10)
    inputs = [torch.randn(1, 1, 100, 64, requires_grad=True) for _ in range(3)]
    with Made() as made:
        attention(*inputs)[0].sum().backward()
    assert made.largest < 3 * 100 * 100


# For speed alone


@pytest.mark.parametrize("mask", ["none", "padding", "causal", "added"])
@pytest.mark.parametrize(("context", "queries", "keys"), [(4, 20, 20), (60, 1, 9), (4, 5, 21)])
def test_the_buffer_gives_what_plain_operations_give(context, queries, keys, mask, monkeypatch):
    attention, inputs = module(context), tensors(queries, keys)
    half, query = module(4, torch.bfloat16), tensors(20, 20, torch.bfloat16)[0]

    def found() -> list[Tensor]:
        bits = half.bias_and_mask(query, query, Given())
        return [bits, *results(attention, inputs, masks(queries, keys)[mask])]

    fast = found()
    monkeypatch.setattr(fused.guard, "ON", False)
    assert torch.equal(fast[0], half.bias(query, query))
    for one, other in zip(fast, found(), strict=True):
        within = dict(rtol=0, atol=0) if one is fast[0] else {}
        torch.testing.assert_close(one, other, **within)


@pytest.mark.parametrize("queries", [7, 16, 33, 300])
def test_rows_of_the_scores_lie_as_fused_attention_takes_them(queries):
    """Multiples of eight, or PyTorch copies all of them once more."""
    query = tensors(queries, queries, torch.bfloat16)[0]
    scores = module(4, torch.bfloat16).bias_and_mask(query, query, Given())
    *others, last = scores.stride()
    assert last == 1
    assert all(stride % 16 == 0 for stride in others)
    assert scores.storage_offset() % 16 == 0


@pytest.fixture
def parts(monkeypatch) -> list[int]:
    """Parts of 8 queries from 64 scores on, and how many queries each had, backward included."""
    monkeypatch.setattr(relative, "PART", 8)
    monkeypatch.setattr(relative, "MANY", 64)
    found, whole = [], RelativePositions.distances_and_mask

    def count(self, query, *rest):
        found.append(query.shape[2])
        return whole(self, query, *rest)

    monkeypatch.setattr(RelativePositions, "distances_and_mask", count)
    return found


@pytest.mark.parametrize("mask", ["none", "padding", "causal", "added"])
@pytest.mark.parametrize("tokens", [16, 17])
def test_parts_of_the_queries_are_the_whole(tokens, mask, parts, monkeypatch):
    attention, inputs = module(4), tensors(tokens, tokens)
    found = results(attention, inputs, masks(tokens, tokens)[mask])
    per_forward = math.ceil(tokens / 8)
    assert len(parts) == 2 * per_forward  # backward makes them again
    assert sum(parts[:per_forward]) == tokens
    monkeypatch.setattr(relative, "MANY", math.inf)
    expected = results(attention, inputs, masks(tokens, tokens)[mask])
    assert parts[2 * per_forward :] == [tokens]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_parts_drop_the_same_weights_in_backward(parts):
    attention, inputs = module(4), tensors(24, 24)
    torch.manual_seed(3)
    out = attention(*inputs, dropout=0.5)[0]
    value = inputs[2]
    (grad,) = torch.autograd.grad(out.sum(), value)
    # the output is linear in the values: their product with their gradient is the sum again
    torch.testing.assert_close((grad * value).sum(), out.sum())


def test_parts_are_not_taken_where_weights_are_asked_for_or_the_folder_is_off(parts, monkeypatch):
    attention, inputs = module(4), tensors(24, 24)
    assert attention(*inputs, need_weights=True)[1].shape == (2, 3, 24, 24)
    monkeypatch.setattr(fused.guard, "ON", False)
    attention(*inputs)[0].sum().backward()
    assert parts == [24, 24]


def test_gradients_of_first_and_second_order_are_finite_differences():
    attention, query = module(2), tensors(5, 7)[0][:1, :1, :5]

    def scores(query: Tensor, keys: Tensor) -> Tensor:
        return torch.func.functional_call(_Bias(attention), {"attention.keys": keys}, query)

    inputs = (query.detach().requires_grad_(), attention.keys.detach().requires_grad_())
    assert torch.autograd.gradcheck(scores, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(scores, inputs, fast_mode=True)


class _Bias(torch.nn.Module):
    def __init__(self, attention: RelativePositions) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, query: Tensor) -> Tensor:
        key = query.new_zeros(1, 1, 7, 8)
        return self.attention.distances_and_mask(query, key, None)
