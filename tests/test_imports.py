"""Imports go one way: no module of the plug-in imports another that imports it, however far."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import cape_plugins

PACKAGE = Path(cape_plugins.__file__).parent


def modules() -> dict[str, Path]:
    """Name → file. ``cape_plugins`` itself imports its public names when they are asked for."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = ["cape_plugins", *path.relative_to(PACKAGE).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: path for name, path in found.items() if name != "cape_plugins"}


def imported(path: Path, known: set[str]) -> set[str]:
    """The modules that a file imports anywhere, in a function or for types too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            # `from package import module` needs the module, `from module import name` the module
            found |= inner & known or {node.module}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= set(_words(node.args[0], path))
    return found & known


def _words(name: ast.expr, path: Path) -> Iterator[str]:
    """The name that ``import_module`` gets, where it is written: a string, or f"{__name__}.…"."""
    parts = ["cape_plugins", *path.relative_to(PACKAGE).with_suffix("").parts]
    own = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    text = ast.unparse(name).removeprefix("f").strip("'\"").replace("{__name__}", own)
    if "{" not in text:
        yield text


def test_no_import_goes_round():
    files = modules()
    graph = {name: imported(path, {*files}) - {name} for name, path in files.items()}
    TopologicalSorter(graph).prepare()  # CycleError names the circle


def test_the_core_knows_no_host():
    files = modules()
    hosts = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"fused"}
    for name, path in files.items():
        if name.split(".")[1] not in hosts:
            of_hosts = {one for one in imported(path, {*files}) if one.split(".")[1] in hosts}
            assert not of_hosts, f"{name} imports {of_hosts}"
