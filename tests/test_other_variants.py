"""Variants that are not in this package: one that is installed (FIRE), a script's, and faulty ones.

fairseq and ESPnet train FIRE by their own commands in tests/HOST/.
"""

import ast
import doctest
import sys
from pathlib import Path

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


def test_a_host_hands_its_options_on_and_they_are_of_it_alone():
    taken = TOKENS.options("cape_fire", {"fire_width": 8, "max_local_shift": 0.5})
    assert (taken["fire_width"], taken["max_local_shift"]) == (8, 0.5)
    with pytest.raises(ValueError, match=r"--fire_width .*cape_fire"):
        TOKENS.options("rope", {"fire_width": 8})


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

REGISTER = "register_variant({!r}, Variant(adds=Sinusoids))\n".format
PACKAGES = {
    "cape-broken": "import a_module_that_nobody_has",
    "cape-twice": REGISTER("cape"),
    "cape-half": f"{REGISTER('half')}raise RuntimeError('in the middle')",
    "cape-exit": "import sys; sys.exit(3)",
    "cape-undecorated": """
class Bare(PositionalAttention):
    bare_width: int = option(3, "which nobody makes an option")
register_variant("bare", Variant(attends=Bare))""",
    "cape-works": REGISTER("works"),
    "cape-works-too": REGISTER("other") + REGISTER("works"),  # another's name
    "cape-function": f"def register():\n    {REGISTER('called')}",
    "cape-class": "",
    "cape-malformed": "",
}
POINTS = {"cape-function": "cape_function:register", "cape-class": "cape_class:Sinusoids"}
POINTS |= {"cape-malformed": "not python!"}
FAULTS = {
    "cape-broken": "a_module_that_nobody_has",
    "cape-half": "in the middle",
    "cape-twice": "a variant cape already, of cape_plugins",
    "cape-works-too": "a variant works already, of cape_works",
    "cape-exit": "SystemExit: 3",
    "cape-class": "name a module, or a function",
    "cape-undecorated": "Bare with @dataclass(eq=False, repr=False)",
    "cape-malformed": "",
}
SCRIPT = f"""
from cape_plugins import *
from cape_plugins import variants

{REGISTER("script")}
for pos in ("cape", "works", "script"):
    asked = dict(max_global_shift=5.0, max_local_shift=0.5) if pos == "cape" else {{}}
    Positions(pos, dim=8, **asked)
print("KNOWN", *variants.names(1))
print(*(variants.package(pos, 1) for pos in ("works", "other", "called", "script")))
"""


def install(folder: Path, name: str, source: str, point: str = "") -> str:
    """Write a package of one module; gives the PYTHONPATH of a process in which it is installed."""
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(f"from cape_plugins import *\n{source}")
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = f"[cape_plugins.variants]\npoint = {point or module}\n"
    (about / "entry_points.txt").write_text(points)
    return ":".join([str(folder), *filter(None, sys.path)])


def test_a_faulty_package_is_one_warning_that_names_it_and_all_others_work(tmp_path):
    for name, source in PACKAGES.items():
        path = install(tmp_path, name, source, POINTS.get(name, ""))
    status, said = cape_support.run(sys.executable, "-c", SCRIPT, PYTHONPATH=path)
    assert status == 0, said[-3000:]
    warned = [line for line in said.splitlines() if "RuntimeWarning: cape_plugins" in line]
    assert len(warned) == len(FAULTS)
    for package, named in FAULTS.items():
        (line,) = (line for line in warned if f" {package} (" in line)
        assert named in line
        assert not named or f"python -c 'import {package.replace('-', '_')}'" in line
    (known,) = (line.split() for line in said.splitlines() if line.startswith("KNOWN"))
    assert {"cape", "works", "other", "called", "script"} <= {*known}
    assert "bare" not in known
    assert said.splitlines()[-1] == "cape_works cape_works_too cape_function __main__"


IN_THREADS = """
import threading
from cape_plugins import Positions

known = []
def build():
    Positions("slow", dim=8)
    known.append("slow")
threads = [threading.Thread(target=build) for _ in range(8)]
[one.start() for one in threads]
[one.join() for one in threads]
print(len(known))
"""
SLOW = f"""
import time
Positions("cape", dim=8, max_global_shift=1.0, max_local_shift=0.5)  # while it is loaded
time.sleep(0.3)
print("loaded")
{REGISTER("slow")}"""


def test_all_threads_wait_until_packages_are_loaded_once(tmp_path):
    path = install(tmp_path, "slow", SLOW)
    status, said = cape_support.run(sys.executable, "-c", IN_THREADS, PYTHONPATH=path)
    assert (status, said) == (0, "loaded\n8\n")
