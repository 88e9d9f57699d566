"""Variants that are not in this package: one that is installed (FIRE), a script's, and faulty ones.

The hosts' own commands train, resume and refuse FIRE in tests/HOST/test_fire.py.
"""

import ast
import doctest
import importlib
import re
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

import cape_fire
import cape_support
from cape_plugins import Positions, packages, token_positions, variants
from cape_plugins.host import Host
from cape_plugins.packages import package_of
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
    tested = ROOT / "examples" / "cape-fire" / "test_cape_fire.py"
    source += tested.read_text("utf-8")
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
    "cape-half": """
        from cape_plugins import Sinusoids, Variant, register_variant

        register_variant("half", Variant(adds=Sinusoids))
        raise RuntimeError("in the middle")
        """,
    "cape-exit": "import sys; sys.exit(3)",
    "cape-kind": """
        from dataclasses import dataclass
        from cape_plugins import PositionalAttention, Variant, option, register_variant

        @dataclass(eq=False, repr=False)
        class Kind(PositionalAttention):
            kind_n: int = option(None, "a natural slip")

        register_variant("kind", Variant(attends=Kind))
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
    "cape-works-too": """
        from cape_plugins import Rotary, Sinusoids, Variant, register_variant

        register_variant("works", Variant(attends=Rotary))  # another's name
        register_variant("other", Variant(adds=Sinusoids))
        """,
    "cape-function": """
        from cape_plugins import Sinusoids, Variant, register_variant

        def register():
            register_variant("called", Variant(adds=Sinusoids))
        """,
    "cape-class": "from cape_plugins import Sinusoids",
}
POINTS = {"cape-function": ":register", "cape-class": ":Sinusoids"}
FAULTS = {
    "cape-broken": "a_module_that_nobody_has",
    "cape-half": "cape_half.py:5",
    "cape-exit": "SystemExit: 3",
    "cape-kind": "option kind_n of variant kind .*int | None",
    "cape-class": "name a module, or a function",
    "cape-other-meaning": "max_local_shift",
    "cape-shadow": "shadow_dropout",
    "cape-odd": "odd_table",
    "cape-undecorated": "Bare with @dataclass(eq=False, repr=False)",
}
TAKEN = {"cape-twice": "cape_plugins", "cape-works-too": "cape-works"}  # a name's first owner
SCRIPT = """
from cape_plugins import Positions, Sinusoids, Variant, register_variant, variants

register_variant("script", Variant(adds=Sinusoids))
for pos in ("cape", "works", "script"):
    asked = dict(max_global_shift=5.0, max_local_shift=0.5) if pos == "cape" else {}
    Positions(pos, dim=8, **asked)
print("KNOWN", *variants.names(1))
print(*(variants.package(pos, 1) for pos in ("works", "other", "called", "script")))
"""


def install(folder, name, module, source, points):
    """Write a package of one module, a dotted name, into a folder of ``sys.path``."""
    path = folder / f"{module.replace('.', '/')}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(dedent(source))
    about = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[cape_plugins.variants]\n{points}")


ONE = """
from cape_plugins import Sinusoids, Variant, register_variant
register_variant("NAME", Variant(adds=Sinusoids))
"""


@pytest.fixture
def load(own_table, tmp_path, monkeypatch):
    """Load the packages of a folder into a table of this test's own; the warnings."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(variants, "PACKAGES", {})

    def load():
        ours = [one for one in packages.find() if one.dist._path.parent == tmp_path]
        packages.load_all(sorted(ours, key=package_of))  # shared-a first

    return load


def faults(warned) -> list[str]:
    """What was warned of packages; where fairseq is imported it tells of late names besides."""
    return [said for one in warned if "is left out" not in (said := str(one.message))]


def test_of_two_packages_in_one_namespace_the_one_that_works_stays(load, tmp_path):
    """Whichever comes first, and where one imports the other."""
    for name in ("one", "two"):
        source = ONE.replace("NAME", f"of_{name}")
        install(
            tmp_path, f"shared-{name}", f"shared_space.{name}", source, f"x = shared_space.{name}"
        )
    (tmp_path / "shared_space" / "common.py").write_text(ONE.replace("NAME", "of_common"))
    calls = "import shared_space.common"
    install(tmp_path, "shared-c", "shared_space.c", calls, "x = shared_space.c")
    fails = "import shared_space.two\n" + ONE.replace("NAME", "of_none") + "1 / 0"
    for name in ("a", "z"):
        install(
            tmp_path, f"shared-{name}", f"shared_space.{name}", fails, f"x = shared_space.{name}"
        )
    with pytest.warns(RuntimeWarning, match="shared-[az] .*ZeroDivisionError") as warned:
        load()
    assert len(faults(warned)) == 2
    assert {"of_one", "of_two"} <= {*variants.names(1)}
    assert "of_none" not in variants.names(1)
    owners = [variants.package(f"of_{name}", 1) for name in ("one", "two", "common")]
    assert owners == ["shared-one", "shared-two", "shared-c"]


