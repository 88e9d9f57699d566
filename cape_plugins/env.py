"""What is installed and what is registered: the first lines of a question or a bug report.

    python -m cape_plugins.env

prints versions, whether loading by name is on, and for each host whether our models were tested
with its version, or why it does not know them.

    python -m cape_plugins.env --check NAME

runs what every variant must do (:data:`cape_plugins.testing.CHECKS`) for the variant NAME of an
installed package, in the core and inside each host that is installed: a line for each.
"""

import argparse
import importlib
import os
import platform
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cape_plugins import autoload

#: host → its distributions, the module to import, and what lists that module's models
HOSTS: dict[str, tuple[list[str], str, Callable[[Any], Any]]] = {
    "timm": (["timm"], "timm.models", lambda timm: timm.list_models("vit_tiny_patch16_cape_224")),
    "fairseq": (["fairseq", "fairseq-fixed"], "fairseq.models", lambda f: f.MODEL_REGISTRY),
    "espnet": (["espnet"], "espnet2.tasks.asr", lambda espnet: espnet.encoder_choices.classes),
    "transformers": (
        ["transformers"],
        "transformers.models.auto.modeling_auto",
        lambda auto: auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    ),
}


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
    for host, (distributions, module, names) in HOSTS.items():
        found = [f"{each} {_version(each)}" for each in distributions if _version(each)]
        missing = f"not installed: pip install 'cape-plugins[{host}]', or '.[{host}]' in a checkout"
        print(f"{', '.join(found) or host}: {_state(host, module, names) if found else missing}")


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


def _state(host: str, module: str, names: Callable[[Any], Any]) -> str:
    """Import the host, as a user's program does, look for our names, and compare what they need."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            known = names(importlib.import_module(module))
        except Exception as error:
            return f"cannot be imported ({type(error).__name__}: {_one_line(error)})"
    if any("cape" in name for name in known):
        return _fits(host)
    said = [str(one.message) for one in caught if "cape_plugins" in str(one.message)]
    return [*said, f"does not know our models; register with: import cape_plugins.{host}"][0]


def _fits(host: str) -> str:
    relies = importlib.import_module(f"cape_plugins.{host}.relies").RELIES
    return f"{relies.state}; {relies.mismatch}" if relies.mismatch else relies.state


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    main()
