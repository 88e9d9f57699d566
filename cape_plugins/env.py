"""What is installed and what is registered: the first lines of a question or a bug report.

    python -m cape_plugins.env

prints versions, whether loading by name is on, and for each host whether our models were tested
with its version, or why it does not know them.

    python -m cape_plugins.env --check NAME

runs what every variant must do (:data:`cape_plugins.testing.CHECKS`) for the variant NAME of an
installed package, in the core and inside each host that is installed: a line for each.
"""

import argparse
import importlib.util
import os
import platform
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, version

from cape_plugins import autoload


def main(words: Sequence[str] | None = None) -> None:
    """Print one line for each fact, or for each check; exit status 1 if one of those fails."""
    parser = argparse.ArgumentParser("python -m cape_plugins.env", description=__doc__)
    parser.add_argument("--check", metavar="NAME", help="run what every variant must do for NAME")
    if (pos := parser.parse_args(words).check) is not None:
        sys.exit(check(pos))
    print(f"cape-plugins {_version('cape-plugins')}")
    print(f"Python {platform.python_version()}, {platform.platform()}")
    try:
        import torch
    except ImportError as error:
        print(f"torch: cannot be imported ({_one_line(error)})")
        return
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    print(f"torch {torch.__version__}, GPU: {cuda}")
    print(f"loading by name: {_autoload()}")
    print(f"variants: {_variants()}")
    distributions = packages_distributions()
    for package, (module, *_) in autoload.hosts().items():
        host = module.partition(".")[0]
        found = [f"{each} {version(each)}" for each in {*distributions.get(host, ())}]
        print(f"{', '.join(found) or host}: {_state(package, module)}")


def check(pos: str) -> int:
    """Run the checks of a variant, with its options' defaults; 1 if one fails, else 0."""
    from cape_plugins import inside, testing, variants

    of = {1: "sequences", 2: "images"}
    try:
        if not (found := [axes for axes in of if pos in variants.names(axes)]):
            variants.get(pos, axes=1)
    except ValueError as error:
        print(error)
        return 1
    failed = 0
    for axes in found:
        hosts = ", ".join(one.name for one in inside.kinds(axes)) or "no host, as none is installed"
        print(f"{pos} for {of[axes]}, in the core and in {hosts}:")
        for one in testing.CHECKS:
            try:
                one(pos, axes)
                said = "passes"
            except Exception as error:
                failed, said = 1, f"FAILS: {_one_line(error)}"
            print(f"  {(one.__doc__ or '').partition(chr(10))[0]} {said}", flush=True)
    return failed


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _autoload() -> str:
    """Whether ``import torch`` has installed the hook."""
    if autoload.installed():
        return "on"
    for switch in ("CAPE_PLUGINS_AUTOLOAD", "TORCH_DEVICE_BACKEND_AUTOLOAD"):
        if os.environ.get(switch) == "0":
            return f"off ({switch}=0)"
    return "off (torch found no entry point: is cape-plugins installed in this environment?)"


def _variants() -> str:
    """The variants, ours and those of each package; a package that fails warns."""
    from cape_plugins import variants

    of: dict[str, dict[str, None]] = {}
    for axes in (1, 2):
        for pos in variants.names(axes):
            of.setdefault(variants.package(pos, axes), {})[pos] = None
    ours = ", ".join(of.pop("cape_plugins"))
    return "; ".join([ours, *(f"of {package}: {', '.join(each)}" for package, each in of.items())])


def _state(package: str, module: str) -> str:
    """Import the host, as a user's program does: was it registered with, and is it as tested?"""
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        extra = package.rpartition(".")[2]
        return f"not installed: pip install 'cape-plugins[{extra}]', or '.[{extra}]' in a checkout"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            importlib.import_module(module)
        except Exception as error:
            return f"cannot be imported ({type(error).__name__}: {_one_line(error)})"
    if told := [str(one.message) for one in caught if package in str(one.message)]:
        return told[0]
    if package not in sys.modules:
        return f"does not know our models; register with: import {package}"
    relies = getattr(sys.modules[package], "RELIES", None)
    if relies is None:
        return f"registered with by {package}"
    return f"{relies.state}; {relies.mismatch}" if relies.mismatch else relies.state


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    main()
