"""The modules hosts plug in: one forward for all variants, the same numbers in every dtype."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cape_plugins import (
    Augmentation,
    Draw,
    PositionalEmbedding1d,
    PositionalEmbedding2d,
    frame_times,
    patch_grid,
    sinusoid_1d,
    sinusoid_2d,
    token_positions,
)

VARIANTS = ["nopos", "abspos", "sinpos", "cape"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def embedding_1d(dim: int, pos: str, **settings) -> PositionalEmbedding1d:
    defaults = dict(max_global_shift=5.0, max_local_shift=0.5, max_global_scale=1.4, max_length=50)
    return PositionalEmbedding1d(dim, pos, **{**defaults, **settings})


def embedding_2d(dim: int, pos: str, **settings) -> PositionalEmbedding2d:
    return PositionalEmbedding2d(dim, pos, **{"grid": (4, 4), **settings})


# What each variant adds


def test_nopos_adds_nothing():
    content = torch.randn(2, 6, 8)
    assert torch.equal(embedding_1d(8, "nopos")(content, token_positions([6, 3])), content)
    assert torch.equal(embedding_2d(8, "nopos")(content, (2, 3)), content)


def test_sinpos_adds_sinusoids_of_the_positions_as_given():
    content, positions = torch.randn(2, 6, 8), token_positions([6, 3])
    torch.testing.assert_close(
        embedding_1d(8, "sinpos")(content, positions), content + sinusoid_1d(positions, 8)
    )
    torch.testing.assert_close(
        embedding_2d(8, "sinpos")(content, (2, 3)), content + sinusoid_2d(patch_grid(2, 3), 8)
    )


def test_cape_in_evaluation_centres_and_nothing_else():
    content, positions = torch.randn(2, 5, 8), token_positions([5, 3])
    centred = positions - torch.tensor([[2.0], [1.0]])
    cape = embedding_1d(8, "cape").eval()
    torch.testing.assert_close(cape(content, positions), content + sinusoid_1d(centred, 8))
    cape = embedding_1d(8, "cape", mean_normalize=False).eval()
    torch.testing.assert_close(cape(content, positions), content + sinusoid_1d(positions, 8))


def test_cape_in_evaluation_does_not_see_where_a_recording_starts():
    content, times = torch.randn(1, 5, 8), frame_times([5], 0.03)
    cape = embedding_1d(8, "cape", frequency_scale=30.0).eval()
    torch.testing.assert_close(cape(content, times), cape(content, times + 2.0), atol=1e-4, rtol=0)


def test_cape_2d_in_evaluation_is_sinpos_because_a_grid_is_centred():
    content = torch.randn(2, 15, 8)
    cape, sinpos = embedding_2d(8, "cape").eval(), embedding_2d(8, "sinpos")
    assert torch.equal(cape(content, (3, 5)), sinpos(content, (3, 5)))


def test_abspos_looks_up_its_table_and_wraps_beyond_it():
    abspos = embedding_1d(8, "abspos", max_length=4)
    added = abspos(torch.zeros(1, 6, 8), token_positions([6]))
    assert torch.equal(added[0], abspos.table[[0, 1, 2, 3, 0, 1]])


def test_abspos_can_raise_beyond_its_table():
    abspos = embedding_1d(8, "abspos", max_length=4, overflow="error")
    with pytest.raises(ValueError, match=r"positions 0 … 3 .*, got 4 at index \[0, 4\]"):
        abspos(torch.zeros(1, 6, 8), token_positions([6]))
    with pytest.raises(ValueError, match=r"positions 0 … 3 .*, got -1 at index \[0, 0\]"):
        abspos(torch.zeros(1, 2, 8), torch.tensor([[-1.0, 0.0]]))


def test_abspos_2d_interpolates_its_table_as_timm_does():
    timm_layers = pytest.importorskip("timm.layers")
    abspos = embedding_2d(8, "abspos")
    assert torch.equal(abspos(torch.zeros(1, 16, 8), (4, 4)), abspos.table)
    resized = timm_layers.resample_abs_pos_embed(
        abspos.table, new_size=(3, 7), old_size=(4, 4), num_prefix_tokens=0
    )
    torch.testing.assert_close(abspos(torch.zeros(1, 21, 8), (3, 7)), resized)


@pytest.mark.parametrize("size", [(4, 6), (4, 3), (2, 6), (3, 5)])
def test_abspos_2d_knows_which_side_of_its_table_is_which(size):
    abspos = PositionalEmbedding2d(8, "abspos", grid=(4, 6))
    rows = torch.arange(4.0)[:, None].expand(4, 6)
    abspos.table.data.copy_(rows.reshape(1, 24, 1).expand(1, 24, 8))
    out = abspos(torch.zeros(1, size[0] * size[1], 8), size).reshape(*size, 8)
    # what is constant along the width stays so
    torch.testing.assert_close(out, out[:, :1].expand_as(out), atol=1e-5, rtol=0)
    assert (out.diff(dim=0) > 0).all()


def test_tables_begin_small_and_may_hold_a_single_vector():
    one = PositionalEmbedding1d(64, "abspos", max_length=100)
    two = PositionalEmbedding2d(64, "abspos", grid=(10, 10))
    for table in (one.table, two.table):
        assert table.std().item() == pytest.approx(0.02, rel=0.1)
    assert PositionalEmbedding1d(8, "abspos", max_length=1).table.shape == (1, 8)
    assert PositionalEmbedding2d(8, "abspos", grid=(1, 1)).table.shape == (1, 1, 8)


def test_extent_stretches_the_grid():
    content = torch.zeros(1, 9, 8)
    half = PositionalEmbedding2d(8, "sinpos", extent=0.5)
    expected = sinusoid_2d(patch_grid(3, 3) * 0.5, 8)
    torch.testing.assert_close(half(content, (3, 3))[0], expected)


def test_frequency_scale_is_the_same_as_smaller_positions_and_shifts():
    content = torch.zeros(2, 9, 8)
    low = PositionalEmbedding2d(8, "cape", frequency_scale=0.2)
    small = PositionalEmbedding2d(
        8, "cape", extent=0.2, max_global_shift=0.5 * 0.2, max_local_shift=0.2 / 3
    )
    for module in (low, small):
        torch.manual_seed(0)
        module.out = module(content, (3, 3))
    torch.testing.assert_close(low.out, small.out)
    low.eval()
    expected = sinusoid_2d(patch_grid(3, 3), 8, frequency_scale=0.2)
    torch.testing.assert_close(low(content, (3, 3))[0], expected)
    scripted = torch.jit.script(low)
    torch.testing.assert_close(scripted(content, (3, 3)), low(content, (3, 3)))


# Randomness


def test_training_augments_each_sample_by_itself():
    out = embedding_1d(8, "cape")(torch.zeros(3, 6, 8), token_positions([6]))
    assert not torch.allclose(out[0], out[1])
    out = embedding_2d(8, "cape")(torch.zeros(3, 6, 8), (2, 3))
    assert not torch.allclose(out[0], out[1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_evaluation_is_deterministic(variant):
    one, two = embedding_1d(8, variant).eval(), embedding_2d(8, variant).eval()
    content, positions = torch.randn(2, 6, 8), token_positions([6, 4])
    draw = Draw(torch.ones(2, 1), torch.full((2,), 1.2))
    assert torch.equal(one(content, positions), one(content, positions))
    assert torch.equal(one(content, positions), one(content, positions, draw=draw))
    assert torch.equal(two(content, (2, 3)), two(content, (2, 3)))


def test_training_with_a_generator_is_reproducible_and_leaves_the_global_one_alone():
    content, positions = torch.randn(2, 6, 8), token_positions([6, 4])
    one, two = embedding_1d(8, "cape"), embedding_2d(8, "cape")
    state = torch.get_rng_state()
    assert torch.equal(
        one(content, positions, generator=seeded()), one(content, positions, generator=seeded())
    )
    assert torch.equal(
        two(content, (2, 3), generator=seeded()), two(content, (2, 3), generator=seeded())
    )
    assert torch.equal(torch.get_rng_state(), state)


def test_two_sequences_with_one_draw_share_shift_and_scale():
    cape = embedding_1d(8, "cape", max_local_shift=0.0, mean_normalize=False)
    draw = Draw(shift=torch.tensor([[3.0]]), scale=torch.tensor([1.25]))
    positions = token_positions([6])
    out = cape(torch.zeros(1, 6, 8), positions, draw=draw)
    torch.testing.assert_close(out, sinusoid_1d((positions + 3) * 1.25, 8))


def test_the_defaults_of_an_image_are_the_settings_of_section_4_1():
    content, grid = torch.zeros(3, 40, 8), (4, 10)
    papers = Augmentation(0.5, (1 / 4, 1 / 10), 1.4, mean_normalize=False)
    generator = seeded()
    draw = papers.draw(3, 2, generator=generator)
    moved = papers.apply(patch_grid(*grid).expand(3, -1, -1), draw, generator=generator)
    out = PositionalEmbedding2d(8)(content, grid, seeded())
    torch.testing.assert_close(out, sinusoid_2d(moved, 8), atol=2e-5, rtol=0)


# Numerics


def half_ulp(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    exponent = torch.frexp(values.abs().clamp(min=torch.finfo(dtype).tiny)).exponent - 1
    return torch.exp2(exponent.double()) * (torch.finfo(dtype).eps / 2)


LONG = [
    pytest.param(token_positions([4_000]), 1.0, 1e-3, id="4000-tokens"),
    pytest.param(frame_times([4_000], 0.03), 30.0, 1e-3, id="120-s"),
    pytest.param(token_positions([100_000]), 1.0, 1.5e-2, id="100000-tokens"),
    pytest.param(frame_times([120_000], 0.03), 30.0, 1.5e-2, id="3600-s"),
]


@pytest.mark.parametrize("how", ["autocast", "module cast"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("variant", ["sinpos", "cape"])
@pytest.mark.parametrize(("positions", "scale", "tolerance"), LONG)
def test_half_precision_costs_one_rounding(positions, scale, tolerance, variant, dtype, how):
    module = PositionalEmbedding1d(16, variant, frequency_scale=scale).eval()
    reference = copy.deepcopy(module).double()
    content = torch.randn(1, positions.shape[1], 16, generator=seeded()).to(dtype)
    expected = reference(content.double(), positions.double())
    if how == "autocast":
        with torch.autocast("cpu", dtype):
            out = module(content, positions)
    else:
        out = module.to(dtype)(content, positions)
    assert out.dtype == dtype
    error = (out.double() - expected).abs()
    # the rounding is that of the value before it, which is the expected one within tolerance
    assert (error - half_ulp(expected.abs() + tolerance, dtype)).max() < tolerance


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_images_cost_one_rounding(dtype):
    module = PositionalEmbedding2d(64).eval()
    content = torch.randn(1, 40 * 30, 64, generator=seeded()).to(dtype)
    expected = content.double() + sinusoid_2d(patch_grid(40, 30).double(), 64)
    with torch.autocast("cpu", dtype):
        under_autocast = module(content, (40, 30))
    assert torch.equal(module.to(dtype)(content, (40, 30)), under_autocast)
    error = (under_autocast.double() - expected).abs()
    assert (error - half_ulp(expected.abs() + 1e-4, dtype)).max() < 1e-4


@settings(deadline=None, max_examples=50)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    padding=st.integers(0, 5),
    variant=st.sampled_from(VARIANTS),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    pairs=st.integers(1, 8),
)
def test_padded_and_alone_give_the_same_real_tokens(lengths, padding, variant, dtype, pairs):
    module = embedding_1d(2 * pairs, variant).eval()
    positions = token_positions(lengths, max(lengths) + padding)
    content = torch.randn(*positions.shape, 2 * pairs, generator=seeded()).to(dtype)
    out = module(content, positions)
    assert out.dtype == dtype
    assert out.shape == content.shape
    assert torch.equal(out[positions.isnan()], content[positions.isnan()])
    for i, length in enumerate(lengths):
        alone = module(content[i : i + 1, :length], token_positions([length]))
        torch.testing.assert_close(out[i, :length], alone[0], atol=1e-6, rtol=1e-5)


@settings(deadline=None, max_examples=50)
@given(
    batch=st.integers(0, 3),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    variant=st.sampled_from(VARIANTS),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    training=st.booleans(),
)
def test_any_grid_batch_and_dtype_gives_finite_numbers(
    batch, height, width, variant, dtype, training
):
    module = embedding_2d(8, variant).train(training)
    content = torch.randn(batch, height * width, 8).to(dtype)
    out = module(content, (height, width))
    assert out.shape == content.shape
    assert out.dtype == dtype
    assert out.isfinite().all()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("training", [True, False])
def test_an_empty_batch_goes_through(variant, training):
    one, two = embedding_1d(8, variant).train(training), embedding_2d(8, variant).train(training)
    assert one(torch.zeros(0, 5, 8), token_positions([], 5)).shape == (0, 5, 8)
    assert one(torch.zeros(2, 0, 8), token_positions([0, 0])).shape == (2, 0, 8)
    assert two(torch.zeros(0, 6, 8), (2, 3)).shape == (0, 6, 8)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_gradient_passes_to_the_content_unchanged(variant):
    content = torch.randn(2, 6, 8, requires_grad=True)
    embedding_1d(8, variant)(content, token_positions([6, 4])).sum().backward()
    assert torch.equal(content.grad, torch.ones_like(content))


def test_only_abspos_has_state():
    for make in (embedding_1d, embedding_2d):
        for variant in ("nopos", "sinpos", "cape"):
            assert not make(8, variant).state_dict()
        assert list(make(8, "abspos").state_dict()) == ["table"]


# torch.compile


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_compiles_in_one_graph(variant, training):
    torch._dynamo.reset()
    content, positions = torch.randn(2, 6, 8), token_positions([6, 4])
    one, two = embedding_1d(8, variant).train(training), embedding_2d(8, variant).train(training)
    out_1d = torch.compile(one, fullgraph=True)(content, positions)
    out_2d = torch.compile(two, fullgraph=True)(content, (2, 3))
    if training and variant == "cape":
        assert not torch.equal(out_1d, content)
        assert out_2d.isfinite().all()
    else:
        torch.testing.assert_close(out_1d, one(content, positions))
        torch.testing.assert_close(out_2d, two(content, (2, 3)))


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(pos="rope9"), "unknown variant 'rope9': choose one of nopos, abspos, sinpos, cape"),
        (dict(dim=7), "dim must be even"),
        (dict(pos="nopos", dim=7), "dim must be even"),
        (dict(pos="nopos", max_global_scale=0.5), "max_global_scale"),
        (dict(pos="sinpos", max_global_shift=-1.0), "max_global_shift"),
        (dict(pos="nopos", max_local_shift=float("nan")), "max_local_shift"),
        (dict(pos="nopos", base=0.0), "base"),
        (dict(pos="nopos", frequency_scale=0.0), "frequency_scale"),
        (dict(pos="nopos", overflow="clamp"), "overflow must be 'wrap' or 'error'"),
        (dict(pos="abspos"), "abspos needs max_length"),
        (dict(pos="nopos", max_length=0), "max_length must be ≥ 1, got 0"),
    ],
)
def test_1d_settings_are_checked_whatever_the_variant(arguments, message):
    with pytest.raises(ValueError, match=message):
        PositionalEmbedding1d(**{"dim": 8, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(pos="rope9"), "unknown variant 'rope9'"),
        (dict(pos="nopos", dim=7), "dim must be even"),
        (dict(pos="nopos", max_global_scale=0.5), "max_global_scale"),
        (dict(pos="nopos", max_local_shift=-1.0), "max_local_shift"),
        (dict(pos="nopos", max_local_shift=(1.0, 1.0, 1.0)), "a number or"),
        (dict(pos="nopos", extent=0.0), "extent"),
        (dict(pos="abspos"), "abspos needs grid"),
        (dict(pos="nopos", grid=(0, 3)), "grid must be"),
    ],
)
def test_2d_settings_are_checked_whatever_the_variant(arguments, message):
    with pytest.raises(ValueError, match=message):
        PositionalEmbedding2d(**{"dim": 8, **arguments})


@pytest.mark.parametrize("variant", VARIANTS)
def test_shapes_that_do_not_fit_are_refused_by_every_variant(variant):
    one, two = embedding_1d(8, variant), embedding_2d(8, variant)
    with pytest.raises(ValueError, match=r"content must be \(B, N, 8\)"):
        one(torch.zeros(2, 6, 4), token_positions([6, 6]))
    with pytest.raises(ValueError, match=r"needs positions \[2, 6\], got \[2, 5\]"):
        one(torch.zeros(2, 6, 8), token_positions([5, 5]))
    with pytest.raises(ValueError, match="3 samples do not fit a batch of 2"):
        one(torch.zeros(2, 6, 8), token_positions([6, 6, 6]))
    with pytest.raises(ValueError, match="a grid of 2 × 2 has 4 patches"):
        two(torch.zeros(2, 6, 8), (2, 2))


@pytest.mark.parametrize("variant", ["abspos", "sinpos", "cape"])
def test_infinite_positions_are_refused(variant):
    with pytest.raises(ValueError, match=r"positions must be finite.* got inf at index \[0, 1\]"):
        embedding_1d(8, variant)(torch.zeros(1, 2, 8), torch.tensor([[0.0, float("inf")]]))


def test_a_draw_for_another_batch_is_refused():
    with pytest.raises(ValueError, match=r"shift \(2, 1\) and scale \(2,\)"):
        embedding_1d(8, "cape")(
            torch.zeros(2, 6, 8),
            token_positions([6, 6]),
            draw=Draw(torch.zeros(3, 1), torch.ones(3)),
        )
    with pytest.raises(ValueError, match=r"got \(2, 1\) and \(3,\)"):
        embedding_1d(8, "cape")(
            torch.zeros(2, 6, 8),
            token_positions([6, 6]),
            draw=Draw(torch.zeros(2, 1), torch.ones(3)),
        )


def test_adding_at_the_augmented_positions_is_what_forward_does():
    content, positions = torch.randn(2, 6, 8), token_positions([6, 4])
    line = PositionalEmbedding1d(8, max_global_shift=5.0, max_local_shift=0.5).train()
    plane = PositionalEmbedding2d(8).train()
    torch.manual_seed(0)
    expected = line(content, positions), plane(content, (2, 3))
    torch.manual_seed(0)
    moved = line.augmented(positions, 2)
    assert torch.equal(line.add(content, moved), expected[0])
    assert torch.equal(moved.isnan(), positions.isnan())
    assert torch.equal(plane.add(content, plane.augmented(content, (2, 3))), expected[1])
