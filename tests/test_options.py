"""An option is declared once: what a class says of it, and how it travels through a host unread."""

from dataclasses import dataclass

import pytest

from cape_plugins import (
    POSITION,
    PositionalAttention,
    Positions,
    Variant,
    option,
    register_variant,
    variants,
)
from cape_plugins.augment import Augmentation
from cape_plugins.host import Host
from cape_plugins.options import declared
from cape_plugins.sinusoid import Sinusoids
from cape_support import OURS, SEQUENCES

SECONDS = Host(
    axes=1,
    unit="seconds",
    defaults={
        "max_global_shift": 30.0,
        "max_local_shift": 0.015,
        "frequency_scale": 30.0,
        "relpos_context": 6.0,
        "random_range": 60.0,
        "pose_range": 60.0,
    },
    sets=frozenset({"mean_normalize", "spread"}),
    spell="--{}".format,
    advice="start anew",
)
PATCHES = Host(
    axes=2, unit="half images", defaults={"max_global_shift": 0.5, "max_local_shift": 0.05}
)


# What a class declares


def test_a_field_has_its_default_unit_and_help():
    found = declared(Augmentation)["max_local_shift"]
    assert (found.default, found.metadata["unit"]) == (None, POSITION)
    assert found.metadata["training_only"]
    assert "ε" in found.metadata["help"]
    assert not declared(Sinusoids)["frequency_scale"].metadata["training_only"]
    # those of base classes are inherited, and other fields are none
    names = {"max_local_shift", "max_global_scale", "mean_normalize", "max_global_shift"}
    assert declared(Augmentation).keys() == names
    assert "sizes" not in declared(Sinusoids)
    assert declared(None) == {}


@pytest.mark.parametrize("axes", [1, 2])
def test_options_of_one_name_are_one_in_our_variants(axes):
    """A flag of fairseq is of all that have its name."""
    known = {}
    for pos in variants.OURS[axes]:
        for name, one in variants.get(pos, axes).options(axes).items():
            about = (one.default, one.type, dict(one.metadata))
            assert known.setdefault(name, about) == about


# What a host makes of them


def test_flags_are_the_options_of_our_variants_but_those_that_the_host_sets():
    every = {name for pos in SEQUENCES for name in variants.get(pos, 1).options(1)}
    assert {*SECONDS.ours} == every - {"mean_normalize", "spread"}
    assert "relpos_context" not in PATCHES.ours
    assert not {"fire_width"} & {*SECONDS.ours, *PATCHES.ours}
    # a length is told in the host's unit
    assert SECONDS.help(SECONDS.ours["max_global_shift"]).endswith("(seconds)")
    assert "seconds" not in SECONDS.help(SECONDS.ours["max_global_scale"])


@pytest.mark.parametrize("pos", SEQUENCES)
def test_a_model_has_the_hosts_defaults_unless_something_is_given(pos):
    options = SECONDS.options(pos, {})
    taken = variants.get(pos, 1).options(1).keys() - {"mean_normalize", "spread"}
    assert options.keys() == taken
    if "max_global_shift" in taken:
        assert options["max_global_shift"] == 30.0
    if "frequency_scale" in taken:
        assert SECONDS.options(pos, {"frequency_scale": 2.0})["frequency_scale"] == 2.0
    assert PATCHES.options("random", {})["random_range"] is None  # its class asks for it


@pytest.mark.parametrize(
    ("pos", "given", "named"),
    [
        # the option as it is typed, and who takes it
        ("rope", {"max_global_shift": 6.0}, "--max_global_shift .*cape"),
        ("cape_rope", {"max_global_shift": 6.0}, "--max_global_shift .*cape"),
        ("sinpos", {"relpos_context": 9}, "--relpos_context .*relpos_first"),
        ("cape", {"spread": False}, "--spread"),
        ("cape", {"mean_normalize": False}, "--mean_normalize"),  # the host sets it itself
        ("rope9", {}, "rope9"),
        # misspelt, or of the host's own
        ("relpos", {"relpos_contxt": 3.0}, r"--relpos_contxt \(did you mean --relpos_context\?\)"),
        ("rope", {"relpos_contxt": 3.0}, r"did you mean --relpos_context\?"),
        ("relpos", {"dpeth": 3.0}, r"did you mean --depth\?"),
        ("relpos", {"width": 3.0}, "relpos takes --nopos_every, --relpos_context"),
    ],
)
def test_what_a_variant_does_not_take_is_refused_as_the_user_types_it(pos, given, named):
    with pytest.raises(ValueError, match=named):
        SECONDS.options(pos, given, ("depth",))
    PATCHES.options("cape_rope", {"max_global_shift": 6.0})  # a class token has no position
    with pytest.raises(ValueError, match=r"relpos_contxt \(did you mean relpos_context\?\)"):
        Positions("relpos", dim=12, heads=3, layers=1, relpos_contxt=3.0)


def test_of_ours_one_that_has_its_default_counts_as_not_given():
    options = SECONDS.options("rope", {"max_global_shift": 30.0, "relpos_context": 6.0})
    assert options.pop("nopos_every") == 0
    assert options == {"frequency_scale": 30.0, "rope_base": None, "rope_fraction": 1.0}


def test_an_option_with_the_name_of_one_of_the_hosts_own_is_refused():
    """Its value would go to the host's model, and the variant would keep its default."""
    with pytest.raises(ValueError, match="--relpos_context is an option of relpos and of the host"):
        SECONDS.options("relpos", {}, others=("depth", "relpos_context"))


@pytest.mark.parametrize(("pos", "axes"), OURS)
def test_it_builds_every_variant_and_sets_what_is_its_own(pos, axes):
    host = SECONDS if axes == 1 else PATCHES
    asked = {"abspos": {"abspos_context": 50.0}}
    if axes == 2:
        asked |= {pos: {"random_range": 2.0} for pos in ("random", "random_rope")}
    options = host.options(pos, asked.get(pos, {}))
    sets = {"mean_normalize": False, "spread": False}
    sizes = dict(dim=24, heads=3, layers=2, remembers={"frame_shift": 0.02})
    made = host.positions(pos, options, sets, **sizes)
    assert (made.pos, made.sizes.axes, len(made.attentions)) == (pos, axes, 2)
    for name, value in made.options.items():
        chosen = {**options, **sets}[name]
        if name == "random_range":
            chosen = (0.0, chosen)
        assert chosen is None or value == chosen
    assert made.mark.state_dict()["frame_shift"].item() == pytest.approx(0.02)


def test_two_variants_may_have_an_option_of_one_name(own_table):
    """It means something for each of them alone, whatever a host or another variant calls so."""

    @dataclass(eq=False, repr=False)
    class Bent(PositionalAttention):
        base: str = option("round", "which sinusoids have too")
        layers_bent: tuple[int, ...] = option((1, 2), "of a kind that no flag has")

    register_variant("bent", Variant(attends=Bent, axes=(1,)))
    options = SECONDS.options("bent", {"base": "square"})
    assert options == {"nopos_every": 0, "base": "square", "layers_bent": (1, 2)}
    made = SECONDS.positions("bent", options, dim=12, heads=3, layers=1)
    assert made.attentions[0].base == "square"
    assert SECONDS.options("cape", {"base": 9.0})["base"] == 9.0
