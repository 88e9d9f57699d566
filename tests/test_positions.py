"""The road of all hosts: content and positions in, content and what attention gets out."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cape_plugins import (
    Draw,
    Given,
    Positions,
    frame_times,
    sinusoid_1d,
    sinusoid_2d,
    token_positions,
)
from cape_plugins.alibi import Alibi
from cape_plugins.attention import PositionalAttention
from cape_plugins.random_positions import spread_evenly
from cape_plugins.relpos import RelativePositions, RelativePositionsFirst
from cape_plugins.rotary import Rotary
from cape_support import OURS, SEQUENCES, Layer, Made, build, places, replica, seeded

NAN = math.nan
ADDING = [case for case in OURS if case[0] in ("abspos", "sinpos", "cape", "random")]
DRAWING = [case for case in OURS if case[0].startswith(("cape", "random", "pose"))]
HIDING = torch.tensor([[[True] * 6], [[True] * 4 + [False] * 2]])  # (B, 1, N), padding


def sinusoids(axes: int):
    return sinusoid_1d if axes == 1 else sinusoid_2d


# What each variant makes of positions


@pytest.mark.parametrize(("pos", "axes"), OURS)
def test_what_is_added_can_be_had_alone_and_the_others_hand_on_the_content_itself(pos, axes):
    content, positions, module = torch.randn(2, 6, 12), places(axes, 6, 4), build(pos, axes)
    out, given = module(content, positions, generator=seeded())
    alone, _ = module(None, positions, generator=seeded())
    if (pos, axes) in ADDING:
        torch.testing.assert_close(out, content + alone)
        assert given == Given()
        for dtype in (torch.float64, torch.bfloat16):
            assert module(None, positions, dtype=dtype)[0].dtype == dtype
        return
    assert (out is content, alone) == (True, None)
    made = [one for one in (given.queries, given.bias) if one is not None]
    assert (made == []) == (pos in ("nopos", "relpos", "relpos_first"))


@pytest.mark.parametrize("axes", [1, 2])
def test_in_evaluation_cape_is_centred_random_spread_evenly_and_the_others_as_given(axes):
    positions = places(axes, 6, 4)
    centred = positions - positions.nanmean(dim=1, keepdim=True)
    evenly = spread_evenly(positions.view(2, 6, axes), 0.0, 7.0).view(positions.shape)
    for pos, options, where in (
        ("sinpos", {}, positions),
        ("cape", dict(mean_normalize=False), positions),
        ("cape", {}, centred),
        ("random", dict(random_range=(0.0, 7.0)), evenly),
        ("random", dict(spread=False), positions),
    ):
        found, _ = build(pos, axes, **options).eval()(None, positions)
        torch.testing.assert_close(found, sinusoids(axes)(where, 12), atol=1e-5, rtol=0)


def test_abspos_looks_up_its_table_and_wraps_or_raises_beyond_it():
    abspos = Positions("abspos", dim=8, abspos_context=4)
    added, _ = abspos(torch.zeros(1, 6, 8), torch.tensor([[0.4, 0.6, 2, 3, 4, NAN]]))
    assert torch.equal(added[0, :5], abspos.added.table[[0, 1, 2, 3, 0]])
    assert not added[0, 5].any()
    abspos = Positions("abspos", dim=8, abspos_context=4, overflow="error")
    abspos(torch.zeros(1, 4, 8), token_positions([4]))
    with pytest.raises(ValueError, match="abspos_context"):
        abspos(torch.zeros(1, 6, 8), token_positions([6]))
    with pytest.raises(ValueError, match="abspos_context"):
        abspos(torch.zeros(1, 2, 8), torch.tensor([[-1.0, 0.0]]))


def test_lengths_in_the_hosts_unit_are_counted_in_tokens_by_their_spacing():
    abspos = Positions("abspos", dim=8, abspos_context=0.16, spacing=0.04)
    added, _ = abspos(torch.zeros(1, 5, 8), frame_times([5], 0.04))
    assert torch.equal(added[0], abspos.added.table[[0, 1, 2, 3, 0]])
    (relpos,) = build("relpos", relpos_context=6.0, spacing=0.04).attentions
    assert relpos.keys.shape == (2 * 150 + 1, 4)
    seconds, tokens = build("alibi", spacing=0.04), build("alibi")
    in_seconds = seconds(None, frame_times([5], 0.04))[1].bias
    torch.testing.assert_close(in_seconds, tokens(None, token_positions([5]))[1].bias)


def test_each_layer_gets_its_attention_and_relpos_first_the_first_alone():
    for pos, kind in (("relpos", RelativePositions), ("rope", Rotary), ("alibi", Alibi)):
        assert [type(one) for one in build(pos, layers=3).attentions] == [kind] * 3
    kinds = [type(one) for one in build("relpos_first", layers=3).attentions]
    assert kinds == [RelativePositionsFirst, PositionalAttention, PositionalAttention]
    assert [type(one) for one in build("cape", layers=2).attentions] == [PositionalAttention] * 2
    assert [*build("nopos", layers=0).attentions] == []
    first, second = build("relpos", layers=2).attentions
    assert first is not second
    assert not torch.equal(first.keys, second.keys)


def test_attentions_are_modules_of_it_until_a_hosts_layers_have_them():
    module, where = build("relpos", layers=2), places(1)
    assert {id(one.keys) for one in module.attentions} <= {id(one) for one in module.parameters()}
    first, second = module.hand_over()
    assert (type(first), type(second)) == (RelativePositions, RelativePositions)
    assert [*module.parameters()] == []
    assert not [name for name in module.state_dict() if "keys" in name]
    assert module(torch.zeros(1, 6, 12), where, HIDING[:1])[1].mask is not None  # and works on
    assert build("cape", layers=2).hand_over() == [None, None]
    (ours, *others) = build("relpos_first", layers=3).hand_over()
    assert (type(ours), others) == (RelativePositionsFirst, [None, None])


@pytest.mark.parametrize("pos", ["nopos", "sinpos", "rope", "alibi", "relpos"])
def test_all_forms_of_a_mask_hide_the_same_keys(pos):
    layer, content = Layer(pos).eval(), torch.randn(2, 6, 12)
    expected = layer(content, places(1), HIDING)
    added = torch.zeros(HIDING.shape).masked_fill(~HIDING, torch.finfo(torch.float32).min)
    forms = [HIDING[:, None], HIDING.expand(2, 6, 6), HIDING[:, None].expand(2, 3, 6, 6)]
    for mask in (*forms, added, added[:, None], added[:, None].expand(2, 3, 6, 6)):
        torch.testing.assert_close(layer(content, places(1), mask), expected)


def test_alibi_puts_the_mask_into_its_bias_so_that_layers_get_one_tensor():
    for pos in ("alibi", "cape_alibi"):
        given = build(pos)(None, places(1, 6, 4), HIDING)[1]
        assert given.bias[1, ..., 4:].isneginf().all()
        half = build(pos)(torch.zeros(2, 6, 12, dtype=torch.bfloat16), places(1), HIDING)[1]
        assert half.bias.dtype == torch.bfloat16
        layer = build(pos).attentions[0]
        assert layer.bias_and_mask(torch.zeros(2, 3, 6, 4), torch.zeros(2, 3, 6, 4), given) is (
            given.bias
        )
    given = build("rope")(None, places(1, 6, 4), HIDING)[1]
    assert given.mask.shape == (2, 1, 1, 6)


# Randomness


@pytest.mark.parametrize(("pos", "axes"), DRAWING)
def test_training_augments_each_sample_by_itself_and_a_generator_repeats_it(pos, axes):
    layer, content = Layer(pos, axes), torch.randn(1, 6, 12).expand(3, 6, 12)
    positions, state = places(axes), torch.get_rng_state()
    out = layer(content, positions, generator=seeded())
    assert not torch.allclose(out[0], out[1])
    assert torch.equal(out, layer(content, positions, generator=seeded()))
    assert not torch.equal(out, layer(content, positions, generator=seeded(1)))
    assert torch.equal(torch.get_rng_state(), state)  # the global one is left alone
    assert not torch.equal(layer(content, positions), layer(content, positions))
    assert torch.equal(layer.eval()(content, positions), layer(content, positions))


@pytest.mark.parametrize(("pos", "axes"), OURS)
def test_cape_alone_draws_what_sequences_share_in_training_from_the_generator(pos, axes):
    module, device = build(pos, axes), torch.device("cpu")
    first, same, other = (module.draw(3, device, seeded(seed)) for seed in (5, 5, 6))
    assert (first is not None) == pos.startswith("cape")
    if first is not None:
        assert (first.shift.shape, first.scale.shape) == ((3, axes), (3,))
        assert torch.equal(first.shift, same.shift)
        assert torch.equal(first.scale, same.scale)
        assert not torch.equal(first.scale, other.scale)
    assert module.eval().draw(3, device) is None


def test_two_sequences_with_one_draw_share_shift_and_scale():
    cape = Positions("cape", dim=8, max_global_shift=5.0, max_local_shift=0.0, mean_normalize=False)
    draw = Draw(shift=torch.tensor([[3.0], [-1.0]]), scale=torch.tensor([1.25, 0.8]))
    positions = token_positions([6])
    expected = sinusoid_1d((positions + draw.shift) * draw.scale[:, None], 8)
    for content in (torch.zeros(2, 6, 8), None):  # without content the draw has the batch
        torch.testing.assert_close(cape(content, positions, None, draw)[0], expected)


def test_a_forward_may_have_a_local_shift_of_its_own():
    cape = Positions("cape", dim=8, max_global_shift=0.0, max_local_shift=0.5, mean_normalize=False)

    out, _ = cape(torch.zeros(1, 6, 8), torch.ones(1, 6), max_local_shift=0.0)
    torch.testing.assert_close(out, sinusoid_1d(torch.ones(1, 6), 8))


# Numerics


@pytest.mark.parametrize(
    ("positions", "scale"),
    [
        pytest.param(frame_times([12_000], 0.3, dtype=torch.float64), 30.0, id="an hour"),
        pytest.param(frame_times([12_000], 0.3), 30.0, id="an hour in float32"),
        pytest.param(torch.rand(1, 50, dtype=torch.float64) * 1e7, 1.0, id="1e7 tokens"),
        pytest.param(torch.rand(3, 40, 2) * 6 - 3, 0.2, id="patches"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_far_positions_are_as_accurate_as_near_ones(positions, scale, dtype):
    axes = positions.ndim - 1
    module = Positions("sinpos", dim=64, axes=axes, frequency_scale=scale)
    out, _ = module(torch.zeros(*positions.shape[:2], 64, dtype=dtype), positions)
    assert out.dtype == dtype
    expected = sinusoids(axes)(positions.double(), 64, frequency_scale=scale)
    assert (out.double() - expected).abs().max() <= 1.7e-7 + torch.finfo(dtype).eps / 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("pos", "axes"), ADDING)
def test_half_precision_costs_one_rounding(pos, axes, dtype):
    """Under autocast and in a module that was cast, whose table, where it has one, is rounded."""
    module, positions = build(pos, axes).to(dtype).eval(), 1.0 + 1000 * places(axes, 6, 4)
    content = torch.randn(2, 6, 12, generator=seeded()).to(dtype)
    expected, _ = copy.deepcopy(module).float()(content.float(), positions)
    assert torch.equal(module(content, positions)[0], expected.to(dtype))
    with torch.autocast("cpu", dtype):
        assert torch.equal(module.float()(content, positions)[0], expected.to(dtype))


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=0, max_size=4),
    which=st.sampled_from(ADDING),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    training=st.booleans(),
)
def test_any_batch_and_dtype_keeps_padding_and_gives_alone_what_it_gives_padded(
    lengths, which, dtype, training
):
    pos, axes = which
    module = build(pos, axes).train(training)
    positions = places(axes, *lengths) if lengths else places(axes)[:0]
    content = torch.randn(len(lengths), 6, 12, generator=seeded()).to(dtype)
    out, _ = module(content, positions)
    assert (out.shape, out.dtype) == (content.shape, dtype)
    assert out.isfinite().all()
    real = ~positions.reshape(len(lengths), 6, axes)[..., 0].isnan()
    assert torch.equal(out[~real], content[~real])
    if not training:
        for i, length in enumerate(lengths):
            alone, _ = module(content[i : i + 1, :length], positions[i : i + 1, :length])
            torch.testing.assert_close(out[i, :length], alone[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_patch_without_one_of_its_coordinates_gets_nothing(missing):
    content, positions = torch.randn(1, 6, 12), places(2)
    positions[0, 1, missing] = NAN
    out, _ = build("sinpos", 2)(content, positions)
    assert torch.equal(out[0, 1], content[0, 1])
    assert (out[0, [0, 2]] != content[0, [0, 2]]).any(dim=-1).all()


@pytest.mark.parametrize(("pos", "axes"), OURS)
def test_shared_positions_are_prepared_once_in_evaluation(pos, axes):
    module = build(pos, axes).eval()
    _, given = module(torch.zeros(64, 6, 12), places(axes))
    assert all(one is None or len(one) == 1 for one in given)
    with Made() as made:
        module(torch.zeros(64, 6, 12), places(axes))
    if pos in ("sinpos", "cape"):
        assert made.sines == 6 * 12
    assert made.largest <= 64 * 6 * 12  # the sum alone


# Gradients, copies


@pytest.mark.parametrize(("pos", "axes"), ADDING)
def test_the_gradient_passes_to_the_content_unchanged_and_nothing_is_saved(pos, axes):
    content, kept = torch.randn(2, 6, 12, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out, _ = build(pos, axes)(content, places(axes, 6, 4))
    gradient = torch.randn(2, 6, 12)
    out.backward(gradient)
    assert torch.equal(content.grad, gradient)
    assert not [t for t in kept if t.is_floating_point()]


@pytest.mark.parametrize("pos", SEQUENCES)
def test_copies_pickles_and_replicas_for_other_devices_give_the_same(pos):
    layer, content = Layer(pos).eval(), torch.randn(2, 6, 12)
    expected = layer(content, places(1, 6, 4))
    for made in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), replica(layer)):
        assert torch.equal(made(content, places(1, 6, 4)), expected)


# Errors


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (dict(axes=3), "axes"),
        (dict(pos="sinpos", dim=7), "dim"),
        (dict(pos="nopos", dim=True), "dim"),
        (dict(pos="nopos", heads=0), "heads"),
        (dict(pos="nopos", head_dim=-1), "head_dim"),
        (dict(pos="nopos", heads=3), "heads"),
        (dict(pos="nopos", layers=1.5), "layers"),
        (dict(pos="nopos", spacing=0.0), "spacing"),
        (dict(pos="abspos"), "abspos_context"),
        (dict(pos="abspos", abspos_context=9, overflow="clamp"), "overflow"),
        (dict(pos="abspos", abspos_context=0.4), "abspos_context"),
        (dict(pos="alibi", alibi_unit=math.inf, layers=1), "alibi_unit"),
        # what acts in attention needs to know how many layers there are
        (dict(pos="rope"), "layers"),
        # what the variant does not take, misspelt or of another
        (dict(pos="sinpos", max_length=9), "max_length"),
        (dict(pos="cape", spread=False), "spread"),
        # whose right value depends on the unit of positions
        (dict(pos="random"), "random_range"),
        (dict(pos="relpos", layers=1), "relpos_context"),
    ],
)
def test_options_and_sizes_are_checked(options, named):
    with pytest.raises(ValueError, match=named):
        Positions(**{"dim": 8, **options})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (dict(pos="cape"), "max_global_shift .*tokens"),
        (dict(pos="cape", max_global_shift=5.0), "max_local_shift .*tokens"),
        (dict(pos="cape_alibi", layers=1), "max_local_shift .*tokens"),
        (dict(pos="pose_rope", layers=1), "pose_range .*tokens"),
    ],
)
def test_what_training_alone_needs_is_asked_for_when_it_begins(options, named):
    module, content, where = Positions(**options, dim=8), torch.zeros(1, 3, 8), torch.arange(3.0)
    with pytest.raises(ValueError, match=named):
        module(content, where[None])
    module.eval()(content, where[None])
    with pytest.raises(ValueError, match=named):
        torch.nn.Sequential(module).train()


def test_none_is_the_default():
    cape = build("cape", max_global_scale=None, frequency_scale=None)
    assert cape.options["max_global_scale"] == 1.0
    assert cape.options["frequency_scale"] == 1.0
    assert build("alibi", spacing=0.5).options["alibi_unit"] == 0.5  # as its class decides


@pytest.mark.parametrize(("pos", "axes"), [("nopos", 1), ("sinpos", 2), ("rope", 1)])
def test_inputs_that_do_not_fit_are_refused(pos, axes):
    module, positions = build(pos, axes), places(axes, 6, 6)
    for content, there, named in (
        (torch.zeros(2, 6, 4), positions, "content"),
        (torch.zeros(6, 12), positions, "content"),
        (torch.zeros(2, 6, 12, dtype=torch.long), positions, "content"),
        (torch.zeros(2, 6, 12), positions[:, :5], "positions"),
        (torch.zeros(2, 6, 12), positions[:1].expand(3, *positions.shape[1:]), "positions"),
        (torch.zeros(2, 6, 12), torch.zeros(2, 6, 3 - axes), "positions"),
    ):
        with pytest.raises(ValueError, match=named):
            module(content, there)
    if pos == "rope":
        with pytest.raises(ValueError, match="positions"):
            module(None, torch.arange(6.0))
        with pytest.raises(ValueError, match="keys"):
            module(torch.zeros(2, 6, 12), positions, keys=torch.arange(6.0))


def test_infinite_positions_and_generators_elsewhere_are_refused():
    for infinite in (math.inf, -math.inf):
        with pytest.raises(ValueError, match="positions"):
            build("abspos")(torch.zeros(1, 2, 12), torch.tensor([[0.0, infinite]]))
    for pos in ("cape", "random", "pose_rope"):
        with pytest.raises(ValueError, match="generator"):
            build(pos).augment(torch.zeros(1, 3, device="meta"), 1, generator=seeded())
