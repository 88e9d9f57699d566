"""Variants that are not in this package: one that is installed (FIRE), a script's, and faulty ones.

The hosts' own commands train, resume and refuse FIRE in tests/HOST/test_fire.py.
"""

import ast
import doctest
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

import cape_fire
import cape_support
from cape_plugins import Positions, token_positions, variants
from cape_plugins.host import Host
from cape_support import ROOT, block_with

PAGE = ROOT / "docs" / "adding-a-variant.md"
TOKENS = Host(axes=1, unit="tokens", spell="--{}".format)
SIZES = dict(dim=12, heads=3, layers=2)

# --- one that is installed


@pytest.mark.parametrize("axes", [1, 2])
def test_an_installed_package_has_its_names_after_ours(axes):
    assert variants.names(axes)[-2:] == ("fire", "cape_fire")
    assert variants.get("fire", axes).attends is cape_fire.Fire


def test_a_hosts_help_lists_its_options_with_who_takes_them():
    width = TOKENS.options()["fire_width"]
    assert (width.default, width.kind) == (32, int)
    assert width.help == "fire, cape_fire: hidden channels of the function"
    assert TOKENS.options()["fire_unit"].help.endswith("neighbouring tokens (tokens)")
    taken, _ = TOKENS.choose("cape_fire", {"fire_width": 8, "max_local_shift": 0.5})
    assert (taken["fire_width"], taken["max_local_shift"]) == (8, 0.5)
    with pytest.raises(ValueError, match=r"--fire_width .*cape_fire"):
        TOKENS.choose("rope", {"fire_width": 8})


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"pos": "rope"}, "pos fire"),
        ({"pos": "cape_fire", "max_local_shift": 0.5}, "pos fire"),
        ({"pos": "fire", "fire_width": 8}, "fire_width 32"),
        ({"pos": "fire", "fire_threshold": 64}, "fire_threshold 512"),
        ({"pos": "fire", "spacing": 0.5}, "fire_unit 1"),
    ],
)
def test_a_checkpoint_knows_it_and_its_options(given, named):
    state = Positions("fire", **SIZES).state_dict()
    Positions("fire", **SIZES).load_state_dict(state)
    Positions("fire", **SIZES, spacing=0.5, fire_unit=1.0).load_state_dict(state)
    with pytest.raises(ValueError, match=named):
        Positions(**SIZES, **given).load_state_dict(state)


def test_the_page_is_about_the_package_and_the_example_of_its_file_runs():
    source = Path(cape_fire.__file__).read_text("utf-8")
    assert source == (ROOT / "examples" / "cape-fire" / "cape_fire.py").read_text("utf-8")
    query, key, value = torch.randn(3, 2, 4, 10, 16)
    names = dict(query=query, key=key, value=value, token_positions=token_positions)
    names |= {**vars(cape_fire), "Sizes": Positions("fire", **SIZES).sizes.__class__}
    text = ast.get_docstring(ast.parse(source))
    example = doctest.DocTestParser().get_doctest(text, names, "cape_fire", None, 0)
    assert doctest.DocTestRunner().run(example) == (0, 4)
    for excerpt in cape_support.blocks(PAGE, "python"):
        for piece in excerpt.split("    ...\n"):
            assert piece in source, piece
    entry = block_with(PAGE, "entry-points", "toml").strip()
    assert entry in (ROOT / "examples" / "cape-fire" / "pyproject.toml").read_text("utf-8")


# --- faulty packages, beside one that works, and a variant of a script

PACKAGES = {
    "cape-broken": "import a_module_that_nobody_has",
    "cape-twice": """
        from cape_plugins import Sinusoids, Variant, register_variant

        register_variant("cape", Variant(adds=Sinusoids))
        """,
    "cape-other-meaning": """
        from dataclasses import dataclass
        from cape_plugins import AsGiven, Sinusoids, Variant, option, register_variant

        @dataclass(frozen=True)
        class Jitter(AsGiven):
            max_local_shift: float = option(0.5, "standard deviation of a token's shift")

        register_variant("jitter", Variant(adds=Sinusoids, augments=Jitter))
        """,
    "cape-shadow": """
        from dataclasses import dataclass
        from cape_plugins import PositionalAttention, Variant, option, register_variant

        @dataclass(eq=False, repr=False)
        class Shadow(PositionalAttention):
            dropout: float = option(0.1, "which each host has")

        register_variant("shadow", Variant(attends=Shadow))
        """,
    "cape-odd": """
        from dataclasses import dataclass
        from cape_plugins import PositionalAttention, Variant, option, register_variant

        @dataclass(eq=False, repr=False)
        class Odd(PositionalAttention):
            odd_table: dict[str, int] | None = option(None, "no command line has such a flag")

        register_variant("odd", Variant(attends=Odd))
        """,
    "cape-undecorated": """
        from cape_plugins import PositionalAttention, Variant, option, register_variant

        class Bare(PositionalAttention):
            bare_width: int = option(3, "which nobody makes an option")

        register_variant("bare", Variant(attends=Bare))
        """,
    "cape-works": """
        from cape_plugins import Sinusoids, Variant, register_variant

        register_variant("works", Variant(adds=Sinusoids))
        """,
}
FAULTS = {
    "cape-broken": "a_module_that_nobody_has",
    "cape-twice": "variant cape ",
    "cape-other-meaning": "max_local_shift",
    "cape-shadow": "shadow_dropout",
    "cape-odd": "odd_table",
    "cape-undecorated": "Bare with @dataclass(eq=False, repr=False)",
}
SCRIPT = """
from cape_plugins import Positions, Sinusoids, Variant, register_variant, variants

register_variant("script", Variant(adds=Sinusoids))
for pos in ("cape", "works", "script"):
    asked = dict(max_global_shift=5.0, max_local_shift=0.5) if pos == "cape" else {}
    Positions(pos, dim=8, **asked)
print("KNOWN", *variants.names(1))
"""


def test_a_faulty_package_is_one_warning_that_names_it_and_all_others_work(tmp_path):
    for name, source in PACKAGES.items():
        module = name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(dedent(source))
        about = tmp_path / f"{module}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[cape_plugins.variants]\npoint = {module}\n")
    places = [str(tmp_path), *filter(None, sys.path)]
    status, said = cape_support.run(sys.executable, "-c", SCRIPT, PYTHONPATH=":".join(places))
    assert status == 0, said[-3000:]
    warned = [line for line in said.splitlines() if "RuntimeWarning: cape_plugins" in line]
    assert len(warned) == len(FAULTS)
    for package, named in FAULTS.items():
        (line,) = (line for line in warned if f" {package} (" in line)
        assert named in line
    (known,) = (line.split() for line in said.splitlines() if line.startswith("KNOWN"))
    assert {"cape", "works", "script"} <= {*known}
    assert not {"jitter", "shadow", "odd", "bare"} & {*known}
