"""Attention with positions: the base class, relative attention, what all variants have in common.

Relative attention is compared with the formula of Shaw et al., written out with its (T, T, d).
"""

import copy
import io
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from cape_plugins import PositionalEmbedding, attention, token_positions, variants
from cape_plugins.attention import AttentionSettings, PositionalAttention
from cape_plugins.relpos import RelativeAttention
from cape_support import Sizes

SIZES = AttentionSettings(head_dim=4, heads=3, context=3)
# (name, axes) of every class that sits in attention; that of nopos scales queries by log N
EACH = [("nopos", 1), ("relpos", 1), ("rope_mixed", 2)]
EACH += [(pos, axes) for pos in ("rope", "alibi") for axes in (1, 2)]
MASKS = {
    "bool": None,
    "-inf": -math.inf,
    "finfo.min": torch.finfo(torch.float32).min,
    "-1e9": -1e9,
    "-1e4": -1e4,
}


def relative(head_dim: int = 4, context: int = 3) -> RelativeAttention:
    sizes = AttentionSettings(head_dim=head_dim, heads=3, context=context)
    return RelativeAttention(sizes).double()


def inputs(queries: int, keys: int, batch=2, heads=3, dim=4, dtype=torch.float64):
    query = torch.randn(batch, heads, queries, dim, dtype=dtype)
    return (query, *torch.randn(2, batch, heads, keys, dim, dtype=dtype))


def module_and_positions(pos: str, axes: int, tokens: int = 6):
    """An attention of the table, its parameters moved, and positions (2, tokens, …) for it."""
    sizes = AttentionSettings(head_dim=4, heads=3, axes=axes, context=3)
    (module,) = variants.attention_layers(pos, 1, sizes, logn=0 if pos != "nopos" else 10)
    for parameter in module.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    positions = token_positions([tokens, tokens - 2]) * 1.25
    if axes == 2:
        positions = torch.rand(2, tokens, 2) + 0 * positions[..., None]
    return module, variants.prepare(pos, positions, sizes)


def padding(added: float | None = None, dtype=torch.float32) -> torch.Tensor:
    """(2, 1, 1, 6), the last two keys of sample 1 hidden: bool, or added to the scores."""
    mask = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    mask[1, ..., 4:] = False
    if added is None:
        return mask
    return torch.zeros(2, 1, 1, 6, dtype=dtype).masked_fill(~mask, added)


# The base class


class Tilted(PositionalAttention):
    """Scores fall with the distance of positions."""

    def embed(self, x, positions):
        return x * (1 + positions.nan_to_num()[:, None, :, None])

    def bias(self, query, keys, positions=None):
        last = positions[:, keys - query.shape[2] :, None]
        return -(last - positions[:, None]).abs().nan_to_num()[:, None]


def test_the_base_is_attention_without_positions():
    query, key, value = inputs(5, 5)
    mask = torch.rand(2, 1, 5, 5) > 0.3
    mask[..., 0] = True
    out, weights = PositionalAttention()(query, key, value, mask=mask)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    torch.testing.assert_close(out, expected)
    assert weights is None
    positions = token_positions([5], dtype=torch.float64)
    prepared = PositionalAttention.prepare(positions, SIZES)
    assert prepared.dtype == torch.float32
    assert torch.equal(prepared, positions.float())


