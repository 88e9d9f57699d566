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
from cape_support import IMAGES, OURS, SEQUENCES


@dataclass(eq=False, repr=False)
class Tilted(PositionalAttention):
    """An attention with an option of its own."""

    tilt: float = option(1.0, "how steep", unit=POSITION)


ROPE = {"rope_base", "rope_fraction"}
TILTED, PLAIN = Variant(attends=Tilted), Variant(adds=Sinusoids)


def test_ours_come_first_and_images_have_all_but_those_that_count_tokens():
    assert variants.names(1)[: len(SEQUENCES)] == SEQUENCES
    assert variants.names(2)[: len(IMAGES)] == IMAGES
    assert {*SEQUENCES} - {*IMAGES} == {"abspos", "relpos", "relpos_first"}


@pytest.mark.parametrize(
    ("pos", "axes", "taken"),
    [
        ("nopos", 1, set()),
        ("abspos", 1, {"abspos_context", "overflow"}),
        ("sinpos", 1, {"base", "frequency_scale"}),
        ("sinpos", 2, {"frequency_scale"}),
        ("relpos", 1, {"relpos_context"}),
        ("rope", 2, {"frequency_scale", *ROPE}),
        ("alibi", 2, {"alibi_unit"}),
        ("random_rope", 1, {"frequency_scale", *ROPE, "random_range", "spread"}),
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


@dataclass(eq=False, repr=False)
class OtherBase(PositionalAttention):
    base: float = option(100.0, "of something else")


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
        ("other", Variant(attends=OtherBase, axes=(1,)), "base"),
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

    assert Variant(attends=Plain).options(1).keys() == {"tilt"}


@dataclass(eq=False, repr=False)
class Odd(PositionalAttention):
    odd_table: dict[str, int] | None = option(None, "of a kind that no flag has")  # noqa: RUF009


@pytest.mark.parametrize(
    ("variant", "says"),
    [(TILTED, "odd_tilt"), (Variant(attends=Odd), "odd_table")],
)
def test_a_new_option_begins_with_the_variants_name_and_is_of_a_kind_that_hosts_have(variant, says):
    """Else it could be an option of a host, or be one that no command line can give."""
    with pytest.raises(ValueError, match=says):
        register_variant("odd", variant)
