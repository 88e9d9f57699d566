"""The table of variants, and the way into it from outside."""

import sys
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
from cape_support import IMAGES, OURS, SEQUENCES, run


@dataclass(eq=False, repr=False)
class Tilted(PositionalAttention):
    """An attention with an option of its own."""

    tilt: float = option(1.0, "how steep", unit=POSITION)


TILTED = Variant(attends=Tilted)


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
        ("rope", 2, {"frequency_scale"}),
        ("alibi", 2, {"alibi_unit"}),
        ("random_rope", 1, {"frequency_scale", "random_range", "spread"}),
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


def test_only_nopos_has_no_positions():
    assert [case for case in OURS if not variants.get(*case).has_positions] == [
        ("nopos", 1),
        ("nopos", 2),
    ]


def test_an_unknown_variant_names_those_to_choose_from():
    with pytest.raises(ValueError, match=r"rope9.* nopos, abspos"):
        variants.get("rope9", 1)
    with pytest.raises(ValueError, match=r"relpos.* nopos, sinpos"):
        variants.get("relpos", 2)
    for axes in (0, 3):
        with pytest.raises(ValueError, match=f"axes .*{axes}"):
            variants.names(axes)


# From outside


@dataclass(eq=False, repr=False)
class OtherBase(PositionalAttention):
    base: float = option(100.0, "of something else")


@pytest.mark.parametrize(
    ("name", "variant", "says"),
    [
        ("rope", TILTED, "rope"),  # there is one
        ("relpos", Variant(attends=Tilted, axes=(2, 1)), "relpos"),  # on one of the axes
        ("Fire", TILTED, "Fire"),
        ("fire-2", TILTED, "fire-2"),
        ("_fire", TILTED, "_fire"),
        ("fire__2", TILTED, "fire__2"),
        ("", TILTED, "''"),
        ("other", Variant(attends=OtherBase), r"option base .*other .* sinpos .*10000\.0"),
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
    with pytest.raises(ValueError, match=rf"{kind.__name__} .*@dataclass"):
        Variant(**slots)


def test_a_class_without_options_of_its_own_needs_no_decorator():
    class Plain(Tilted):
        pass

    assert Variant(attends=Plain).options(1).keys() == {"tilt"}


@pytest.mark.parametrize("name", ["layers", "pos", "sizes", "training", "half", "mask"])
def test_an_option_whose_name_is_another_things_is_refused(name):
    options = {"__annotations__": {name: float}, name: option(1.0, "of a variant")}
    kind = dataclass(frozen=True)(type("Odd", (AsGiven,), options))
    if name == "mask":  # is nobody's
        assert name in Variant(augments=kind).options(1)
        return
    with pytest.raises(ValueError, match=name):
        Variant(augments=kind)


TILTED_PACKAGE = """
from dataclasses import dataclass
from cape_plugins import PositionalAttention, Variant, option, register_variant

@dataclass(eq=False, repr=False)
class Tilted(PositionalAttention):
    tilt: float = option(1.0, "how steep")

register_variant("tilted", Variant(attends=Tilted))
"""
PACKAGES = {
    "broken": "import no_such_module",
    "taken": TILTED_PACKAGE.replace('"tilted"', '"rope"'),
    "ambiguous": TILTED_PACKAGE.replace("tilt:", "base:"),
    "tilted": TILTED_PACKAGE,
}
LOOK = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from cape_plugins import Positions, variants
    names = [name for name in variants.names(1) if "tilted" in name or name in ("nopos", "rope")]
    assert variants.names(2) and variants.names(1)
print(*names, *variants.get("tilted", 2).options(2))
print(Positions("tilted", dim=8, layers=1, tilt=2.0).attentions[0].tilt)
for one in caught:
    if "cape_plugins" in str(one.message):
        print(type(one.message).__name__, one.message)
"""


def test_packages_register_by_entry_point_and_one_that_cannot_is_a_warning(tmp_path):
    for name, source in PACKAGES.items():
        (tmp_path / f"{name}_variant.py").write_text(source)
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        points = f"[cape_plugins.variants]\nof_{name} = {name}_variant\n"
        (about / "entry_points.txt").write_text(points)
    path = ":".join([str(tmp_path), *sys.path])
    status, output = run(sys.executable, "-c", LOOK, PYTHONPATH=path)
    assert status == 0, output
    known, built, *warned = output.splitlines()
    assert known == "nopos rope tilted tilt"
    assert built == "2.0"
    said = {name: [line for line in warned if f" of {name} " in line] for name in PACKAGES}
    assert [len(lines) for lines in said.values()] == [1, 1, 1, 0]
    assert "no_such_module" in said["broken"][0]
    assert "RuntimeWarning" in said["taken"][0]
    assert "base" in said["ambiguous"][0]
