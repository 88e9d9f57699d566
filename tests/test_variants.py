"""The table of variants: what each adds, what sits in self-attention, which options it takes."""

import inspect

import pytest
import torch

from cape_plugins import PositionalEmbedding, variants
from cape_plugins.attention import AttentionSettings
from cape_plugins.relpos import RelativeAttention

SIZES = AttentionSettings(head_dim=4, heads=2, context=3)


def test_the_numbers_in_checkpoints_never_change():
    numbers = {name: variant.number for name, variant in variants.VARIANTS.items()}
    known = dict(nopos=0, abspos=1, sinpos=2, cape=3, relpos=4, relpos_first=5)
    known |= dict(rope=6, cape_rope=7, rope_mixed=8, cape_rope_mixed=9)
    known |= dict(alibi=10, cape_alibi=11, random=12, random_rope=13)
    assert known.items() <= numbers.items()
    assert len(set(numbers.values())) == len(numbers)


def test_images_have_those_with_two_axes():
    lines, planes = {*variants.names(1)}, {*variants.names(2)}
    assert lines - planes == {"abspos", "relpos", "relpos_first"}
    assert planes - lines == {"rope_mixed", "cape_rope_mixed"}
    assert lines | planes == {*variants.VARIANTS}
    # γ of evaluation moves whatever has positions
    assert {pos for pos in planes if "extent" in variants.get(pos).taken(2)} == planes - {"nopos"}


@pytest.mark.parametrize("axes", [1, 2])
def test_every_variant_adds_what_its_row_says(axes):
    for pos in variants.names(axes):
        options = dict(max_length=10) if pos == "abspos" else {}
        module = PositionalEmbedding(8, pos, axes=axes, **options)
        content = torch.randn(2, 5, 8)
        out = module(content, torch.rand(2, 5, *([2] if axes == 2 else [])) * 9)
        assert torch.equal(out, content) == (variants.get(pos).adds == "nothing")


def test_every_option_of_a_row_is_known_somewhere():
    """A typo in the table would never be refused and never be taken."""
    core = {*inspect.signature(PositionalEmbedding).parameters}
    core |= {"relpos_context"}
    hosts = {"extent", "source_scale", "abspos_context"}
    for variant in variants.VARIANTS.values():
        assert variant.options <= core | hosts
        assert variant.only_in_images <= variant.options


def test_relpos_sits_in_every_layer_and_relpos_first_in_the_first():
    def layers(pos: str) -> list[bool]:
        built = variants.attention_layers(pos, 3, SIZES)
        assert all(a is None or isinstance(a, RelativeAttention) for a in built)
        return [a is not None for a in built]

    assert layers("relpos") == [True, True, True]
    assert layers("relpos_first") == [True, False, False]
    assert layers("cape") == layers("nopos") == [False, False, False]
    first, second, _ = variants.attention_layers("relpos", 3, SIZES)
    assert first.keys.shape == (7, 4)
    assert not torch.equal(first.keys, second.keys)  # a table for each layer


def test_an_unknown_variant_names_those_to_choose_from():
    with pytest.raises(ValueError, match="unknown variant 'rope9': choose one of nopos, abspos"):
        variants.get("rope9")
    with pytest.raises(ValueError, match="unknown variant 'relpos': choose one of nopos, cape"):
        variants.get("relpos", ("nopos", "cape"))
    for axes in (0, 3):
        with pytest.raises(ValueError, match=rf"axes must be 1 .* or 2 .*, got {axes}"):
            variants.names(axes)


def test_an_option_that_the_variant_does_not_take_is_refused():
    given = dict(max_global_shift=3.0, relpos_context=150, learning_rate=0.1)
    defaults = dict(max_global_shift=5.0, relpos_context=150)
    variants.refuse_options("cape", given, defaults, axes=1)
    with pytest.raises(ValueError, match=r"--max_global_shift = 3.0 is for cape; relpos takes --"):
        variants.refuse_options("relpos", given, defaults, "--{}".format, axes=1)
    with pytest.raises(ValueError, match=r"nopos takes none of these: leave it out"):
        variants.refuse_options("nopos", given, defaults, axes=1)
    with pytest.raises(ValueError, match="is for cape, cape_rope, cape_rope_mixed; rope takes"):
        variants.refuse_options("rope", given, defaults, axes=2)
    not_given = {**given, "max_global_shift": 5.0}
    variants.refuse_options("nopos", not_given, defaults, axes=1)
    others = dict(max_local_shift=1.0, relpos_context=9)
    with pytest.raises(ValueError, match=r"relpos_context = 9 .*; cape takes max_local_shift: "):
        variants.refuse_options("cape", others, {}, axes=1)


def test_a_shift_that_cancels_among_all_tokens_is_refused():
    given, defaults = dict(max_global_shift=3.0), dict(max_global_shift=5.0)
    variants.refuse_options("cape_rope", given, defaults, axes=2)  # a class token has no position
    with pytest.raises(ValueError, match=r"is for cape; cape_rope .*changes no distance"):
        variants.refuse_options("cape_rope", given, defaults, axes=1)
    with pytest.raises(ValueError, match=r"is for cape; rope takes none of these: leave"):
        variants.refuse_options("rope", given, defaults, axes=1)


def test_each_augmentation_is_built_of_the_options_it_takes():
    options = dict(max_global_shift=3.0, max_local_shift=0.5, random_range=(0.0, 9.0), other=1)
    assert variants.augmentation("cape", options).max_global_shift == 3.0
    # rotations and distances see no shift
    assert variants.augmentation("cape_alibi", options).max_global_shift == 0.0
    assert variants.augmentation("cape_alibi", options).max_local_shift == 0.5
    assert variants.augmentation("random_rope", options).random_range == (0.0, 9.0)
    assert type(variants.augmentation("sinpos", options)).__name__ == "Identity"
