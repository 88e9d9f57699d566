"""Positions by layer: every n-th layer has none, in every variant that attends."""

import pytest
import torch

from cape_plugins import (
    PositionalAttention,
    Positions,
    Rotary,
    Sizes,
    Variant,
    register_variant,
    testing,
    token_positions,
)
from cape_plugins.variants import OURS, get
from cape_support import build

ATTEND = [(pos, axes) for axes in (1, 2) for pos in OURS[axes] if get(pos, axes).attends]
SIZES = dict(dim=32, heads=4, layers=3)


@pytest.mark.parametrize(("pos", "axes"), [one for one in ATTEND if one[0] != "relpos_first"])
def test_every_variant_that_attends_has_it_and_the_mark_keeps_it(pos, axes):
    model = build(pos, axes, layers=8, nopos_every=4)
    attends = [one.acts for one in model.attentions]
    assert attends == [True, True, True, False] * 2
    assert [one is None for one in model.hand_over()] == [not one for one in attends]
    with pytest.raises(ValueError, match="nopos_every 4"):
        build(pos, axes, layers=8).load_state_dict(model.state_dict(), strict=False)


CHECKS = [one for one in testing.CHECKS if "compile" not in one.__name__]


@pytest.mark.parametrize("check", CHECKS)
def test_it_does_what_every_variant_must_in_the_core_and_in_each_host(check):
    """Of the two layers of a check the second has none."""
    for pos, axes in (("rope", 2), ("cape_alibi", 1)):
        check(pos, axes, nopos_every=2)


def test_a_layer_without_positions_is_plain_attention_and_the_others_are_as_they_were():
    query, key, value = torch.randn(3, 2, 4, 9, 8)
    model = Positions("rope", dim=32, heads=4, layers=2, nopos_every=2)
    _, given = model(None, token_positions([9]))
    with_positions, without = (one(query, key, value, given)[0] for one in model.attentions)
    rope, plain = Rotary(Sizes(dim=32, heads=4)), PositionalAttention(Sizes(dim=32, heads=4))
    assert torch.equal(with_positions, rope(query, key, value, given)[0])
    assert torch.equal(without, plain(query, key, value)[0])


class Late(Rotary):
    """Not in the first layer."""

    def acts_in(self, layer):
        return layer > 0


@pytest.mark.parametrize("check", [c for c in testing.CHECKS if c is not testing.check_compile])
def test_a_variant_may_choose_its_layers(own_table, check):
    register_variant("late", Variant(attends=Late, axes=(1,)))
    assert [one and one.sizes.layer for one in Positions("late", **SIZES).layers] == [None, 1, 2]
    with pytest.raises(ValueError, match="nopos_every"):
        Positions("late", nopos_every=2, **SIZES)
    check("late", 1)


@pytest.mark.parametrize("wrong", [-1, 1, 2.5, True, "4"])
def test_a_number_of_layers_that_leaves_none_or_is_no_number_is_refused(wrong):
    with pytest.raises(ValueError, match="nopos_every"):
        Positions("rope", dim=32, heads=4, layers=4, nopos_every=wrong)


@pytest.mark.parametrize("pos", ["cape", "relpos_first"])
def test_who_does_not_attend_or_in_one_layer_alone_does_not_take_it(pos):
    with pytest.raises(ValueError, match=f"nopos_every .*: {pos} takes"):
        Positions(pos, dim=32, heads=4, layers=4, nopos_every=4)


def test_a_variant_may_read_the_number_of_its_layer():
    made = Positions("alibi", dim=32, heads=4, layers=4, nopos_every=3).hand_over()
    assert [one and one.sizes.layer for one in made] == [0, 1, None, 3]