def test_embeddings_and_scores_reach_the_output():
    query, key, value = inputs(2, 5)
    positions = torch.rand(1, 5, dtype=torch.float64) * 3
    mask = torch.ones(2, 1, 2, 5, dtype=torch.bool)
    mask[1, ..., 1] = False
    placed = key * (1 + positions[:, None, :, None])
    scores = (query * (1 + positions[:, None, 3:, None])) @ placed.transpose(2, 3) / 2
    scores = scores - (positions[:, 3:, None] - positions[:, None]).abs()[:, None]
    scores = scores.masked_fill(~mask, -torch.inf)
    out, found = Tilted()(query, key, value, positions, mask, need_weights=True)
    torch.testing.assert_close(out, scores.softmax(-1) @ value)
    torch.testing.assert_close(found, scores.softmax(-1))
    turned = Tilted().embed(query, positions[:, 3:]), placed
    torch.testing.assert_close(Tilted().scores(*turned, positions, mask), scores)
    attended, nothing = Tilted().attend(*turned, value, positions, mask)
    torch.testing.assert_close(attended, out)
    assert nothing is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(head_dim=0), "head_dim must be an integer ≥ 1, got 0"),
        (dict(heads=2.5), "heads must be an integer ≥ 1, got 2.5"),
        (dict(axes=0), "axes must be an integer ≥ 1, got 0"),
        (dict(context=0), "context must be an integer ≥ 1, got 0"),
        (dict(unit=0.0), "unit must be finite and > 0, got 0.0"),
        (dict(frequency_scale=math.nan), "frequency_scale must be finite and > 0, got nan"),
    ],
)
def test_settings_that_no_attention_has_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        AttentionSettings(**{"head_dim": 4, "heads": 2, **settings})


# What all variants have in common


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("pos", "axes"), EACH)
def test_masked_keys_are_not_seen_with_and_without_weights(pos, axes, kind):
    module, positions = module_and_positions(pos, axes)
    tensors = inputs(6, 6, dtype=torch.float32)
    mask = padding(MASKS[kind])
    out, weights = module(*tensors, positions, mask, need_weights=True)
    torch.testing.assert_close(module(*tensors, positions, mask)[0], out)
    assert weights.shape == (2, 3, 6, 6)
    assert not weights[1, ..., 4:].any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 6))
    alone = [x[1:, :, :4] for x in tensors]
    cut = None if positions is None else positions[1:, :4]
    if cut is not None and pos.endswith("alibi"):
        cut = cut[..., :4]  # its rows hold a column for each key
    torch.testing.assert_close(module(*alone, cut)[0], out[1:, :, :4])


@pytest.mark.parametrize(("pos", "axes"), EACH)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_half_precision(pos, axes, dtype):
    module, positions = module_and_positions(pos, axes)
    tensors = inputs(6, 6, dtype=torch.float32)
    expected, weights = module(*tensors, positions, padding(), need_weights=True)
    half = copy.deepcopy(module).to(dtype)
    for need_weights in (False, True):
        given = [x.to(dtype) for x in tensors]
        out, found = half(*given, positions, padding(-1e4, dtype), need_weights=need_weights)
        assert out.dtype == dtype
        torch.testing.assert_close(out.float(), expected, atol=0.05, rtol=0.05)
        with torch.autocast("cpu", dtype=dtype):
            out, _ = module(*tensors, positions, padding(), need_weights=need_weights)
        torch.testing.assert_close(out.float(), expected, atol=0.05, rtol=0.05)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, weights, atol=0.02, rtol=0.02)


@pytest.mark.parametrize(("pos", "axes"), EACH)
def test_decoding_step_by_step_is_decoding_at_once(pos, axes):
    module, positions = module_and_positions(pos, axes)
    query, key, value = inputs(6, 6, dtype=torch.float32)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    at_once, _ = module(query, key, value, positions, causal)
    for t in range(6):
        seen = slice(t + 1)
        cut = None if positions is None else positions[:, seen]
        if cut is not None and pos.endswith("alibi"):
            cut = cut[..., seen]
        step, _ = module(query[:, :, t : t + 1], key[:, :, seen], value[:, :, seen], cut)
        torch.testing.assert_close(step, at_once[:, :, t : t + 1])


