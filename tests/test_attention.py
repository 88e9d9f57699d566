"""Relative attention against the formula of Shaw et al., written out with its (T, T, d) tensors."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from cape_plugins.attention import RelativeAttention


def written_out(module, query, key, value, mask=None) -> torch.Tensor:
    """Equations 3 and 4 of Shaw et al.; queries are the last positions."""
    queries, keys = query.shape[2], key.shape[2]
    i = torch.arange(keys - queries, keys)[:, None]
    distance = (torch.arange(keys) - i).clamp(-module.context, module.context) + module.context
    with_distance = key[:, :, None] + module.keys[distance]  # (B, heads, queries, keys, d)
    scores = torch.einsum("bhid,bhijd->bhij", query, with_distance) / math.sqrt(query.shape[3])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(dim=-1)
    out = weights @ value
    if module.values is not None:
        out = out + torch.einsum("bhij,ijd->bhid", weights, module.values[distance])
    return out


def inputs(queries: int, keys: int, batch=2, heads=3, dim=4, dtype=torch.float64):
    query = torch.randn(batch, heads, queries, dim, dtype=dtype)
    return (query, *torch.randn(2, batch, heads, keys, dim, dtype=dtype))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), st.integers(0, 12), st.integers(1, 15), st.booleans())
def test_it_is_the_formula(queries, earlier, context, values):
    module = RelativeAttention(4, context, values=values).double()
    query, key, value = inputs(queries, queries + earlier)
    expected = written_out(module, query, key, value)
    torch.testing.assert_close(module(query, key, value), expected)


def test_the_vectors_begin_uniform_in_a_tenth():
    tables = RelativeAttention(64, 100, values=True)
    for table in (tables.keys, tables.values):
        assert -0.1 <= table.min() < -0.099
        assert 0.099 < table.max() <= 0.1
        assert table.mean().abs() < 0.005


@pytest.mark.parametrize("values", [False, True])
def test_masked_keys_are_not_seen(values):
    module = RelativeAttention(4, 3, values=values).double()
    query, key, value = inputs(6, 6)
    mask = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    mask[1, ..., 4:] = False
    out = module(query, key, value, mask=mask)
    torch.testing.assert_close(out, written_out(module, query, key, value, mask))
    alone = module(query[1:, :, :4], key[1:, :, :4], value[1:, :, :4])
    torch.testing.assert_close(out[1:, :, :4], alone)


@pytest.mark.parametrize("values", [False, True])
def test_decoding_step_by_step_is_decoding_at_once(values):
    module = RelativeAttention(4, 3, values=values).double()
    query, key, value = inputs(8, 8)
    causal = torch.ones(8, 8, dtype=torch.bool).tril()
    at_once = module(query, key, value, mask=causal)
    steps = [
        module(query[:, :, t : t + 1], key[:, :, : t + 1], value[:, :, : t + 1]) for t in range(8)
    ]
    torch.testing.assert_close(torch.cat(steps, dim=2), at_once)


def test_only_distances_matter():
    module = RelativeAttention(4, 5).double()
    query, key, _ = inputs(1, 1)
    same = query.expand(-1, -1, 9, -1), key.expand(-1, -1, 9, -1)
    logits = module.logits(same[0], 9)
    for offset in range(-8, 9):
        diagonal = logits.diagonal(offset, dim1=2, dim2=3)
        torch.testing.assert_close(diagonal, diagonal[..., :1].expand_as(diagonal))
    assert torch.equal(logits[..., 0, 5], logits[..., 0, 8])  # beyond the context: clipped to it


@pytest.mark.parametrize("values", [False, True])
def test_gradients_are_right(values):
    module = RelativeAttention(3, 2, values=values).double()
    tensors = [t.requires_grad_() for t in inputs(3, 5, batch=1, heads=2, dim=3)]
    parameters = list(module.parameters())
    torch.autograd.gradcheck(lambda *given: module(*given[:3]), (*tensors, *parameters))


@pytest.mark.parametrize("values", [False, True])
def test_nothing_as_large_as_length_squared_times_channels_is_made(values):
    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                self.elements = max(self.elements, out.numel())
            return out

    module = RelativeAttention(64, 10, values=values)
    tensors = [t.requires_grad_() for t in inputs(100, 100, 1, 1, 64, torch.float32)]
    with Largest() as largest:
        module(*tensors).sum().backward()
    assert largest.elements <= 2 * 100 * 100 + 200


@pytest.mark.parametrize("values", [False, True])
def test_half_precision_stays_half_precision(values):
    module = RelativeAttention(4, 3, values=values)
    query, key, value = inputs(6, 6, dtype=torch.float32)
    out = module(query.bfloat16(), key.bfloat16(), value.bfloat16())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), module(query, key, value), atol=0.05, rtol=0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(
            module(query, key, value).float(), out.float(), atol=0.05, rtol=0.05
        )


def test_it_compiles_into_one_graph():
    module = RelativeAttention(4, 3)
    tensors = inputs(6, 6, dtype=torch.float32)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*tensors), module(*tensors))


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="context must be ≥ 1"):
        RelativeAttention(4, 0)
    module = RelativeAttention(4, 3).double()
    with pytest.raises(ValueError, match="6 queries are not the last positions of 5 keys"):
        module(*inputs(6, 5))
    with pytest.raises(ValueError, match="5 channels, built for 4"):
        module(*inputs(6, 6, dim=5))
