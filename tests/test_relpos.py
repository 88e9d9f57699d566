"""Relative attention's buffer, written once, against the plain expression; parts of long inputs."""

import math

import pytest
import torch
from torch import Tensor

from cape_plugins import relpos
from cape_plugins.attention import AttentionSettings
from cape_plugins.relpos import RelativeAttention


def module(context: int, dtype=torch.float64, logn: int = 0) -> RelativeAttention:
    torch.manual_seed(0)
    made = RelativeAttention(AttentionSettings(head_dim=8, heads=3, context=context)).to(dtype)
    made.logn = logn
    return made


def tensors(queries: int, keys: int, dtype=torch.float64) -> list[Tensor]:
    torch.manual_seed(1)
    shapes = (queries, keys, keys)
    return [torch.randn(2, 3, n, 8, dtype=dtype, requires_grad=True) for n in shapes]


def masks(queries: int, keys: int) -> dict[str, Tensor | None]:
    padding = torch.ones(2, 1, 1, keys, dtype=torch.bool)
    padding[1, ..., -3:] = False
    causal = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    added = torch.zeros(2, 1, 1, keys, dtype=torch.float64).masked_fill(~padding, -1e9)
    return {"none": None, "padding": padding, "causal": padding & causal, "added": added}


def results(attention, inputs: list[Tensor], mask, **options) -> list[Tensor]:
    out = attention(*inputs, mask=mask, **options)[0]
    torch.manual_seed(2)
    weights = torch.randn(out.shape).to(out.dtype)
    return [out, *torch.autograd.grad(out, [*inputs, attention.keys], weights)]


def plainly(monkeypatch) -> None:
    monkeypatch.setattr(relpos, "is_plain", lambda *_: False)


@pytest.mark.parametrize("mask", ["none", "padding", "causal", "added"])
@pytest.mark.parametrize(("queries", "keys"), [(20, 20), (33, 33), (1, 9), (5, 21)])
@pytest.mark.parametrize("context", [1, 4, 60])
def test_the_buffer_gives_what_the_plain_expression_gives(
    context, queries, keys, mask, monkeypatch
):
    attention, inputs = module(context), tensors(queries, keys)
    found = results(attention, inputs, masks(queries, keys)[mask])
    plainly(monkeypatch)
    expected = results(attention, inputs, masks(queries, keys)[mask])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scores_are_the_bits_of_the_plain_expression(dtype, monkeypatch):
    attention, query = module(4, dtype), tensors(20, 20, dtype)[0]
    found = attention.bias(query, 20)
    plainly(monkeypatch)
    assert torch.equal(found, attention.bias(query, 20))


@pytest.mark.parametrize("queries", [7, 16, 33, 300])
def test_rows_of_the_scores_lie_as_fused_attention_takes_them(queries):
    """Multiples of eight, or PyTorch copies all of them once more."""
    scores = module(4, torch.bfloat16).bias(tensors(queries, queries, torch.bfloat16)[0], queries)
    *others, last = scores.stride()
    assert last == 1
    assert all(stride % 16 == 0 for stride in others)
    assert scores.storage_offset() % 16 == 0


@pytest.fixture
def parts(monkeypatch) -> list[int]:
    """Parts of 8 queries from 64 scores on, and how many queries each had, backward included."""
    monkeypatch.setattr(relpos, "PART", 8)
    monkeypatch.setattr(relpos, "MANY", 64)
    found, whole = [], RelativeAttention._attend_part

    def count(self, query, *rest):
        found.append(query.shape[2])
        return whole(self, query, *rest)

    monkeypatch.setattr(RelativeAttention, "_attend_part", count)
    return found


@pytest.mark.parametrize("mask", ["none", "padding", "causal", "added"])
@pytest.mark.parametrize(("queries", "keys"), [(16, 16), (21, 21), (17, 30)])
@pytest.mark.parametrize("logn", [0, 12])
def test_parts_of_the_queries_are_the_whole(queries, keys, mask, logn, parts, monkeypatch):
    attention, inputs = module(4, logn=logn), tensors(queries, keys)
    found = results(attention, inputs, masks(queries, keys)[mask])
    per_forward = math.ceil(queries / 8)
    assert len(parts) == 2 * per_forward  # backward makes them again
    assert sum(parts[:per_forward]) == queries
    monkeypatch.setattr(relpos, "MANY", math.inf)
    expected = results(attention, inputs, masks(queries, keys)[mask])
    assert len(parts) == 2 * per_forward
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


def test_parts_are_not_taken_where_weights_are_asked_for_or_a_compiler_looks(parts):
    attention, inputs = module(4), tensors(24, 24)
    assert attention(*inputs, need_weights=True)[1].shape == (2, 3, 24, 24)
    torch.compile(attention, backend="aot_eager", fullgraph=True)(*inputs)
    assert parts == []


def test_gradients_of_first_and_second_order_are_finite_differences():
    attention, query = module(2), tensors(5, 7)[0][:1, :1, :5]

    def scores(query: Tensor, keys: Tensor) -> Tensor:
        return torch.func.functional_call(_Bias(attention), {"attention.keys": keys}, query)

    inputs = (query.detach().requires_grad_(), attention.keys.detach().requires_grad_())
    assert torch.autograd.gradcheck(scores, inputs)
    assert torch.autograd.gradgradcheck(scores, inputs)


class _Bias(torch.nn.Module):
    def __init__(self, attention: RelativeAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, query: Tensor) -> Tensor:
        return self.attention.bias(query, 7)


def test_batched_gradients_and_torch_func_work():
    attention, inputs = module(3), tensors(6, 6)
    out = attention(*inputs)[0]
    weights = torch.randn(4, *out.shape, dtype=out.dtype)
    (batched,) = torch.autograd.grad(
        out, attention.keys, weights, retain_graph=True, is_grads_batched=True
    )
    for i, weight in enumerate(weights):
        (alone,) = torch.autograd.grad(out, attention.keys, weight, retain_graph=True)
        torch.testing.assert_close(batched[i], alone)
    with torch.no_grad():
        each = torch.vmap(lambda *x: attention(*(t[None] for t in x))[0][0])(*inputs)
    torch.testing.assert_close(each, out)
