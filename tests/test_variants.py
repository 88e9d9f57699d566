"""The table of variants, and the way into it from outside."""

from dataclasses import dataclass

import pytest

from cape_plugins import (
    POSITION,
    Added,
    AsGiven,
    Augmentation,
    PositionalAttention,
    Sinusoids,
    Variant,
    option,
    register_variant,
    variants,
)
from cape_plugins.autoload import MEANT_BY_HOSTS
from cape_support import IMAGES, SEQUENCES


@dataclass(eq=False, repr=False)
class Tilted(PositionalAttention):
    """An attention with an option of its own."""

    tilt: float = option(1.0, "how steep", unit=POSITION)


EVERY = "nopos_every"  # of what attends
ROPE = {"rope_base", "rope_fraction", EVERY}
SHIFTED = {"max_local_shift", "max_global_scale", "mean_normalize"}
PLAIN = Variant(adds=Sinusoids)


def test_ours_come_first_and_images_have_all_but_those_of_sequences():
    assert variants.names(1)[: len(SEQUENCES)] == SEQUENCES
    assert variants.names(2)[: len(IMAGES)] == IMAGES
    assert {*SEQUENCES} - {*IMAGES} == {"abspos", "relpos", "relpos_first", "pose_rope"}


@pytest.mark.parametrize(
    ("pos", "axes", "taken"),
    [
        ("nopos", 1, set()),
        ("abspos", 1, {"abspos_context", "overflow"}),
        ("sinpos", 1, {"base", "frequency_scale"}),
        ("sinpos", 2, {"frequency_scale"}),
        ("relpos", 1, {"relpos_context", EVERY}),
        ("relpos_first", 1, {"relpos_context"}),
        ("rope", 2, {"frequency_scale", *ROPE}),
        ("alibi", 2, {"alibi_unit", EVERY}),
        ("cape", 1, {"base", "frequency_scale", "max_global_shift", *SHIFTED}),
        # between tokens a shift of all cancels; a class token is not shifted
        ("cape_rope", 1, {"frequency_scale", *ROPE, *SHIFTED}),
        ("cape_rope", 2, {"frequency_scale", *ROPE, "max_global_shift", *SHIFTED}),
        ("cape_alibi", 2, {"alibi_unit", EVERY, *SHIFTED}),
        ("random_rope", 1, {"frequency_scale", *ROPE, "random_range", "spread"}),
        ("pose_rope", 1, {"frequency_scale", *ROPE, "pose_range"}),
    ],
)
def test_a_variant_takes_what_its_classes_declare(pos, axes, taken):
    assert variants.get(pos, axes).options(axes).keys() == taken


@pytest.mark.parametrize(
    ("pos", "axes", "says"),
    [
        ("ropes", 1, r"'ropes' \(did you mean rope\?\).* nopos.*package.*env"),
        ("relpos", 2, "relpos.* nopos"),
        ("rope", 0, "axes"),
        ("rope", 3, "axes"),
    ],
)
def test_an_unknown_variant_names_those_to_choose_from(pos, axes, says):
    with pytest.raises(ValueError, match=says):
        variants.get(pos, axes)


# From outside


@pytest.mark.parametrize(
    ("name", "variant", "says"),
    [
        ("rope", PLAIN, "rope"),  # there is one
        ("relpos", Variant(adds=Sinusoids, axes=(2, 1)), "relpos"),  # on one of the axes
        ("Fire", PLAIN, "Fire"),
        ("fire-2", PLAIN, "fire-2"),
        ("_fire", PLAIN, "_fire"),
        ("fire__2", PLAIN, "fire__2"),
        ("", PLAIN, "''"),
        ("tilted", Tilted, "Variant"),
        ("nothing", None, "Variant"),
        *((name, PLAIN, name) for name in MEANT_BY_HOSTS),
        (None, PLAIN, "None"),
    ],
)
def test_what_would_mean_two_things_is_refused_and_changes_nothing(name, variant, says):
    before = [variants.names(axes) for axes in (1, 2)]
    with pytest.raises(ValueError, match=says):
        register_variant(name, variant)
    assert [variants.names(axes) for axes in (1, 2)] == before


@dataclass
class Equal(PositionalAttention):
    """Compared field by field, so that it has no hash and no module can hold it."""


class Undecorated(Added):
    steepness: float = option(1.0, "which nobody would read")


class Frozen(AsGiven):
    amount: float = option(1.0, "which nobody would read")


class Plain(Tilted):
    """Without options of its own, which needs no decorator."""


@dataclass(eq=False, repr=False)
class Bare(PositionalAttention):
    bare_n: int = 3


@dataclass(frozen=True)
class BareShift(AsGiven):
    bare_n: int = 3


@pytest.mark.parametrize(
    ("given", "says"),
    [
        # another slot's class, or none
        (dict(adds=Tilted), "adds"),
        (dict(augments=Sinusoids), "augments"),
        (dict(augments=None), "augments"),
        (dict(attends=Augmentation), "attends"),
        (dict(attends=lambda sizes: None), "attends"),
        # without its decorator, or with another
        (dict(attends=Equal), r"Equal.*@dataclass\(eq=False, repr=False\)"),
        (dict(adds=Undecorated), r"Undecorated.*@dataclass\(eq=False, repr=False\)"),
        (dict(augments=Frozen), r"Frozen.*@dataclass\(frozen=True\)"),
        # a field that nobody could give
        (dict(attends=Bare), r"bare_n of Bare.* = option\("),
        (dict(augments=BareShift), r"bare_n of BareShift.* = option\("),
        # layers of what does not attend
        (dict(one_for_all=True), "one_for_all"),
        *((dict(adds=Sinusoids, axes=axes), r"\(1, 2\)") for axes in (1, [1], (3,), (), (0, 1))),
    ],
)
def test_what_can_be_no_variant_is_refused_with_what_to_write(given, says):
    assert Variant(attends=Plain).options(1).keys() == {"tilt", EVERY}
    with pytest.raises(ValueError, match=says):
        Variant(**given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (dict(help=""), "help"),
        (dict(unit="seconds"), "POSITION"),
        *((dict(axes=axes), "axes") for axes in (1, [1], (3,), (1, 3), ())),
    ],
)
def test_an_option_has_a_help_the_unit_of_positions_or_none_and_axes(given, says):
    with pytest.raises(ValueError, match=says):
        option(1.0, **{"help": "a length", **given})


def test_the_same_source_again_replaces_what_it_registered_and_another_does_not(own_table):
    """A cell of a notebook that runs twice, a module that is reloaded."""
    register = "register_variant('again', Variant(attends=kind, axes=(1,)))"
    for kind in (Plain, Tilted):
        exec(register, {**globals(), "kind": kind, "__name__": "a_cell.part"})
        assert variants.get("again", 1).attends is kind
    assert variants.package("again", 1) == "a_cell"
    with pytest.raises(ValueError, match="again already, of a_cell"):
        register_variant("again", PLAIN)


def test_a_host_that_has_read_the_names_is_told_of_what_comes_later(own_table, monkeypatch):
    monkeypatch.setattr(variants, "_LATER", [])
    told: list[tuple[str, Variant]] = []
    variants.tell_of_later(lambda *late: told.append(late))
    register_variant("late", PLAIN)
    assert told == [("late", PLAIN)]
