"""Queries scaled by log N / log N_train, N counted over what each query sees."""

import math

import pytest
import torch
from cape_plugins.logn import check_logn, scale_queries
from hypothesis import given, settings
from hypothesis import strategies as st

from cape_plugins import variants
from cape_plugins.attention import AttentionSettings, PositionalAttention

SIZES = AttentionSettings(head_dim=4, heads=2, context=3)
LEAST = {dtype: torch.finfo(dtype).min for dtype in (torch.float32, torch.bfloat16, torch.float16)}


def query(*, batch: int = 2, queries: int = 5, dtype=torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, 2, queries, 4, generator=generator).to(dtype)


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(2, 5000))
def test_without_a_mask_every_key_counts(keys, trained):
    q = query().double()
    expected = q * math.log(keys) / math.log(trained)
    torch.testing.assert_close(scale_queries(q, keys, None, trained), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(2, 1, 1, 5), (2, 2, 5, 5)])
@pytest.mark.parametrize("dtype", LEAST)
@pytest.mark.parametrize("added", [None, -math.inf, "finfo.min", -1e9, -1e4])
def test_padding_does_not_count_however_hosts_hide_it(added, dtype, shape):
    """-1e4 is -9984 in bfloat16; float16 has no -1e9."""
    mask = torch.ones(shape, dtype=torch.bool)
    mask[1, ..., 3:] = False
    if added is not None:
        value = LEAST[dtype] if added == "finfo.min" else max(added, LEAST[dtype])
        value = added if added == -math.inf else value
        mask = torch.zeros(shape, dtype=dtype).masked_fill(~mask, value)
    out = scale_queries(query(), 5, mask, 10)
    torch.testing.assert_close(out[:1], query()[:1] * math.log(5) / math.log(10))
    torch.testing.assert_close(out[1:], query()[1:] * math.log(3) / math.log(10))


@pytest.mark.parametrize(("added", "seen"), [(-1000.0, 3), (-999.0, 5), (-100.0, 5), (5.0, 5)])
def test_what_is_added_hides_a_key_from_minus_1000_on(added, seen):
    mask = torch.zeros(5, 5)
    mask[:, 3:] = added
    assert torch.equal(scale_queries(query(), 5, mask, 10), scale_queries(query(), seen, None, 10))


def test_a_mask_that_keys_share_counts_them_all():
    mask = torch.ones(2, 1, 1, 1, dtype=torch.bool)
    assert torch.equal(scale_queries(query(), 5, mask, 10), scale_queries(query(), 5, None, 10))


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
@pytest.mark.parametrize("need_weights", [False, True])
def test_every_variant_takes_it(pos, need_weights):
    tensors = torch.randn(3, 2, 2, 6, 4)
    mask = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    mask[1, ..., 4:] = False
    positions = torch.arange(6.0).expand(2, 6).masked_fill(~mask[:, 0, 0], math.nan)
    (scaled,) = variants.attention_layers(pos, 1, SIZES, logn=10)
    (plain,) = variants.attention_layers(pos, 1, SIZES)
    plain = plain or PositionalAttention()
    plain.load_state_dict(scaled.state_dict())
    positions = plain.prepare(positions, SIZES)
    by_hand = [
        plain(
            tensors[0, b : b + 1] * math.log(seen) / math.log(10),
            *(x[b : b + 1] for x in tensors[1:]),
            positions[b : b + 1],
            mask[b : b + 1],
        )[0]
        for b, seen in enumerate((6, 4))
    ]
    out, _ = scaled(*tensors, positions, mask, need_weights=need_weights)
    torch.testing.assert_close(out, torch.cat(by_hand))


def test_it_is_off_by_default_and_takes_no_parameters():
    assert variants.attention_layers("cape", 2, SIZES) == [None, None]
    assert variants.attention_layers("relpos", 1, SIZES)[0].logn == 0
    assert variants.attention_layers("cape", 1, SIZES, 10)[0].state_dict() == {}
    first, later = variants.attention_layers("relpos_first", 2, SIZES, 10)
    assert type(later) is PositionalAttention
    assert first.logn == later.logn == 10


@pytest.mark.parametrize("value", [1, -5, True, False, 2.5, "many", math.nan])
def test_what_is_no_number_of_tokens_is_refused(value):
    for allowed in (None, 0, 2):
        check_logn(allowed)
    with pytest.raises(ValueError, match=rf"^attention_logn must .* or 0 for off, got {value!r}"):
        check_logn(value)


def test_it_compiles_for_any_number_of_keys():
    (module,) = variants.attention_layers("nopos", 1, SIZES, logn=10)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for keys in (5, 8, 13):
        tensors = torch.randn(3, 2, 2, keys, 4)
        torch.testing.assert_close(compiled(*tensors)[0], module(*tensors)[0])
