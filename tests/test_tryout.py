"""What a stranger's methods do wrongly: a check tells it, and a model what hurts in silence."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from cape_plugins import (
    Added,
    Given,
    PositionalAttention,
    Positions,
    Sizes,
    Variant,
    option,
    register_variant,
    testing,
    token_positions,
    variants,
)
from cape_plugins.part import Part

SIZES = dict(dim=12, heads=3, layers=2)


def distances(queries, keys):
    return (keys[:, None, :, 0] - queries[:, :, None, 0]).abs()


@dataclass(eq=False, repr=False)
class WithoutHeads(PositionalAttention):
    def bias(self, query, key, given):
        return distances(given.queries, given.keys).nan_to_num()  # (B, queries, keys)


@dataclass(eq=False, repr=False)
class Fewer(PositionalAttention):
    def embed(self, x, rows):
        return x[..., :2]


@dataclass(eq=False, repr=False)
class Row(Added):
    def embedding(self, positions, dtype):
        return positions.nan_to_num()  # (B, N, 1)


@dataclass(eq=False, repr=False)
class Bare(PositionalAttention):
    def prepare(self, queries, keys, mask, dtype):
        return queries


@dataclass(eq=False, repr=False)
class NanBias(PositionalAttention):
    def bias(self, query, key, given):
        return -distances(given.queries, given.keys)[:, None]


@dataclass(eq=False, repr=False)
class NanEmbed(PositionalAttention):
    def embed(self, x, rows):
        return x * rows[:, None].cos()


@dataclass(eq=False, repr=False)
class NanAdded(Added):
    def embedding(self, positions, dtype):
        return positions.expand(-1, -1, self.sizes.dim).cos()


@dataclass(eq=False, repr=False)
class Writes(PositionalAttention):
    def prepare(self, queries, keys, mask, dtype):
        return Given(queries.nan_to_num_(0.0), mask=mask)


@dataclass(eq=False, repr=False)
class WritesLater(PositionalAttention):
    def embed(self, x, rows):
        rows.nan_to_num_(0.0).add_(1.0)
        return x


@dataclass(eq=False, repr=False)
class WritesAdded(Added):
    def embedding(self, positions, dtype):
        return positions.nan_to_num_(0.0).expand(-1, -1, self.sizes.dim)


CASES = {
    "attends": {
        WithoutHeads: r"variant odd: WithoutHeads\.bias .*\[2, 3, 8, 8\].* gave \[2, 8, 8\]",
        Fewer: r"variant odd: Fewer\.embed .*\[2, 3, 8, 8\]: it gave \[2, 3, 8, 2\]",
        NanBias: r"variant odd: NanBias\.bias gives NaN .*nan_to_num",
        NanEmbed: r"variant odd: NanEmbed\.embed gives NaN",
        Writes: r"variant odd: Writes\.prepare writes into .*clone\(\)",
        WritesLater: r"variant odd: WritesLater\.embed or bias writes into",
    },
    "adds": {
        Row: r"variant odd: Row\.embedding .*\[2, 8, 24\]: it gave \[2, 8, 1\]",
        NanAdded: r"variant odd: NanAdded\.embedding gives NaN",
        WritesAdded: r"variant odd: WritesAdded\.embedding writes into",
    },
}


@pytest.mark.parametrize(
    ("slot", "kind", "says"),
    [(slot, kind, says) for slot, of in CASES.items() for kind, says in of.items()],
)
def test_a_check_tells_it_with_variant_and_method(own_table, monkeypatch, slot, kind, says):
    monkeypatch.setattr("cape_plugins.positions.try_out", lambda part: None)
    register_variant("odd", Variant(axes=(1,), **{slot: kind}))
    with pytest.raises(AssertionError, match=says) as told:
        testing.check_methods("odd", 1)
    assert "\n" not in str(told.value)


@dataclass(eq=False, repr=False)
class Blind(PositionalAttention):
    """What it adds for all layers has no mask in it."""

    def prepare(self, queries, keys, mask, dtype):
        return Given(bias=distances(queries, keys).nan_to_num()[:, None])


@dataclass(eq=False, repr=False)
class SeesPadding(Added):
    def add(self, content, positions):
        return content + content.mean(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("slot", "kind", "says"),
    [
        ("attends", NanBias, r"variant odd: NanBias gives NaN .*nan_to_num"),
        ("attends", NanEmbed, r"variant odd: NanEmbed gives NaN"),
        ("adds", NanAdded, r"variant odd: NanAdded gives NaN"),
        ("attends", Bare, r"variant odd: Bare\.prepare must return Given\(queries, keys, mask\)"),
        ("attends", Blind, r"variant odd: Blind lets a query see a key that the mask hides"),
        ("adds", SeesPadding, r"variant odd: SeesPadding lets a query see"),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_what_hurts_in_silence_is_told_when_a_model_is_built(own_table, slot, kind, says, shared):
    shared &= slot == "attends" and kind is not Bare
    register_variant("odd", Variant(axes=(1,), one_for_all=shared, **{slot: kind}))
    with pytest.raises(ValueError, match=says) as told:
        Positions("odd", **SIZES)
    assert "\n" not in str(told.value)


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
    @dataclass(eq=False, repr=False)
    class Long(Added):
        def embedding(self, positions, dtype):
            if positions.shape[1] < 100:
                raise ValueError("give a hundred tokens")
            return torch.zeros(*positions.shape[:2], self.sizes.dim)

    register_variant("long", Variant(adds=Long))
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
    @dataclass(eq=False, repr=False)
    class Scaled(Added):
        def add(self, content, positions):
            return content * 2

    assert Scaled.needs_content()
    register_variant("scaled", Variant(adds=Scaled))
    positions, content = Positions("scaled", dim=12), torch.randn(2, 5, 12)
    assert torch.equal(positions(content, token_positions([5]))[0], 2 * content)
    with pytest.raises(ValueError, match=r"variant scaled: Scaled\.add needs the content"):
        positions(None, token_positions([5]))


def test_one_module_for_all_layers_is_of_a_variant_that_attends():
    both = dict(attends=Bare, one_for_all=True, first_layer_only=True)
    for wrong in (dict(one_for_all=True), both):
        with pytest.raises(ValueError, match="one_for_all"):
            Variant(**wrong)


def test_a_checkpoint_tells_variants_of_one_name_from_two_packages_apart(own_table):
    made = {}
    for package in ("a_package", "another_package"):
        source = """
from dataclasses import dataclass
from cape_plugins import PositionalAttention, Variant, register_variant
@dataclass(eq=False, repr=False)
class Same(PositionalAttention): pass
register_variant("same", Variant(attends=Same))
"""
        exec(source, {"__name__": package})
        made[package] = Positions("same", **SIZES)
        for table in variants.TABLE.values():
            del table["same"]
    one, other = made.values()
    one.load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match=r"the same of another_package.*that of a_package"):
        one.load_state_dict(other.state_dict())
    without = {k: v for k, v in other.state_dict().items() if "package" not in k}
    one.load_state_dict(without)  # of a script, or of an earlier release
