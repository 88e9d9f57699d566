"""ALiBi against the paper's code and its formula, on positions of all kinds."""

import math

import pytest
import torch
import torch.nn.attention.flex_attention
from hypothesis import given, settings
from hypothesis import strategies as st

from cape_plugins import frame_times, patch_grid, token_positions, variants
from cape_plugins.alibi import Alibi, alibi_slopes, attend_without_bias


def build(heads: int = 4, unit: float = 1.0) -> Alibi:
    return Alibi(heads, unit)


def inputs(queries: int, keys: int, batch: int = 2, heads: int = 4, dtype=torch.float64):
    query = torch.randn(batch, heads, queries, 8, dtype=dtype)
    return (query, *torch.randn(2, batch, heads, keys, 8, dtype=dtype))


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


def test_eight_heads_have_a_half_to_a_256th():
    assert alibi_slopes(8).tolist() == [2.0**-k for k in range(1, 9)]


def test_scores_fall_with_the_distance_to_both_sides():
    logits = build().logits(torch.zeros(1, 4, 3, 8), 3)
    slopes = alibi_slopes(4)[:, None, None]
    distance = torch.tensor([[0.0, 1, 2], [1, 0, 1], [2, 1, 0]])
    torch.testing.assert_close(logits, (-slopes * distance)[None])


def test_under_a_causal_mask_it_is_the_papers_row_of_the_keys_positions():
    module, (query, key, value) = build(), inputs(9, 9)
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    row = alibi_slopes(4)[:, None, None].double() * torch.arange(9)
    scores = query @ key.mT / math.sqrt(8) + row
    expected = scores.masked_fill(~causal, -math.inf).softmax(-1) @ value
    torch.testing.assert_close(module(query, key, value, mask=causal), expected)


def test_decoding_step_by_step_is_decoding_at_once():
    module, (query, key, value) = build(), inputs(8, 8)
    positions = torch.rand(2, 8).cumsum(1)
    prepared = module.prepare(positions)
    causal = torch.ones(8, 8, dtype=torch.bool).tril()
    at_once = module(query, key, value, prepared, causal)
    for t in range(8):
        seen = slice(t + 1)
        prepared = module.prepare(positions[:, seen])
        step = module(query[:, :, t : t + 1], key[:, :, seen], value[:, :, seen], prepared)
        torch.testing.assert_close(step, at_once[:, :, t : t + 1])


def test_the_unit_is_a_distance_of_one():
    seconds = frame_times([5, 5], 0.04)
    found = build(unit=0.04).prepare(seconds)[:1]
    torch.testing.assert_close(found, build().prepare(token_positions([5])))


def test_distances_in_images_are_euclidean():
    grid = patch_grid(3, 5)[None]
    module = build(heads=1, unit=0.5)
    found = module.logits(torch.zeros(1, 1, 15, 8), 15, module.prepare(grid))
    expected = -(2.0**-8) * torch.cdist(grid, grid) / 0.5
    torch.testing.assert_close(found[:, 0], expected)


def test_a_token_without_a_position_has_no_bias():
    grid = torch.cat([torch.full((1, 1, 2), math.nan), patch_grid(2, 2)[None]], dim=1)
    logits = build().logits(torch.zeros(1, 4, 5, 8), 5, build().prepare(grid))
    assert not logits[..., 0].any()
    assert not logits[..., 0, :].any()
    assert logits[..., 1:, 1:].sum() < 0


def test_padding_changes_no_real_token():
    module, (query, key, value) = build(), inputs(6, 6)
    positions = token_positions([6, 4])
    mask = ~positions.isnan()[:, None, None]
    out = module(query, key, value, module.prepare(positions), mask)
    prepared = module.prepare(positions[1:, :4])
    alone = module(*(x[1:, :, :4] for x in (query, key, value)), prepared)
    torch.testing.assert_close(out[1:, :, :4], alone)


def test_only_differences_of_positions_matter():
    positions = torch.rand(1, 6, 2)
    shifted = build().prepare(positions + 3)
    torch.testing.assert_close(shifted, build().prepare(positions), rtol=1e-5, atol=1e-5)


def test_shared_positions_make_one_bias_for_all_samples():
    module, query = build(), torch.zeros(3, 4, 6, 8)
    for lengths, samples in (([6], 1), ([6, 6, 2], 3)):
        prepared = module.prepare(token_positions(lengths))
        logits = module.logits(query, 6, prepared)
        assert logits.shape == (samples, 4, 6, 6)
        assert logits.data_ptr() == prepared.data_ptr()  # made once, for all layers


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models_take_distances_in_float32(dtype):
    module = build().to(dtype)
    tensors = [x.to(dtype) for x in inputs(6, 6, dtype=torch.float32)]
    far = module.prepare(torch.arange(6.0)[None] + 10_000)
    assert module.logits(tensors[0], 6, far).dtype == torch.float32
    torch.testing.assert_close(
        module(*tensors, far).float(), build()(*(x.float() for x in tensors)), atol=0.02, rtol=0.02
    )


def test_it_compiles_into_one_graph():
    module, tensors = build(), inputs(6, 6, dtype=torch.float32)
    positions = token_positions([6, 4])

    def run(*given):
        return module(*given[:3], module.prepare(given[3]))

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*tensors, positions), run(*tensors, positions))


def test_the_unit_is_that_of_the_host():
    sizes = dict(head_dim=8, heads=4)
    assert variants.attention_for("alibi", 0, **sizes).unit == 1
    assert variants.attention_for("alibi", 0, **sizes, frequency_scale=30.0).unit == 1 / 30
    image = variants.attention_for("alibi", 0, **sizes, axes=2, context=14)
    image = image.prepare(patch_grid(14, 14)[None])
    assert image[0, 0, 3, 1].item() == pytest.approx(-(2.0**-8))  # next patch, last head


def test_it_learns_nothing_and_is_in_the_table():
    module = variants.attention_for("alibi", 5, head_dim=8, heads=4)
    assert isinstance(module, Alibi)
    assert module.state_dict() == {}


needs_flex_on_the_cpu = pytest.mark.skipif(
    not hasattr(torch.nn.attention.flex_attention, "AuxRequest"), reason="FlexAttention needs CUDA"
)


@needs_flex_on_the_cpu
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("kind", ["none", "bool", "added"])
@pytest.mark.parametrize("queries", [6, 1])
def test_flex_attention_gives_the_same_without_a_bias(axes, kind, queries):
    module, (query, key, value) = build(unit=0.5), inputs(queries, 6, dtype=torch.float32)
    positions = torch.rand(2, 6, axes) * 3
    positions[1, 4:] = math.nan
    visible = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    visible[1, ..., 4:] = False
    mask = {
        "none": None,
        "bool": visible,
        "added": torch.zeros(2, 1, 1, 6).masked_fill(~visible, -math.inf),
    }[kind]
    expected = module.attend(query, key, value, module.prepare(positions), mask, 0.0)
    found = attend_without_bias(query, key, value, positions / 0.5, alibi_slopes(4), mask)
    torch.testing.assert_close(found, expected)