@pytest.mark.parametrize(("pos", "axes"), EACH)
def test_gradients_are_right(pos, axes):
    module, positions = module_and_positions(pos, axes, tokens=4)
    module.double()
    tensors = [t.requires_grad_() for t in inputs(3, 4, batch=2)]
    positions = None if positions is None else positions.double()
    if positions is not None and pos == "alibi":
        positions.requires_grad_()
    torch.autograd.gradcheck(
        lambda *given: module(*given[:3], positions)[0],
        (*tensors, *module.parameters()),
        atol=1e-4,
        nondet_tol=1e-12,
    )


@pytest.mark.parametrize(("pos", "axes"), [("rope", 1), ("rope_mixed", 2), ("alibi", 2)])
def test_positions_that_want_a_gradient_get_it(pos, axes):
    sizes = AttentionSettings(head_dim=4, heads=3, axes=axes)
    (module,) = variants.attention_layers(pos, 1, sizes)
    positions = torch.rand(2, 5, *([2] if axes == 2 else []), requires_grad=True)
    out, _ = module(*inputs(5, 5, dtype=torch.float32), variants.prepare(pos, positions, sizes))
    out.square().sum().backward()
    assert positions.grad.isfinite().all()
    assert (positions.grad.reshape(10, -1) != 0).any(dim=1).all()


@pytest.mark.parametrize(("pos", "axes"), EACH)
def test_it_compiles_into_one_graph(pos, axes):
    torch._dynamo.reset()
    module, positions = module_and_positions(pos, axes)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for need_weights in (False, True):
        given = *inputs(6, 6, dtype=torch.float32), positions, padding(), 0.0, need_weights
        for found, expected in zip(compiled(*given), module(*given), strict=True):
            if expected is not None:
                torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("pos", "axes"), EACH)
def test_dropout_falls_on_the_weights(pos, axes):
    module, positions = module_and_positions(pos, axes)
    tensors = inputs(6, 6, dtype=torch.float32)
    plain, weights = module(*tensors, positions, need_weights=True)
    for need_weights in (False, True):
        torch.manual_seed(0)
        mean = sum(
            module(*tensors, positions, dropout=0.5, need_weights=need_weights)[0]
            for _ in range(400)
        )
        torch.testing.assert_close(mean / 400, plain, atol=0.6, rtol=0)
        once, found = module(*tensors, positions, dropout=0.5, need_weights=need_weights)
        assert not torch.allclose(once, plain)
        # what is handed out is before dropout
        assert found is None or torch.equal(found, weights)


@pytest.mark.parametrize(("pos", "axes"), EACH)
def test_prepare_is_made_once_and_shared_by_the_layers(pos, axes):
    attention = variants.get(pos).attention or PositionalAttention
    sizes = AttentionSettings(head_dim=4, heads=3, axes=axes, context=3)
    shared = torch.rand(1, 6, *([2] if axes == 2 else []))
    prepared = attention.prepare(shared, sizes)
    assert (prepared.shape[:2], prepared.dtype) == ((1, 6), torch.float32)
    tensors = inputs(6, 6, dtype=torch.float32)
    for layer in variants.attention_layers(pos, 3, sizes, logn=10):
        expected = layer(*tensors, prepared.expand(2, *prepared.shape[1:]))[0]
        torch.testing.assert_close(layer(*tensors, prepared)[0], expected)
        assert repr(layer).startswith(f"{type(layer).__name__}(AttentionSettings(head_dim=4, h")


