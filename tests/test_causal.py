"""Decoders: where their tokens are, which keys they see, and what is refused besides."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cape_plugins import Positions, Variant, register_variant, token_positions, variants
from cape_plugins.attention import Given, PositionalAttention
from cape_plugins.causal import check_mask, earlier, place
from cape_support import OPTIONS, SEQUENCES, AlibiFirst, Made

NAN = math.nan


def decoder(pos: str, **given) -> Positions:
    taken = variants.get(pos, 1).options(1)
    options = {name: value for name, value in OPTIONS.items() if name in taken}
    options |= {"abspos_context": 2000} if "abspos_context" in taken else {}
    sizes = dict(dim=12, heads=3, layers=2)
    return Positions(pos, **{**sizes, "causal": True, **options, **given}).eval()


def same(found: torch.Tensor, expected: list) -> bool:
    torch.testing.assert_close(found, torch.tensor(expected), equal_nan=True, atol=0, rtol=0)
    return True


def test_tokens_are_counted_after_those_of_the_cache_and_without_padding():
    new, keys = place(2, past=3)
    assert same(new, [[3.0, 4.0]])
    assert same(keys, [[0.0, 1.0, 2.0, 3.0, 4.0]])
    left = torch.tensor([[[False, False, True, True, True]], [[True] * 5]])
    new, keys = place(2, 3, left)
    assert same(new, [[1.0, 2.0], [3.0, 4.0]])
    assert same(keys, [[NAN, NAN, 0.0, 1.0, 2.0], [0.0, 1.0, 2.0, 3.0, 4.0]])
    assert same(place(2, 3, left[1:, :, :1])[1], [[0.0, 1.0, 2.0, 3.0, 4.0]])  # one for all keys
    for no_padding in (left[:1].expand(1, 2, 5), left[:1, None], left[:1].float()):
        assert same(place(2, 3, no_padding)[0], [[3.0, 4.0]])
    many = torch.ones(1, 1, 300, dtype=torch.bool)
    many[..., 0] = False
    assert same(place(1, 299, many)[0], [[298.0]])


def test_queries_are_the_last_of_the_keys_and_see_none_that_is_later():
    assert earlier(2, 4)[0].tolist() == [[True, True, True, False], [True] * 4]
    assert earlier(1, 4) is None


@pytest.mark.parametrize("pos", SEQUENCES)
def test_a_tokens_result_does_not_depend_on_later_tokens(pos):
    made, x = decoder(pos), torch.randn(1, 9, 12)
    query, key, value = torch.randn(3, 1, 3, 9, 4)
    whole, given = made(x)
    attended = made.attentions[0](query, key, value, given)[0]
    for count in (1, 4):
        content, shorter = made(x[:, :count])
        found = (one[:, :, :count] for one in (query, key, value))
        torch.testing.assert_close(content, whole[:, :count])
        torch.testing.assert_close(made.attentions[0](*found, shorter)[0], attended[:, :, :count])


@pytest.mark.parametrize(("pos", "factor"), [("sinpos", 12.0), ("abspos", 1.0), ("rope", 1.0)])
def test_content_is_scaled_where_sinusoids_are_added(pos, factor):
    made, x = decoder(pos, dim=144), torch.randn(1, 3, 144)
    added = 0.0 if pos == "rope" else made.added.embedding(token_positions([3])[..., None], x.dtype)
    torch.testing.assert_close(made(x)[0], x * factor + added)
    encoder = decoder(pos, dim=144, causal=False)
    assert encoder.content_scale == factor
    torch.testing.assert_close(
        encoder(x, torch.zeros(1, 3))[0][0, 1] - x[0, 1], encoder(0 * x, torch.zeros(1, 3))[0][0, 1]
    )  # not by itself


@pytest.mark.parametrize(
    ("pos", "named"), [("cape", "mean_normalize"), ("cape_alibi", "mean_normalize"),
                       ("random", "spread"), ("random_rope", "spread")]
)  # fmt: skip
def test_options_that_need_later_tokens_are_off_and_refused(pos, named):
    assert decoder(pos).options[named] is False
    assert decoder(pos, causal=False).options[named] is True
    assert decoder(pos, **{named: False}).options[named] is False
    with pytest.raises(ValueError, match=named):
        decoder(pos, **{named: True})


def test_what_adds_by_content_is_refused(eight):
    with pytest.raises(ValueError, match="conditional"):
        decoder("conditional")


def test_positions_may_be_left_out_by_a_decoder_alone():
    x = torch.randn(1, 3, 12)
    with pytest.raises(ValueError, match="causal"):
        decoder("rope", causal=False)(x)
    with pytest.raises(ValueError, match="positions"):
        decoder("rope")(None)
    with pytest.raises(ValueError, match="positions"):
        decoder("rope", axes=2)(x)
    with pytest.raises(ValueError, match="keys="):
        decoder("rope")(x, token_positions([3]), past=2)
    with pytest.raises(ValueError, match="past"):
        decoder("rope")(x, past=-1)


def test_tokens_behind_a_cache_see_all_of_it_and_none_that_is_later():
    _, given = decoder("rope")(torch.randn(1, 2, 12), past=3)
    assert given.mask.tolist() == [[[[True, True, True, True, False], [True] * 5]]]


def test_a_decoder_with_keys_of_its_own_hides_none_of_them():
    made, where, keys = decoder("alibi"), torch.tensor([[3.0, 4.0]]), torch.arange(5.0)[None]
    _, given = made(None, where, keys=keys)
    slope = -given.bias[0, :, 0, 2]  # one token away
    expected = -(where[0, :, None] - keys).abs() * slope[:, None, None]
    torch.testing.assert_close(given.bias[0], expected)


# What a step costs, and what it lacks


@pytest.mark.parametrize("pos", SEQUENCES)
def test_a_step_makes_rows_of_cached_keys_for_variants_that_read_them_alone(pos):
    made, x = decoder(pos), torch.randn(1, 1, 12)
    reads = pos.startswith("relpos") or "alibi" in pos
    with torch.device("meta"):  # it is known there too
        assert decoder(pos).reads_keys == made.reads_keys == reads
    with Made() as counted:
        _, given = made(x, past=1000)
    assert given.keys is None
    assert counted.sines <= 100
    bias = given.bias if given.bias is not None else given.pairs
    assert not reads or bias.shape[-1] == 1001


class Window(PositionalAttention):
    """A token sees the one before it too: a mask of positions, from what ``prepare`` makes."""

    def __post_init__(self):
        super().__post_init__()
        self.register_buffer("width", torch.ones(1), persistent=False)

    def prepare(self, queries, keys, mask, dtype):
        apart = queries[..., :, None, :] - keys[..., None, :, :]
        near = (apart[..., 0].abs() <= float(self.width))[:, None]  # which meta does not know
        return Given(mask=near if mask is None else near & mask)


def test_a_variant_that_masks_by_positions_reads_those_of_cached_keys(own_table):
    register_variant("window", Variant(attends=Window))
    assert decoder("window").reads_keys
    with torch.device("meta"):
        assert decoder("window").reads_keys
    _, given = decoder("window")(torch.randn(1, 1, 12), past=4)
    assert given.mask.tolist() == [[[[False, False, False, True, True]]]]


def test_what_prepares_in_each_layer_is_asked_for_nothing_when_it_is_built(own_table):
    class Asked(Window):
        def prepare(self, queries, keys, mask, dtype):
            raise AssertionError("its weights may be elsewhere")

    register_variant("asked", Variant(attends=Asked, one_for_all=True))
    made = decoder("asked")
    assert made.reads_keys
    assert made.attentions[0] is made.attentions[1]


def test_a_step_that_forgets_where_the_keys_are_is_refused():
    query, (key, value) = torch.randn(1, 3, 1, 4), torch.randn(2, 1, 3, 5, 4)
    for pos in ("alibi", "cape_alibi", "rope", "relpos"):
        made = decoder(pos)
        _, given = made(None, torch.tensor([[4.0]]))
        for cache in (None, lambda key, value: (key, value)):
            with pytest.raises(ValueError, match="keys="):
                made.attentions[0](query, key, value, given, cache=cache)
        now = key[:, :, :1], value[:, :, :1]
        with pytest.raises(ValueError, match="keys="):
            made.attentions[0](query, *now, given, cache=lambda *_: (key, value))


@pytest.mark.parametrize(
    ("pos", "named"),
    [(pos, "draws=False") for pos in ("cape", "cape_rope", "cape_alibi")]
    + [(pos, "keys=") for pos in ("random", "random_rope", "pose_rope")],
)
def test_a_step_in_training_draws_nothing_or_is_refused(pos, named):
    made, x = decoder(pos).train(), torch.randn(2, 1, 12)
    with pytest.raises(ValueError, match=named):
        made(x, past=4)
    found, given = made(x, past=4, draws=False)
    expected, wanted = made.eval()(x, past=4)
    assert torch.equal(found, expected)
    for one, other in zip(given, wanted, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)
    content = torch.randn(2, 6, 12)
    first, second = (made.train()(content) for _ in range(2))  # a whole sequence is drawn
    one, other = ((y, g.queries, g.bias) for y, g in (first, second))
    assert not all(a is None or torch.equal(a, b) for a, b in zip(one, other, strict=True))


# Masks


def test_a_mask_of_zeros_and_ones_is_refused():
    made, x = decoder("rope", causal=False), torch.randn(1, 4, 12)
    tril = torch.ones(1, 4, 4).tril()
    with pytest.raises(ValueError, match="bool"):
        made(x, token_positions([4]), tril)
    mixed = tril - 2 * torch.eye(4)  # of -1, 0 and 1
    for added in (tril.log(), torch.zeros(1, 4, 4), 0.5 * tril, tril + 0.25, mixed):
        made(x, token_positions([4]), added)


def test_a_mask_whose_values_would_stop_a_gpu_or_are_not_there_is_not_read():
    there = torch.zeros(1, 4)
    with torch.device("meta"):
        check_mask(torch.zeros(1, 4, 4), there, there)
    with FakeTensorMode():
        check_mask(torch.zeros(1, 4, 4), there, there)
    read = torch.compile(
        lambda mask: check_mask(mask, there, there), backend="eager", fullgraph=True
    )
    read(torch.ones(1, 4, 4).tril())


def test_a_mask_that_hides_later_tokens_needs_positions_that_do_not_depend_on_them():
    x, where = torch.randn(1, 4, 12), token_positions([4])
    seen = torch.ones(1, 4, 4, dtype=torch.bool).tril()
    for pos in ("cape", "random_rope"):
        with pytest.raises(ValueError, match="causal"):
            decoder(pos, causal=False)(x, where, seen)
        decoder(pos)(x, where, seen)
        decoder(pos, causal=False)(x, where, seen | seen.roll(1, dims=2))  # each shows the next
        decoder(pos, causal=False)(x[:, :1], where[:, :1], seen[:, :1, :1])
        decoder(pos, causal=False)(x, where, seen[:, :1])  # it hides padding from all
    decoder("rope", causal=False)(x, where, seen)


@pytest.mark.parametrize(
    ("mask", "named"),
    [
        (torch.ones(1, 2, 5, dtype=torch.uint8), "uint8"),
        (torch.ones(1, 5, 5, dtype=torch.bool), "1 or 2"),  # of more queries
        (torch.ones(1, 1, 2, 4, dtype=torch.bool), "1 or 5"),  # of fewer keys
        (torch.ones(2, 5, dtype=torch.bool), r"mask\[None\]"),
    ],
)
@pytest.mark.parametrize("pos", ["nopos", "rope"])
def test_a_mask_of_another_kind_or_shape_is_refused(pos, mask, named):
    made, x = decoder(pos, causal=False), torch.randn(1, 2, 12)
    where, keys = torch.tensor([[3.0, 4.0]]), torch.arange(5.0)[None]
    seen = torch.ones(1, 2, 5, dtype=torch.bool)
    assert made(x, where, seen, keys=keys)[1].mask.shape == (1, 1, 2, 5)
    assert made(x, where, seen[:, :1, :1], keys=keys)[1].mask.shape == (1, 1, 1, 1)
    with pytest.raises(ValueError, match=named):
        made(x, where, mask, keys=keys)
    with pytest.raises(ValueError, match="mask"):
        decoder(pos)(x, mask=torch.ones(1, 2, 5, dtype=torch.bool))


def test_padding_and_float_masks_are_merged_with_the_decoders_own():
    made, x = decoder("rope"), torch.randn(2, 4, 12)
    real = torch.ones(2, 1, 4, dtype=torch.bool)
    real[1, :, 0] = False
    tril = torch.ones(4, 4, dtype=torch.bool).tril()
    assert torch.equal(made(x, mask=real)[1].mask, (real & tril)[:, None])
    added = torch.zeros(1, 1, 4).masked_fill(~real[1:], -2.0)
    expected = added.expand(1, 4, 4).masked_fill(~tril, -math.inf)[:, None]
    assert torch.equal(made(x, mask=added)[1].mask, expected)


def test_a_variant_of_the_first_layer_leaves_the_others_but_for_the_mask(own_table):
    register_variant("alibi_first", Variant(attends=AlibiFirst))
    made = decoder("alibi_first")
    _, given = made(None, token_positions([6]))
    query, key, value = torch.randn(3, 1, 3, 6, 4)
    seen = torch.ones(1, 6, 6, dtype=torch.bool).tril()
    plain, _ = PositionalAttention(made.sizes)(query, key, value, given._replace(bias=None))
    first, other = (one(query, key, value, given)[0] for one in made.attentions)
    torch.testing.assert_close(other, plain)
    assert not torch.allclose(first, plain)
    masked = torch.nn.functional.scaled_dot_product_attention(query, key, value, seen[None])
    torch.testing.assert_close(other, masked)
