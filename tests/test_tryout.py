"""A stranger's variant when a model is built, and what parts do by themselves."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from cape_plugins import (
    Added,
    PositionalAttention,
    Positions,
    Sizes,
    Variant,
    option,
    register_variant,
    token_positions,
    variants,
)
from cape_plugins.part import Part
from cape_support import odd

SIZES = dict(dim=12, heads=3, layers=2)


def test_a_model_is_built_as_if_nothing_had_been_tried(own_table):
    """No random number is drawn for it, and a module in training stays in training."""

    @dataclass(eq=False, repr=False)
    class Drops(Added):
        def __post_init__(self):
            super().__post_init__()
            self.drop, self.tried = nn.Dropout(0.5), 0

        def embedding(self, positions, dtype):
            self.tried += 1
            torch.rand(3)
            return self.drop(torch.zeros(*positions.shape[:2], self.sizes.dim))

    register_variant("drops", Variant(adds=Drops))
    state = torch.get_rng_state()
    added = Positions("drops", dim=12).added
    assert added.tried == 2
    assert added.drop.training
    assert torch.equal(torch.get_rng_state(), state)


def test_what_needs_more_than_a_few_tokens_is_built(own_table):
    def embedding(self, positions, dtype):
        if positions.shape[1] < 100:
            raise ValueError("give a hundred tokens")

    register_variant("long", Variant(adds=odd(Added, embedding=embedding)))
    assert Positions("long", dim=12).added.pos == "long"


def test_a_base_class_need_not_be_called_for_a_module_to_hold_parameters(own_table):
    @dataclass(eq=False, repr=False)
    class Alone(PositionalAttention):
        alone_first: float = option(1.0, "of the number at first")

        def __post_init__(self):  # without super().__post_init__()
            self.number = nn.Parameter(torch.tensor(self.alone_first))

    register_variant("alone", Variant(attends=Alone))
    positions = Positions("alone", **SIZES, alone_first=2.0)
    assert [one.item() for one in positions.parameters()] == [2.0, 2.0]


def test_parameters_are_drawn_anew_as_a_new_instance_has_them():
    @dataclass(eq=False, repr=False)
    class Learned(Part):
        learned_first: float = option(1.0, "of the table at first")

        def __post_init__(self):
            super().__post_init__()
            self.table = nn.Parameter(torch.full((3, 4), self.learned_first))
            self.network = nn.Linear(4, 4)

    part = Learned(Sizes(dim=12), learned_first=3.0)
    for parameter in part.parameters():
        parameter.data.zero_()
    part.reset_parameters()
    assert part.table.eq(3.0).all()
    assert part.network.weight.std() > 0.1
    assert part.no_weight_decay() == {"table", "network.bias"}


def test_what_depends_on_the_content_has_no_embedding_without_it(own_table):
    scaled = odd(Added, add=lambda self, content, positions: content * 2)
    assert scaled.needs_content()
    register_variant("scaled", Variant(adds=scaled))
    positions, content = Positions("scaled", dim=12), torch.randn(2, 5, 12)
    assert torch.equal(positions(content, token_positions([5]))[0], 2 * content)
    with pytest.raises(ValueError, match=r"variant scaled: Odd\.add needs the content"):
        positions(None, token_positions([5]))


def test_a_checkpoint_tells_variants_of_one_name_from_two_packages_apart(own_table):
    made = {}
    register = "register_variant('same', Variant(attends=PositionalAttention))"
    for package in ("a_package", "another_package"):
        exec(register, {**globals(), "__name__": package})
        made[package] = Positions("same", **SIZES)
        for table in variants.TABLE.values():
            del table["same"]
    one, other = made.values()
    one.load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match=r"the same of another_package.*that of a_package"):
        one.load_state_dict(other.state_dict())
    without = {k: v for k, v in other.state_dict().items() if "package" not in k}
    one.load_state_dict(without)  # of a script, or of an earlier release
