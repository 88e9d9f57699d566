"""Variants that are not in this package: one that is installed (FIRE), a script's, and faulty ones.

The hosts' own commands train, resume and refuse FIRE in tests/HOST/test_fire.py.
"""

import ast
import doctest
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest
import torch

import cape_fire
import cape_support
from cape_plugins import Positions, token_positions, variants
from cape_plugins.options import Host
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
        ({"pos": "cape_fire"}, "pos fire"),
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
    assert doctest.DocTestRunner().run(example) == (0, 3)
    *excerpts, script = cape_support.blocks(PAGE, "python")
    for excerpt in excerpts:
        for piece in excerpt.split("    ...\n"):
            assert piece in source, piece
    entry = block_with(PAGE, "entry-points", "toml").strip()
    assert entry in (ROOT / "examples" / "cape-fire" / "pyproject.toml").read_text("utf-8")
    names["content"] = torch.randn(2, 10, 64)
    exec(script, names)
    assert names["out"].shape == (2, 4, 10, 16)


# --- faulty packages, beside one that works, and a script that registers before hosts are imported

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
import importlib.util, json
import torch

from cape_plugins import Positions, Sinusoids, Variant, register_variant
register_variant("script", Variant(adds=Sinusoids))

found = {"core": [str(Positions(pos, dim=8, layers=1).pos) for pos in ("cape", "works", "script")]}
if importlib.util.find_spec("timm"):
    import timm

    made = timm.list_models("vit_tiny_patch16_*_224")
    found["timm"] = [name.split("_")[3] for name in made]
    timm.create_model("vit_tiny_patch16_script_224", depth=1)
if importlib.util.find_spec("fairseq"):
    from fairseq.options import get_training_parser, parse_args_and_arch

    line = ["data", "--arch", "cape_transformer_tiny", "--pos"]
    found["fairseq"] = [
        parse_args_and_arch(get_training_parser(), [*line, pos]).pos
        for pos in ("cape", "works", "script")
    ]
if importlib.util.find_spec("espnet2"):
    from espnet2.tasks.asr import encoder_choices

    encoder = encoder_choices.classes["cape_transformer"]
    sizes = dict(output_size=8, attention_heads=2, num_blocks=1, linear_units=8)
    found["espnet"] = [pos for pos in ("cape", "works", "script") if encoder(80, pos=pos, **sizes)]
print("FOUND", json.dumps(found))
"""


@pytest.fixture(scope="module")
def beside_faulty_packages(tmp_path_factory) -> tuple[dict[str, list[str]], str]:
    """What a process finds in whose environment these packages are, and all that it says."""
    folder = tmp_path_factory.mktemp("site-packages")
    for name, source in PACKAGES.items():
        module = name.replace("-", "_")
        (folder / f"{module}.py").write_text(dedent(source))
        about = folder / f"{module}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[cape_plugins.variants]\npoint = {module}\n")
    places = [str(folder), *filter(None, sys.path)]
    status, said = cape_support.run(sys.executable, "-c", SCRIPT, PYTHONPATH=":".join(places))
    assert status == 0, said[-3000:]
    (line,) = (line for line in said.splitlines() if line.startswith("FOUND"))
    return json.loads(line.removeprefix("FOUND ")), said


@pytest.mark.parametrize("package", [name for name in PACKAGES if name in FAULTS])
def test_a_faulty_package_is_one_warning_that_names_it(package, beside_faulty_packages):
    _, said = beside_faulty_packages
    lines = [line for line in said.splitlines() if f" {package} (" in line]
    assert len(lines) == 1
    assert FAULTS[package] in lines[0]


def test_nothing_else_is_warned_of(beside_faulty_packages):
    assert beside_faulty_packages[1].count("RuntimeWarning: cape_plugins") == len(FAULTS)


def test_ours_and_others_and_a_scripts_are_in_all_hosts_beside_them(beside_faulty_packages):
    found, _ = beside_faulty_packages
    hosts = {"timm": "timm", "fairseq": "fairseq", "espnet": "espnet2"}
    assert found.keys() - {"core"} == {host for host in hosts if find_spec(hosts[host])}
    for host, known in found.items():
        assert {"cape", "works", "script"} <= {*known}, host
        assert not {"jitter", "shadow", "odd", "bare"} & {*known}
