"""The module hosts plug in: one forward for all variants, the same numbers in every dtype."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cape_plugins import (
    Augmentation,
    Draw,
    PositionalEmbedding,
    frame_times,
    patch_grid,
    sinusoid_1d,
    sinusoid_2d,
    token_positions,
    variants,
)
from cape_plugins.random_positions import spread_evenly
from cape_support import Sizes, seeded

NAN = math.nan
PAPER = dict(max_global_shift=5.0, max_local_shift=0.5, max_global_scale=1.4)
EACH = [(1, pos) for pos in ("nopos", "abspos", "sinpos", "cape", "random")]
EACH += [(2, pos) for pos in ("nopos", "sinpos", "cape", "random")]


def build(pos: str, axes: int = 1, dim: int = 8, **options) -> PositionalEmbedding:
    """With the settings that the variant takes, of the paper."""
    known = {**PAPER, "max_length": 50}
    taken = variants.get(pos).taken(axes)
    return PositionalEmbedding(
        dim, pos, axes=axes, **{k: v for k, v in known.items() if k in taken}, **options
    )


def where(axes: int, *lengths: int) -> torch.Tensor:
    """(B, 6[, 2]) positions, NaN beyond each length."""
    tokens = token_positions(list(lengths) or [6], 6)
    return tokens if axes == 1 else patch_grid(2, 3) + 0 * tokens[..., None]


# What each variant adds


@pytest.mark.parametrize("axes", [1, 2])
def test_nopos_adds_nothing_and_sinpos_sinusoids_of_the_positions_as_given(axes):
    content, positions = torch.randn(2, 6, 8), where(axes, 6, 3)
    embed = sinusoid_1d if axes == 1 else sinusoid_2d
    assert build("nopos", axes)(content, positions) is content
    assert build("nopos", axes).add(content, positions) is content
    torch.testing.assert_close(
        build("sinpos", axes)(content, positions), content + embed(positions, 8)
    )


def test_cape_in_evaluation_centres_and_nothing_else():
    content, positions = torch.randn(2, 5, 8), token_positions([5, 3])
    centred = positions - torch.tensor([[2.0], [1.0]])
    cape = build("cape").eval()
    torch.testing.assert_close(cape(content, positions), content + sinusoid_1d(centred, 8))
    cape = build("cape", mean_normalize=False).eval()
    torch.testing.assert_close(cape(content, positions), content + sinusoid_1d(positions, 8))


@pytest.mark.parametrize("axes", [1, 2])
def test_random_spreads_positions_evenly_in_evaluation_or_leaves_them(axes):
    positions, content = where(axes, 6), torch.zeros(1, 6, 8)
    embed = sinusoid_1d if axes == 1 else sinusoid_2d
    spread = build("random", axes, random_range=(0.0, 7.0)).eval()
    evenly = spread_evenly(positions.view(1, 6, axes), 0.0, 7.0).view(positions.shape)
    found = spread(content, positions)
    torch.testing.assert_close(found, embed(evenly, 8), atol=2e-6, rtol=0)
    as_given = build("random", axes, random_range=(0.0, 7.0), spread=False).eval()
    torch.testing.assert_close(as_given(content, positions), embed(positions, 8))


def test_abspos_looks_up_its_table_and_wraps_or_raises_beyond_it():
    abspos = PositionalEmbedding(8, "abspos", max_length=4)
    added = abspos(torch.zeros(1, 6, 8), torch.tensor([[0.4, 0.6, 2, 3, 4, NAN]]))
    assert torch.equal(added[0, :5], abspos.table[[0, 1, 2, 3, 0]])
    assert not added[0, 5].any()
    abspos = PositionalEmbedding(8, "abspos", max_length=4, overflow="error")
    abspos(torch.zeros(1, 4, 8), token_positions([4]))
    with pytest.raises(ValueError, match=r"positions 0 … 3 .*, got 4 at index \[0, 4\]"):
        abspos(torch.zeros(1, 6, 8), token_positions([6]))
    with pytest.raises(ValueError, match=r"positions 0 … 3 .*, got -1 at index \[0, 0\]"):
        abspos(torch.zeros(1, 2, 8), torch.tensor([[-1.0, 0.0]]))


def test_tables_begin_small_and_may_hold_a_single_vector():
    table = PositionalEmbedding(64, "abspos", max_length=100).table
    assert table.std().item() == pytest.approx(0.02, rel=0.1)
    single = PositionalEmbedding(8, "abspos", max_length=1, overflow="error")
    assert torch.equal(single(torch.zeros(1, 1, 8), torch.tensor([[NAN]])), torch.zeros(1, 1, 8))


def test_only_abspos_has_state_and_no_variant_a_buffer():
    for axes in (1, 2):
        for pos in variants.names(axes):
            module = build(pos, axes)
            assert list(module.state_dict()) == (["table"] if pos == "abspos" else [])
            assert not list(module.buffers())


def test_base_and_print_are_those_of_the_settings():
    module = PositionalEmbedding(8, "sinpos", base=100.0, frequency_scale=2.0)
    expected = sinusoid_1d(torch.arange(6.0)[None], 8, base=100.0, frequency_scale=2.0)
    torch.testing.assert_close(module(torch.zeros(1, 6, 8), where(1)), expected)
    assert "dim=8, pos='sinpos', axes=1, frequency_scale=2.0" in repr(module)


# Randomness


@pytest.mark.parametrize("pos", ["cape", "random"])
@pytest.mark.parametrize("axes", [1, 2])
def test_training_augments_each_sample_by_itself_and_a_generator_repeats_it(pos, axes):
    module, content, positions = build(pos, axes), torch.zeros(3, 6, 8), where(axes)
    state = torch.get_rng_state()
    out = module(content, positions, generator=seeded())
    assert not torch.allclose(out[0], out[1])
    assert torch.equal(out, module(content, positions, generator=seeded()))
    assert not torch.equal(out, module(content, positions, generator=seeded(1)))
    assert torch.equal(torch.get_rng_state(), state)  # the global one is left alone
    assert not torch.equal(module(content, positions), module(content, positions))


def test_only_cape_draws_what_sequences_share_and_only_in_training():
    device = torch.device("cpu")
    for axes in (1, 2):
        for pos in variants.names(axes):
            module = build(pos, axes)
            draw = module.draw(3, device)
            assert (draw is not None) == (variants.get(pos).augment is Augmentation)
            assert draw is None or (draw.shift.shape, draw.scale.shape) == ((3, axes), (3,))
            assert module.eval().draw(3, device) is None


def test_two_sequences_with_one_draw_share_shift_and_scale():
    cape = PositionalEmbedding(8, max_global_shift=5.0, mean_normalize=False)
    draw = Draw(shift=torch.tensor([[3.0]]), scale=torch.tensor([1.25]))
    positions = token_positions([6])
    out = cape(torch.zeros(1, 6, 8), positions, draw)
    torch.testing.assert_close(out, sinusoid_1d((positions + 3) * 1.25, 8))


@pytest.mark.parametrize(("axes", "pos"), EACH)
@pytest.mark.parametrize("training", [True, False])
def test_adding_at_the_augmented_positions_is_what_forward_does(axes, pos, training):
    module, content, positions = build(pos, axes), torch.randn(2, 6, 8), where(axes, 6, 4)
    module.train(training)
    moved = module.augment(positions, 2, generator=seeded())
    out = module.add(content, moved)
    assert torch.equal(out, module(content, positions, generator=seeded()))
    assert torch.equal(moved.isnan(), positions.isnan())
    if pos != "nopos":
        torch.testing.assert_close(content + module.embedding(moved), out, rtol=0, atol=1e-6)


# Numerics


@pytest.mark.parametrize(
    ("positions", "scale"),
    [
        pytest.param(frame_times([120_000], 0.03, dtype=torch.float64), 30.0, id="an hour"),
        pytest.param(frame_times([120_000], 0.03), 30.0, id="an hour in float32"),
        pytest.param(torch.rand(1, 50, dtype=torch.float64) * 1e7, 1.0, id="1e7 tokens"),
        pytest.param(torch.rand(3, 40, 2) * 6 - 3, 0.2, id="patches"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_far_positions_are_as_accurate_as_near_ones(positions, scale, dtype):
    axes = positions.ndim - 1
    module = PositionalEmbedding(64, "sinpos", axes=axes, frequency_scale=scale)
    out = module(torch.zeros(*positions.shape[:2], 64, dtype=dtype), positions)
    assert out.dtype == dtype
    embed = sinusoid_2d if axes == 2 else sinusoid_1d
    expected = embed(positions.double(), 64, frequency_scale=scale)
    assert (out.double() - expected).abs().max() <= 1.7e-7 + torch.finfo(dtype).eps / 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("axes", "pos"), EACH)
def test_half_precision_costs_one_rounding(axes, pos, dtype):
    """Under autocast and in a module that was cast, whose table, where it has one, is rounded."""
    module, positions = build(pos, axes).to(dtype).eval(), 1.0 + 1000 * where(axes, 6, 4)
    content = torch.randn(2, 6, 8, generator=seeded()).to(dtype)
    expected = copy.deepcopy(module).float()(content.float(), positions).to(dtype)
    assert torch.equal(module(content, positions), expected)
    with torch.autocast("cpu", dtype):
        assert torch.equal(module.float()(content, positions), expected)


def test_float64_content_has_its_embedding_in_float64():
    positions = torch.tensor([[100_000.0, 99_999.0]])  # exact in float32
    out = PositionalEmbedding(512, "sinpos")(torch.zeros(1, 2, 512, dtype=torch.float64), positions)
    k = torch.arange(256, dtype=torch.float64)
    phases = positions[0].double()[:, None] * 10_000 ** (-k / 256)
    exact = torch.cat([phases.cos(), phases.sin()], dim=1)
    torch.testing.assert_close(out[0], exact, atol=1e-10, rtol=0)


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=0, max_size=4),
    which=st.sampled_from(EACH),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    pairs=st.integers(1, 8),
    training=st.booleans(),
)
def test_any_batch_and_dtype_keeps_padding_and_gives_alone_what_it_gives_padded(
    lengths, which, dtype, pairs, training
):
    axes, pos = which
    module = build(pos, axes, 2 * pairs).train(training)
    # of a grid, padded rows are whole
    positions = where(axes, *lengths) if lengths else where(axes)[:0]
    content = torch.randn(len(lengths), 6, 2 * pairs, generator=seeded()).to(dtype)
    out = module(content, positions)
    assert (out.shape, out.dtype) == (content.shape, dtype)
    assert out.isfinite().all()
    real = ~positions.reshape(len(lengths), 6, axes)[..., 0].isnan()
    assert torch.equal(out[~real], content[~real])
    if not training:
        for i, length in enumerate(lengths):
            alone = module(content[i : i + 1, :length], positions[i : i + 1, :length])
            torch.testing.assert_close(out[i, :length], alone[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_no_token_and_a_patch_without_one_of_its_coordinates_get_nothing(training):
    for axes, pos in EACH:
        empty = torch.zeros((2, 0) if axes == 1 else (2, 0, 2))
        assert build(pos, axes).train(training)(torch.zeros(2, 0, 8), empty).shape == (2, 0, 8)
    for missing in (0, 1):
        content, positions = torch.randn(1, 6, 8), where(2)
        positions[0, 1, missing] = NAN
        out = PositionalEmbedding(8, "sinpos", axes=2).train(training)(content, positions)
        assert torch.equal(out[0, 1], content[0, 1])
        assert (out[0, [0, 2]] != content[0, [0, 2]]).any(dim=-1).all()


@pytest.mark.parametrize(("axes", "pos"), [case for case in EACH if case[1] in ("sinpos", "cape")])
def test_shared_positions_are_embedded_once_in_evaluation(axes, pos):
    with Sizes() as sizes:
        build(pos, axes).eval()(torch.zeros(64, 6, 8), where(axes))
    assert sizes.sines == 6 * 8
    assert sizes.largest == 64 * 6 * 8  # the sum alone


# Gradients and transformations


@pytest.mark.parametrize(("axes", "pos"), EACH)
def test_the_gradient_passes_to_the_content_unchanged_and_nothing_is_saved(axes, pos):
    content, kept = torch.randn(2, 6, 8, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = build(pos, axes)(content, where(axes, 6, 4))
    gradient = torch.randn(2, 6, 8)
    out.backward(gradient)
    assert torch.equal(content.grad, gradient)
    assert not [t for t in kept if t.is_floating_point()]


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("pos", ["sinpos", "cape"])
def test_positions_that_want_a_gradient_get_it_and_padding_gets_zeros(axes, pos):
    module = PositionalEmbedding(8, pos, axes=axes).eval()
    positions = where(axes, 6, 4).requires_grad_()
    module(torch.randn(2, 6, 8), positions).square().sum().backward()
    assert positions.grad.isfinite().all()
    assert not positions.grad[1, 4:].any()
    assert (positions.grad[0].reshape(6, -1) != 0).any(dim=1).all()
    real = torch.rand(2, 5, *([2] if axes == 2 else []), dtype=torch.float64, requires_grad=True)
    content = torch.randn(2, 5, 8, dtype=torch.float64)
    torch.autograd.gradcheck(lambda p: module(content, p), (real,))


@pytest.mark.parametrize(("axes", "pos"), EACH)
def test_gradients_per_sample_in_training(axes, pos):
    """As in differentially private training: each sample has weights of its own to vary."""
    module, embed = build(pos, axes), torch.nn.Linear(3, 8)
    weights = dict(embed.named_parameters())
    content, positions = torch.randn(4, 6, 3), where(axes)[0]

    def loss(weights, content, generator=None):
        x = torch.func.functional_call(embed, weights, content)[None]
        return module(x, positions[None], generator=generator).square().sum()

    for generator in (None, seeded()):
        per_sample = torch.vmap(torch.func.grad(loss), (None, 0, None), randomness="different")
        found = per_sample(weights, content, generator)["weight"]
        assert found.shape == (4, 8, 3)
        assert found.isfinite().all()
    same = content[:1].expand(4, -1, -1)  # of one sample, too, each draws its own positions
    found = per_sample(weights, same, None)["weight"]
    drawn = pos in ("cape", "random")
    assert torch.allclose(found, found[:1].expand_as(found), atol=1e-4) != drawn


# torch.compile, export


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(("axes", "pos"), EACH)
def test_it_compiles_in_one_graph(axes, pos, training):
    torch._dynamo.reset()
    content, positions = torch.randn(2, 6, 8), where(axes, 6, 4)
    module = build(pos, axes).train(training)
    out = torch.compile(module, fullgraph=True, backend="aot_eager")(content, positions)
    if training and pos in ("cape", "random"):
        assert not torch.equal(out[0], content[0])
        assert torch.equal(out[1, 4:], content[1, 4:])
        assert out.isfinite().all()
    else:
        torch.testing.assert_close(out, module(content, positions))


@pytest.mark.parametrize(("axes", "pos"), [(1, "cape"), (1, "random"), (2, "sinpos")])
def test_an_exported_model_takes_any_size(axes, pos):
    model = build(pos, axes).eval()
    batch, length = (torch.export.Dim(name, min=2, max=9999) for name in ("batch", "length"))
    example = torch.randn(2, 6, 8), where(axes, 6, 4)
    exported = torch.export.export(
        model, example, dynamic_shapes=({0: batch, 1: length}, {0: batch, 1: length})
    )
    positions = torch.rand(3, 9, *([2] if axes == 2 else []))
    positions[1, 4:] = NAN
    content = torch.randn(3, 9, 8)
    torch.testing.assert_close(exported.module()(content, positions), model(content, positions))
    traced = torch.jit.trace(model, example)
    torch.testing.assert_close(traced(*example), model(*example))


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(pos="rope9"), "unknown variant 'rope9': choose one of nopos, abspos, sinpos, cape"),
        (dict(pos="abspos", axes=2), "unknown variant 'abspos': choose one of nopos, sinpos, cape"),
        (dict(axes=3), "axes must be 1 .* or 2 .*, got 3"),
        (dict(dim=7), "dim must be even"),
        (dict(pos="nopos", dim=True), "dim must be an integer ≥ 1, got True"),
        (dict(max_global_scale=0.5), "max_global_scale must be a finite number ≥ 1"),
        (dict(pos="nopos", base=0.0), "base must be finite and > 1"),
        (dict(pos="nopos", overflow="clamp"), "overflow must be 'wrap' or 'error'"),
        (dict(pos="nopos", max_length=0), "max_length must be an integer ≥ 1, got 0"),
        (dict(pos="abspos", max_length=2.5), "max_length must be an integer ≥ 1, got 2.5"),
        (dict(pos="abspos"), "abspos needs max_length"),
        (dict(pos="random", random_range=(1.0, 1.0)), "random_range must be"),
        # what the variant does not take
        (dict(pos="sinpos", max_length=9), "max_length = 9 is for abspos; sinpos takes"),
        (dict(pos="cape", spread=False), "spread = False is for random"),
        (dict(pos="alibi", base=100.0), "base = 100.0 is for sinpos, cape, random; alibi takes"),
    ],
)
def test_settings_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        PositionalEmbedding(**{"dim": 8, **arguments})


def test_any_width_goes_where_no_sinusoids_are_added():
    for pos in ("nopos", "rope", "relpos"):
        assert PositionalEmbedding(7, pos)(torch.ones(1, 6, 7), where(1)).shape == (1, 6, 7)


@pytest.mark.parametrize(("axes", "pos"), EACH)
def test_inputs_that_do_not_fit_are_refused_by_every_variant(axes, pos):
    module, positions = build(pos, axes), where(axes, 6, 6)
    size = r"6, 2" if axes == 2 else "6"
    for content, given_positions, message in (
        (torch.zeros(2, 6, 4), positions, r"content must be \(B, N, 8\).*got shape \[2, 6, 4\]"),
        (torch.zeros(6, 8), positions, r"content must be \(B, N, 8\)"),
        (torch.zeros(2, 6, 8, dtype=torch.long), positions, r"float dtype, got .* of torch.int64"),
        (torch.zeros(2, 6, 8), positions[:, :5], rf"needs positions \[2, {size}\]"),
        (torch.zeros(2, 6, 8), positions[:1].expand(3, *positions.shape[1:]), rf"\[1, {size}\]"),
        (torch.zeros(2, 6, 8), torch.zeros(2, 6, 3 - axes), rf"needs positions \[2, {size}\]"),
    ):
        with pytest.raises(ValueError, match=message):
            module(content, given_positions)


@pytest.mark.parametrize(("axes", "pos"), EACH)
def test_infinite_and_complex_positions_and_generators_elsewhere_are_refused(axes, pos):
    positions = where(axes)
    with pytest.raises(ValueError, match=r"positions must be real numbers, got torch.complex64"):
        build(pos, axes)(torch.zeros(1, 6, 8), positions.cfloat())
    positions[0, 1] = math.inf
    with pytest.raises(ValueError, match=r"positions must be finite.* got inf at index \[0, 1"):
        build(pos, axes)(torch.zeros(1, 6, 8), positions)
    if pos in ("cape", "random"):
        positions = positions.to("meta")
        with pytest.raises(ValueError, match=r"the generator lives on cpu, the positions on meta"):
            build(pos, axes).augment(positions, 1, generator=seeded())
