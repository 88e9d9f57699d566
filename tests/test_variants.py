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
from cape_support import IMAGES, OURS, SEQUENCES


@dataclass(eq=False, repr=False)
class Tilted(PositionalAttention):
    """An attention with an option of its own."""

    tilt: float = option(1.0, "how steep", unit=POSITION)


EVERY = "nopos_every"  # of what attends
ROPE = {"rope_base", "rope_fraction", EVERY}
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
        ("random_rope", 1, {"frequency_scale", *ROPE, "random_range", "spread"}),
        ("pose_rope", 1, {"frequency_scale", *ROPE, "pose_range"}),
    ],
)
def test_a_variant_takes_what_its_classes_declare(pos, axes, taken):
    assert variants.get(pos, axes).options(axes).keys() == taken


def test_a_shift_of_all_tokens_is_for_those_whom_it_changes():
    """Between tokens it cancels; a class token of an image has no position and is not shifted."""
    for pos, axes in OURS:
        taken = variants.get(pos, axes).options(axes)
        expected = pos == "cape" or (pos, axes) == ("cape_rope", 2)
        assert ("max_global_shift" in taken) == expected
        assert ("max_local_shift" in taken) == pos.startswith("cape")


def test_an_unknown_variant_names_those_to_choose_from():
    with pytest.raises(ValueError, match=r"rope9.* nopos"):
        variants.get("rope9", 1)
    with pytest.raises(ValueError, match=r"relpos.* nopos"):
        variants.get("relpos", 2)
    for axes in (0, 3):
        with pytest.raises(ValueError, match="axes"):
            variants.names(axes)


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


def test_the_slots_take_subclasses_of_their_base_alone():
    for slots in (dict(adds=Tilted), dict(augments=Sinusoids), dict(attends=Augmentation)):
        (slot,) = slots
        with pytest.raises(ValueError, match=slot):
            Variant(**slots)
    with pytest.raises(ValueError, match="attends"):
        Variant(attends=lambda sizes: None)
    for axes in ((), (3,), (0, 1)):
        with pytest.raises(ValueError, match="axes"):
            Variant(axes=axes)


@dataclass
class Equal(PositionalAttention):
    """Compared field by field, so that it has no hash and no module can hold it."""


class Undecorated(Added):
    steepness: float = option(1.0, "which nobody would read")


class Frozen(AsGiven):
    amount: float = option(1.0, "which nobody would read")


@pytest.mark.parametrize("slots", [{"attends": Equal}, {"adds": Undecorated}, {"augments": Frozen}])
def test_a_class_that_is_not_decorated_as_it_must_be_is_refused(slots):
    ((_, kind),) = slots.items()
    with pytest.raises(ValueError, match=f"{kind.__name__}.*@dataclass"):
        Variant(**slots)


def test_a_class_without_options_of_its_own_needs_no_decorator():
    class Plain(Tilted):
        pass

    assert Variant(attends=Plain).options(1).keys() == {"tilt", EVERY}


@dataclass(eq=False, repr=False)
class Bare(PositionalAttention):
    bare_n: int = 3


@dataclass(frozen=True)
class BareShift(AsGiven):
    bare_n: int = 3


@pytest.mark.parametrize("slots", [{"attends": Bare}, {"augments": BareShift}])
def test_a_field_that_is_no_option_is_refused_with_what_to_write(slots):
    """Nobody could give it."""
    with pytest.raises(ValueError, match=r"bare_n of Bare.* = option\("):
        Variant(**slots)


@pytest.mark.parametrize("axes", [1, [1], (3,), (), "1"])
def test_axes_are_a_tuple(axes):
    with pytest.raises(ValueError, match=r"axes must be \(1,\), \(2,\) or \(1, 2\)"):
        Variant(adds=Sinusoids, axes=axes)
    with pytest.raises(ValueError, match="axes"):
        option(1, "something", axes=axes)


def test_an_option_has_a_help_and_the_unit_of_positions_or_none():
    with pytest.raises(ValueError, match="help"):
        option(1, "")
    with pytest.raises(ValueError, match="POSITION"):
        option(1.0, "a length", unit="seconds")


def test_the_same_source_again_replaces_what_it_registered_and_another_does_not(own_table):
    """A cell of a notebook that runs twice, a module that is reloaded."""
    source = """
from dataclasses import dataclass
from cape_plugins import PositionalAttention, Variant, option, register_variant

@dataclass(eq=False, repr=False)
class Again(PositionalAttention):
    again_n: int = option(DEFAULT, "a number")

register_variant("again", Variant(attends=Again, axes=(1,)))
register_variant("again_too", Variant(attends=Again, axes=(1,)))
"""
    for default in (1, 2):
        exec(source.replace("DEFAULT", str(default)), {"__name__": "a_cell"})
        assert variants.get("again", 1).options(1)["again_n"].default == default
        assert variants.get("again_too", 1).options(1)["again_n"].default == default
    assert variants.package("again", 1) == "a_cell"
    with pytest.raises(ValueError, match="again already, of a_cell"):
        register_variant("again", PLAIN)
    with pytest.raises(ValueError, match="again already, of a_cell"):
        exec(source.replace("DEFAULT", "1"), {"__name__": "another_cell"})


def test_a_host_that_has_read_the_names_is_told_of_what_comes_later(own_table, monkeypatch):
    monkeypatch.setattr(variants, "_LATER", [])
    told: list[tuple[str, Variant]] = []
    variants.tell_of_later(lambda *late: told.append(late))
    register_variant("late", PLAIN)
    assert told == [("late", PLAIN)]


def test_an_unknown_variant_may_be_misspelt_or_of_a_package_that_is_not_here():
    with pytest.raises(ValueError, match=r"'ropes' \(did you mean rope\?\).*package.*env"):
        variants.get("ropes", 1)
