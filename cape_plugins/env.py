"""What is installed and what is registered: the first lines of a question or a bug report.

    python -m cape_plugins.env

prints versions, whether loading by name is on, and for each host whether it knows our models or
why it does not.
"""

import importlib
import os
import platform
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version

# host → the distributions that bring it, the module to import, and one of our names in it
_HOSTS = {
    "timm": (("timm",), "timm.models", "vit_tiny_patch16_cape_224"),
    "fairseq": (("fairseq", "fairseq-fixed"), "fairseq.models", "cape_transformer"),
    "espnet": (("espnet",), "espnet2.tasks.asr", "cape_transformer"),
}


def main() -> None:
    """Print one line for each fact."""
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
    for host, (distributions, module, name) in _HOSTS.items():
        found = [f"{each} {_version(each)}" for each in distributions if _version(each)]
        missing = f"not installed: pip install 'cape-plugins[{host}]', or '.[{host}]' in a checkout"
        state = _state(host, module, name) if found else missing
        print(f"{', '.join(found) or host}: {state}")


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _autoload() -> str:
    """Whether ``import torch`` has installed the hook of :mod:`cape_plugins.autoload`."""
    if any(getattr(finder, "of_cape_plugins", None) is True for finder in sys.meta_path):
        return "on"
    for switch in ("CAPE_PLUGINS_AUTOLOAD", "TORCH_DEVICE_BACKEND_AUTOLOAD"):
        if os.environ.get(switch) == "0":
            return f"off ({switch}=0)"
    return "off (torch found no entry point: is cape-plugins installed in this environment?)"


def _state(host: str, module: str, name: str) -> str:
    """Import the host, as a user's program does, and look for one of our names."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            importlib.import_module(module)
        except Exception as error:
            return f"cannot be imported ({type(error).__name__}: {_one_line(error)})"
    if _knows(host, name):
        return f"knows our models ({name} …)"
    said = [str(one.message) for one in caught if "cape_plugins" in str(one.message)]
    return (
        said[0] if said else f"does not know our models; register with: import cape_plugins.{host}"
    )


def _knows(host: str, name: str) -> bool:
    if host == "timm":
        return bool(sys.modules["timm.models"].is_model(name))
    if host == "fairseq":
        return name in sys.modules["fairseq.models"].MODEL_REGISTRY
    return name in sys.modules["espnet2.tasks.asr"].encoder_choices.classes


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    main()
