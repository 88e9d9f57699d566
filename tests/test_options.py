"""An option is declared once: what a class says of it, what a host makes of it."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import pytest

from cape_plugins import POSITION, PositionalAttention, Variant, option, variants
from cape_plugins.augment import Augmentation
from cape_plugins.host import Host
from cape_plugins.options import declared
from cape_plugins.sinusoid import Sinusoids
from cape_plugins.variants import get
from cape_support import IMAGES, OURS, SEQUENCES


@dataclass(frozen=True)
class Own:
    """Options of a host's own."""

    frame_shift: float = option(0.01, "between frames", unit=POSITION)
    extent: float = option(
        1.0, "γ of evaluation", taken_by=lambda variant: variant.augments is Augmentation
    )

    def __post_init__(self) -> None:
        if self.frame_shift <= 0:
            raise ValueError(f"frame_shift must be > 0, got {self.frame_shift}")


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
    own=Own,
    spell="--{}".format,
    advice="start anew",
)
PATCHES = Host(
    axes=2, unit="half images", defaults={"max_global_shift": 0.5, "max_local_shift": 0.05}
)


# What a class declares


def test_a_field_has_its_default_unit_help_and_annotation():
    found = declared(Augmentation)["max_local_shift"]
    assert (found.name, found.default, found.unit) == ("max_local_shift", None, POSITION)
    assert found.training_only
    assert found.kind == float | tuple[float, ...] | None
    assert "ε" in found.help
    assert not declared(Sinusoids)["frequency_scale"].training_only


def test_options_of_base_classes_are_inherited_and_fields_without_help_are_none():
    names = {"max_local_shift", "max_global_scale", "mean_normalize", "max_global_shift"}
    assert declared(Augmentation).keys() == names
    assert "sizes" not in declared(Sinusoids)
    assert declared(None) == {}


# What a host shows


def test_a_host_has_the_options_of_all_variants_and_its_own_but_those_that_it_sets():
    found = SECONDS.options()
    for pos in SEQUENCES:
        missing = variants.get(pos, 1).options(1).keys() - found.keys()
        assert missing <= {"mean_normalize", "spread"}
    assert {"frame_shift", "extent"} < found.keys()
    assert not {"mean_normalize", "spread", "pos"} & found.keys()
    assert set(IMAGES) <= {*PATCHES.names()}
    assert "relpos" not in PATCHES.names()
    assert "relpos_context" not in PATCHES.options()


def test_its_defaults_come_before_those_of_the_classes():
    found = SECONDS.options()
    assert found["max_global_shift"].default == 30.0
    assert found["max_local_shift"].default == 0.015
    assert found["max_global_scale"].default == 1.0
    assert PATCHES.options()["max_global_shift"].default == 0.5
    assert PATCHES.options()["random_range"].default is None  # its class asks for it


def test_help_names_the_unit_of_lengths_and_the_variants_that_take_an_option():
    found = SECONDS.options()
    assert found["max_global_shift"].help.startswith("cape: ")
    assert found["max_global_shift"].help.endswith("(seconds)")
    assert found["relpos_context"].help.startswith("relpos, relpos_first: ")
    assert "seconds" not in found["max_global_scale"].help
    assert found["frame_shift"].help == "between frames (seconds)"  # all take it
    assert PATCHES.options()["max_global_shift"].help.startswith("cape, cape_rope: ")


# What it makes of what its users give


@pytest.mark.parametrize("pos", SEQUENCES)
def test_a_model_has_the_hosts_defaults_unless_something_is_given(pos):
    options, own = SECONDS.choose(pos, {})
    taken = variants.get(pos, 1).options(1).keys() - {"mean_normalize", "spread"}
    assert options.keys() == taken
    assert own == Own()
    if "max_global_shift" in taken:
        assert options["max_global_shift"] == 30.0
    if "frequency_scale" in taken:
        options, _ = SECONDS.choose(pos, {"frequency_scale": 2.0})
        assert options["frequency_scale"] == 2.0


def test_options_of_its_own_are_made_into_what_it_says():
    _, own = SECONDS.choose("cape", {"frame_shift": 0.02, "extent": 2.0})
    assert own == Own(0.02, 2.0)
    with pytest.raises(ValueError, match="frame_shift"):
        SECONDS.choose("cape", {"frame_shift": -1})
    with pytest.raises(ValueError, match="--extent"):
        SECONDS.choose("rope", {"extent": 2.0})
    assert PATCHES.choose("cape", {})[1] is None


