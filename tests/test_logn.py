"""Queries scaled by log N / log N_train, N counted over what each query sees."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cape_plugins import variants
from cape_plugins.attention import PositionalAttention
from cape_plugins.logn import check_logn, scale_queries

HEADS = dict(head_dim=4, heads=2)


def query(*, batch: int = 2, queries: int = 5, dtype=torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, 2, queries, 4, generator=generator).to(dtype)


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(2, 5000))
def test_without_a_mask_every_key_counts(keys, trained):
    q = query().double()
    expected = q * math.log(keys) / math.log(trained)
    torch.testing.assert_close(scale_queries(q, keys, None, trained), expected, rtol=1e-6, atol=0)


def test_as_many_keys_as_in_training_change_nothing():
    assert torch.equal(scale_queries(query(), 197, None, 197), query())


@pytest.mark.parametrize("added", [-math.inf, torch.finfo(torch.float32).min, None])
def test_padding_does_not_count(added):
    mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    mask[1, ..., 3:] = False
    if added is not None:
        mask = torch.zeros(2, 1, 1, 5).masked_fill(~mask, added)
    out = scale_queries(query(), 5, mask, 10)
    torch.testing.assert_close(out[:1], query()[:1] * math.log(5) / math.log(10))
    torch.testing.assert_close(out[1:], query()[1:] * math.log(3) / math.log(10))


def test_under_a_causal_mask_each_query_counts_the_keys_so_far():
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    out = scale_queries(query(), 5, causal, 10)
    for t in range(5):
        step = scale_queries(query()[:, :, t : t + 1], t + 1, None, 10)
        torch.testing.assert_close(out[:, :, t : t + 1], step)


def test_a_query_that_sees_nothing_stays_finite():
    assert scale_queries(query(), 5, torch.zeros(5, 5, dtype=torch.bool), 10).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_half_precision(dtype):
    mask = torch.zeros(5, 5, dtype=dtype).masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
    out = scale_queries(query(dtype=dtype), 5, mask, 10)
    assert out.dtype == dtype
    exact = scale_queries(query(dtype=dtype).float(), 5, mask.float(), 10)
    torch.testing.assert_close(out, exact.to(dtype))


@pytest.mark.parametrize("pos", variants.names(1))
def test_every_variant_takes_it(pos):
    tensors = torch.randn(3, 2, 2, 6, 4)
    mask = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    mask[1, ..., 4:] = False
    positions = torch.arange(6.0).expand(2, 6).masked_fill(~mask[:, 0, 0], math.nan)
    torch.manual_seed(0)
    scaled = variants.attention_for(pos, 0, **HEADS, context=3, logn=10)
    torch.manual_seed(0)
    plain = variants.attention_for(pos, 0, **HEADS, context=3) or PositionalAttention()
    positions = plain.prepare(positions)
    by_hand = [
        plain(
            tensors[0, b : b + 1] * math.log(seen) / math.log(10),
            *(x[b : b + 1] for x in tensors[1:]),
            positions[b : b + 1],
            mask[b : b + 1],
        )
        for b, seen in enumerate((6, 4))
    ]
    torch.testing.assert_close(scaled(*tensors, positions, mask), torch.cat(by_hand))


def test_it_is_off_by_default_and_takes_no_parameters():
    assert variants.attention_for("cape", 0, **HEADS) is None
    assert variants.attention_for("relpos", 0, **HEADS, context=3).logn == 0
    assert variants.attention_for("cape", 0, **HEADS, logn=10).state_dict() == {}
    later = variants.attention_for("relpos_first", 1, **HEADS, context=3, logn=10)
    assert type(later) is PositionalAttention
    assert later.logn == 10


@pytest.mark.parametrize("value", [None, 0])
def test_nothing_and_zero_are_off(value):
    assert check_logn(value) == 0


@pytest.mark.parametrize("value", [1, -5, True, False, 2.5, "many", math.nan])
def test_what_is_no_number_of_tokens_is_refused(value):
    with pytest.raises(ValueError, match="attention_logn must be the number of tokens"):
        check_logn(value)


def test_it_compiles_for_any_number_of_keys():
    module = variants.attention_for("nopos", 0, **HEADS, logn=10)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for keys in (5, 8, 13):
        tensors = torch.randn(3, 2, 2, keys, 4)
        torch.testing.assert_close(compiled(*tensors), module(*tensors))