def test_a_module_is_of_the_package_whose_entry_point_is_nearest(monkeypatch):
    monkeypatch.setattr(variants, "PACKAGES", {"space": "base", "space.one": "of-one"})
    for module, package in (("space.one.inner", "of-one"), ("space.other", "base"), ("x.y", "x")):
        assert variants.Registered(variants.Variant(), module, None).package == package


def test_a_malformed_entry_point_is_a_warning_and_all_others_work(load, tmp_path):
    install(tmp_path, "good-one", "good_one", ONE.replace("NAME", "good"), "x = good_one")
    install(tmp_path, "not-python", "not_python", "", "x = not python!\ny = not_python")
    install(tmp_path, "no-value", "no_value", "", "no_value")
    with pytest.warns(RuntimeWarning) as warned:
        load()
    said = faults(warned)
    assert [name for name in ("not-python", "no-value") if any(name in one for one in said)] == [
        "not-python",
        "no-value",
    ]
    assert len(said) == 2
    assert variants.package("good", 1) == "good-one"


def test_a_variant_that_is_registered_before_packages_are_loaded_has_its_packages_name(
    load, tmp_path
):
    """Its module is called otherwise than its package."""
    install(tmp_path, "early-bird", "early.inner", ONE.replace("NAME", "early"), "x = early.inner")
    importlib.import_module("early.inner")
    load()
    assert variants.package("early", 1) == "early-bird"


def test_a_faulty_package_is_one_warning_that_names_it_and_all_others_work(tmp_path):
    for name, source in PACKAGES.items():
        module = name.replace("-", "_")
        install(tmp_path, name, module, source, f"point = {module}{POINTS.get(name, '')}\n")
    places = [str(tmp_path), *filter(None, sys.path)]
    status, said = cape_support.run(sys.executable, "-c", SCRIPT, PYTHONPATH=":".join(places))
    assert status == 0, said[-3000:]
    warned = [line for line in said.splitlines() if "RuntimeWarning: cape_plugins" in line]
    assert len(warned) == len(FAULTS) + len(TAKEN)
    for package, named in FAULTS.items():
        (line,) = (line for line in warned if f" {package} (" in line)
        assert re.search(re.escape(named).replace(r"\.\*", ".*"), line), line
        assert f"python -c '{'from' if package in POINTS else 'import'} cape_" in line
    for package, owner in TAKEN.items():
        assert any(f"already, of {owner}; that of {package} is" in line for line in warned)
    (known,) = (line.split() for line in said.splitlines() if line.startswith("KNOWN"))
    assert {"cape", "works", "other", "called", "script"} <= {*known}
    assert not {"jitter", "shadow", "odd", "kind", "bare", "half"} & {*known}
    assert said.splitlines()[-1] == "cape-works cape-works-too cape-function __main__"


IN_THREADS = """
import threading
from cape_plugins import Positions, variants

known = []
def build():
    Positions("slow", dim=8)
    known.append("slow")
threads = [threading.Thread(target=build) for _ in range(8)]
[one.start() for one in threads]
[one.join() for one in threads]
print(len(known))
"""


def test_all_threads_wait_until_packages_are_loaded_once(tmp_path):
    (tmp_path / "slow.py").write_text("""
import time
from cape_plugins import Positions, Sinusoids, Variant, register_variant
Positions("cape", dim=8, max_global_shift=1.0, max_local_shift=0.5)  # while it is loaded
time.sleep(0.3)
print("loaded")
register_variant("slow", Variant(adds=Sinusoids))
""")
    about = tmp_path / "slow-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: slow\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[cape_plugins.variants]\nslow = slow\n")
    places = ":".join([str(tmp_path), *filter(None, sys.path)])
    status, said = cape_support.run(sys.executable, "-c", IN_THREADS, PYTHONPATH=places)
    assert (status, said) == (0, "loaded\n8\n")