def test_options_of_other_variants_are_refused_as_the_user_types_them():
    for pos, given, named in (
        # the option as it is typed, and who takes it
        ("rope", {"max_global_shift": 6.0}, "--max_global_shift .*cape"),
        ("cape_rope", {"max_global_shift": 6.0}, "--max_global_shift .*cape"),
        ("sinpos", {"relpos_context": 9}, "--relpos_context .*relpos_first"),
        ("nopos", {"base": 9.0}, "--base .*random"),
        ("cape", {"spread": False}, "--spread"),  # the host sets it itself
        ("cape", {"max_lenght": 3}, "--max_lenght"),
        ("rope9", {}, "rope9"),
    ):
        with pytest.raises(ValueError, match=named):
            SECONDS.choose(pos, given)
    PATCHES.choose("cape_rope", {"max_global_shift": 6.0})  # a class token has no position


def test_an_option_that_has_its_default_counts_as_not_given():
    options, _ = SECONDS.choose("rope", {"max_global_shift": 30.0, "relpos_context": 6.0})
    assert options == {"frequency_scale": 30.0, "rope_base": None, "rope_fraction": 1.0}


def test_one_mapping_splits_into_what_is_about_positions_and_the_rest():
    ours, rest = SECONDS.split(dict(pos="cape", blocks=3, base=2.0, extent=1.0, spread=True))
    assert ours == dict(pos="cape", base=2.0, extent=1.0)
    assert rest == dict(blocks=3, spread=True)


@pytest.mark.parametrize(("pos", "axes"), OURS)
def test_it_builds_every_variant_and_sets_what_is_its_own(pos, axes):
    host = SECONDS if axes == 1 else PATCHES
    asked = {"abspos": {"abspos_context": 50.0}}
    if axes == 2:
        asked |= {pos: {"random_range": 2.0} for pos in ("random", "random_rope")}
    given = asked.get(pos, {})
    options, _ = host.choose(pos, given)
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


@dataclass(eq=False, repr=False)
class Kinds(PositionalAttention):
    kinds_flag: bool = option(True, "a switch")
    kinds_count: int = option(3, "a number")
    kinds_sides: tuple[float, ...] | None = option(None, "several")
    kinds_pair: float | tuple[float, float] = option(1.0, "one or two")
    kinds_word: Literal["near", "far"] = option("near", "a word")


@pytest.fixture
def kinds(monkeypatch):
    """A variant with an option of each kind, in the place of rope."""
    row = Variant(attends=Kinds, axes=(1,))
    monkeypatch.setattr(variants, "get", lambda p, axes: row if p == "rope" else get(p, axes))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kinds_flag", "false"),
        ("kinds_flag", 1),
        ("kinds_count", "three"),
        ("kinds_count", 2.5),
        ("kinds_count", True),
        ("kinds_sides", [1.0, "2"]),
        ("kinds_pair", (1.0, 2.0, 3.0)),
        ("kinds_word", "here"),
    ],
)
def test_a_value_of_another_kind_is_refused_as_the_user_types_it(kinds, name, value):
    with pytest.raises(ValueError, match=f"^--{name} must be "):
        SECONDS.choose("rope", {name: value})


def test_a_list_of_yaml_or_json_is_a_tuple_and_none_the_default(kinds):
    given = {"kinds_sides": [1, 2.5], "kinds_pair": [0, 1], "kinds_flag": False}
    assert SECONDS.choose("rope", {**given, "kinds_count": None})[0] == {
        **{"kinds_flag": False, "kinds_count": None, "kinds_word": "near"},
        **{"kinds_sides": (1, 2.5), "kinds_pair": (0, 1)},
    }


def test_a_variant_whose_option_a_hosts_own_models_have_is_left_out_with_a_warning(kinds):
    theirs = dataclasses.replace(SECONDS, theirs=frozenset({"kinds_count"}))
    assert "rope" in SECONDS.names()
    assert "rope" not in theirs.names()
    with pytest.warns(RuntimeWarning, match=r"variant rope of cape_plugins .*--kinds_count"):
        theirs.check_late("rope")


def test_a_misspelt_option_is_told_with_the_one_that_may_be_meant_and_those_there_are():
    with pytest.raises(ValueError, match=r"--relpos_contxt \(did you mean --relpos_context\?\)"):
        SECONDS.choose("relpos", {"relpos_contxt": 3.0})
    with pytest.raises(ValueError, match="relpos takes --relpos_context"):
        SECONDS.choose("relpos", {"width": 3.0})