@pytest.mark.parametrize(("pos", "axes"), [("relpos", 1), ("rope", 2), ("alibi", 1)])
def test_export_with_any_length_and_onnx_give_the_same(pos, axes):
    sizes = AttentionSettings(head_dim=4, heads=3, axes=axes, context=3)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = PositionalEmbedding(12, "cape", axes=axes)
            (self.attention,) = variants.attention_layers(pos, 1, sizes)

        def forward(self, x, positions):
            x = self.position(x, positions).unflatten(2, (3, 4)).transpose(1, 2)
            prepared = variants.prepare(pos, positions, sizes)
            return self.attention(x, x + 1, x - 1, prepared)[0]

    def example(tokens: int):
        positions = torch.rand(2, tokens, *([2] if axes == 2 else []))
        positions[1, 5:] = math.nan
        return torch.randn(2, tokens, 12), positions

    layer, tokens = Layer().eval(), torch.export.Dim("tokens", min=6, max=100)
    exported = torch.export.export(layer, example(7), dynamic_shapes=({1: tokens}, {1: tokens}))
    longer = example(11)
    torch.testing.assert_close(exported.module()(*longer), layer(*longer))
    if pos == "alibi":
        runtime, file = pytest.importorskip("onnxruntime"), io.BytesIO()
        torch.onnx.export(exported, dynamo=True, verbose=False).save(file)
        session = runtime.InferenceSession(file.getvalue())
        names = [each.name for each in session.get_inputs()]
        (out,) = session.run(None, dict(zip(names, (x.numpy() for x in longer), strict=True)))
        torch.testing.assert_close(torch.from_numpy(out), layer(*longer), atol=1e-5, rtol=1e-4)


def test_more_queries_than_keys_are_refused():
    for pos, axes in EACH:
        module, positions = module_and_positions(pos, axes, tokens=5)
        with pytest.raises(ValueError, match="6 queries are not the last positions of 5 keys"):
            module(*inputs(6, 5, dtype=torch.float32), positions)


# Bias and mask as one


def test_bias_and_mask_merge_whatever_their_kinds():
    bias = torch.randn(1, 3, 6, 6)
    hidden = ~padding().expand(2, 3, 6, 6)
    assert attention.merge_bias(None, None, torch.float32) is None
    assert attention.merge_bias(None, padding(), torch.float16).dtype == torch.bool
    assert attention.merge_bias(bias, None, torch.float16).equal(bias.half())
    assert attention.merge_bias(None, padding(-1e4), torch.bfloat16).equal(padding(-1e4).bfloat16())
    found = attention.merge_bias(bias, padding(), torch.float32)
    assert found.equal(bias.expand(2, 3, 6, 6).masked_fill(hidden, -math.inf))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        least = torch.finfo(dtype).min
        for added in (-math.inf, torch.finfo(torch.float32).min, least):
            found = attention.merge_bias(bias, padding(added), dtype)
            assert found.dtype == dtype
            assert found[~hidden].equal(bias.expand_as(hidden)[~hidden].to(dtype))
            # finite, so that a row of padding stays a number
            assert found[hidden].eq(least).all()


# Relative attention


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
    return weights @ value


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), st.integers(0, 12), st.integers(1, 15), st.booleans())
def test_relative_attention_is_the_formula(queries, earlier, context, masked):
    module = relative(4, context)
    tensors = inputs(queries, queries + earlier)
    mask = torch.rand(2, 1, queries, queries + earlier) > 0.3 if masked else None
    if masked:
        mask[..., 0] = True
    expected = written_out(module, *tensors, mask)
    torch.testing.assert_close(module(*tensors, mask=mask)[0], expected)


def test_the_vectors_begin_uniform_in_a_tenth():
    tables = relative(64, 100)
    for _ in range(2):
        assert -0.1 <= tables.keys.min() < -0.099
        assert 0.099 < tables.keys.max() <= 0.1
        assert tables.keys.mean().abs() < 0.005
        before = tables.keys.clone()
        tables.reset_parameters()
        assert not torch.equal(tables.keys, before)


def test_nothing_as_large_as_length_squared_times_channels_is_made():
    module = relative(64, 10).float()
    tensors = [t.requires_grad_() for t in inputs(100, 100, 1, 1, 64, torch.float32)]
    with Sizes() as sizes:
        module(*tensors)[0].sum().backward()
    assert sizes.largest < 3 * 100 * 100


def test_what_does_not_fit_is_named():
    relative(head_dim=1, context=1)
    with pytest.raises(ValueError, match="5 channels, built for 4"):
        relative()(*inputs(6, 6, dim=5))
