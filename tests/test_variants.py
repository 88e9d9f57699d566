"""The table of variants: what each adds, what sits in self-attention, which options it takes."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F

from cape_plugins import PositionalEmbedding1d, PositionalEmbedding2d, token_positions, variants
from cape_plugins.attention import CurrentPositions, PositionalAttention, RelativeAttention
from cape_plugins.augment import Cape

SETTINGS = dict(head_dim=4, heads=2, context=3)


def test_the_numbers_in_checkpoints_never_change():
    numbers = {name: variant.number for name, variant in variants.VARIANTS.items()}
    known = dict(nopos=0, abspos=1, sinpos=2, cape=3, relpos=4, relpos_first=5)
    known |= dict(rope=6, cape_rope=7, rope_mixed=8, cape_rope_mixed=9)
    known |= dict(alibi=10, cape_alibi=11, random=12, random_rope=13)
    assert known.items() <= numbers.items()
    assert len(set(numbers.values())) == len(numbers)


def test_images_have_those_with_two_axes():
    assert {*variants.names(1)} - {*variants.names(2)} == {"relpos", "relpos_first"}
    assert {*variants.names(2)} - {*variants.names(1)} == {"rope_mixed", "cape_rope_mixed"}


@pytest.mark.parametrize("pos", variants.names(1))
def test_every_variant_of_sequences_has_a_module(pos):
    module = PositionalEmbedding1d(8, pos, max_length=10)
    content = torch.randn(2, 5, 8)
    out = module(content, token_positions([5, 4]))
    assert torch.equal(out, content) == module.adds_nothing
    assert module.adds_nothing == (variants.get(pos).adds == "nothing")


@pytest.mark.parametrize("pos", variants.names(2))
def test_every_variant_of_images_has_a_module(pos):
    module = PositionalEmbedding2d(8, pos, grid=(2, 2))
    content = torch.randn(2, 6, 8)
    assert torch.equal(module(content, (2, 3)), content) == module.adds_nothing


def test_only_cape_draws_what_sequences_share_and_only_in_training():
    device = torch.device("cpu")
    for pos in variants.names(1):
        module = PositionalEmbedding1d(8, pos, max_length=10, max_global_shift=5.0)
        draw = module.draw(3, device)
        assert (draw is not None) == (variants.get(pos).augment is Cape)
        assert module.eval().draw(3, device) is None
    draw = PositionalEmbedding2d(8).draw(3, device)
    assert draw.shift.shape == (3, 2)
    assert draw.scale.shape == (3,)


def test_relpos_sits_in_every_layer_and_relpos_first_in_the_first():
    def layers(pos: str) -> list[bool]:
        built = [variants.attention_for(pos, layer, **SETTINGS) for layer in range(3)]
        assert all(a is None or isinstance(a, RelativeAttention) for a in built)
        return [a is not None for a in built]

    assert layers("relpos") == [True, True, True]
    assert layers("relpos_first") == [True, False, False]
    assert layers("cape") == layers("nopos") == [False, False, False]


def test_the_settings_reach_the_attention():
    plain = variants.attention_for("relpos", 0, **SETTINGS)
    assert plain.keys.shape == (7, 4)
    assert plain.values is None
    assert not plain.learns_values
    with_values = variants.attention_for("relpos", 0, **SETTINGS, values=True)
    assert with_values.values.shape == (7, 4)
    assert with_values.learns_values


def test_an_unknown_variant_names_those_to_choose_from():
    with pytest.raises(ValueError, match="unknown variant 'rope9': choose one of nopos, abspos"):
        variants.get("rope9")
    with pytest.raises(ValueError, match="unknown variant 'relpos': choose one of nopos, cape"):
        variants.get("relpos", ("nopos", "cape"))


def test_an_option_that_the_variant_does_not_take_is_refused():
    given = dict(max_global_shift=3.0, relpos_context=150, learning_rate=0.1)
    defaults = dict(max_global_shift=5.0, relpos_context=150)
    variants.refuse_options("cape", given, defaults, axes=1)
    with pytest.raises(ValueError, match=r"--max-global-shift = 3.0 is for cape; relpos takes"):
        variants.refuse_options(
            "relpos", given, defaults, lambda name: "--" + name.replace("_", "-"), axes=1
        )
    with pytest.raises(ValueError, match="nopos takes none of these: leave it out"):
        variants.refuse_options("nopos", given, defaults, axes=1)
    not_given = {**given, "max_global_shift": 5.0}
    variants.refuse_options("nopos", not_given, defaults, axes=1)
    with pytest.raises(ValueError, match="is for cape, cape_rope, cape_rope_mixed; rope takes"):
        variants.refuse_options("rope", given, defaults, axes=2)


def test_a_shift_that_cancels_among_all_tokens_is_refused():
    given, defaults = dict(max_global_shift=3.0), dict(max_global_shift=5.0)
    variants.refuse_options("cape_rope", given, defaults, axes=2)  # a class token has no position
    with pytest.raises(ValueError, match=r"max_global_shift = 3\.0 is for cape; cape_rope takes"):
        variants.refuse_options("cape_rope", given, defaults, axes=1)


class Tilted(PositionalAttention):
    """Scores fall with the distance of positions; the outputs get the weights' sum."""

    learns_values = True

    def place(self, x, positions):
        return x * (1 + positions.nan_to_num()[:, None, :, None])

    def logits(self, query, keys, positions=None):
        last = positions[:, keys - query.shape[2] :, None]
        return -(last - positions[:, None]).abs().nan_to_num()[:, None]

    def mix(self, weights):
        return weights.sum(-1, keepdim=True).expand(*weights.shape[:3], 4)


def test_the_base_is_attention_without_positions():
    query, key, value = torch.randn(3, 2, 2, 5, 4)
    mask = torch.rand(2, 1, 5, 5) > 0.3
    mask[..., 0] = True
    out = PositionalAttention()(query, key, value, mask=mask)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    torch.testing.assert_close(out, expected)
    assert PositionalAttention().logits(query, 5) is None
    assert PositionalAttention().mix(torch.rand(2, 2, 5, 5)) is None


def test_places_scores_and_values_all_reach_the_output():
    query, key, value = torch.randn(3, 2, 3, 5, 4)  # three heads
    query, positions = query[:, :, 3:], torch.rand(1, 5) * 3
    mask = torch.ones(2, 1, 2, 5, dtype=torch.bool)
    mask[1, ..., 1] = False
    placed = key * (1 + positions[:, None, :, None])
    scores = (query * (1 + positions[:, None, 3:, None])) @ placed.transpose(2, 3) / 2
    scores = scores - (positions[:, 3:, None] - positions[:, None]).abs()[:, None]
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    out = Tilted()(query, key, value, positions, mask)
    torch.testing.assert_close(out, weights @ value + 1)


def test_copies_and_pickles_begin_without_the_positions_of_a_batch():
    current = CurrentPositions()
    assert current.positions is None
    current.positions = torch.rand(2, 5, requires_grad=True) * 2
    assert copy.deepcopy(current).positions is None
    assert pickle.loads(pickle.dumps(current)).positions is None
