"""Loading by name: registers with each host as soon as that host is imported.

PyTorch (≥ 2.5) calls :func:`install` at the end of ``import torch``, through the entry point
group ``torch.backends``; ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` and ``CAPE_PLUGINS_AUTOLOAD=0``
switch that off. An exception here would make torch unimportable for the whole environment, so
nothing leaves :func:`install`, and this module imports only the standard library.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

# A module of the host → the host that is ready once that module has been executed.
_TRIGGERS = {
    "timm.models": "timm",
    # the last sub-package that fairseq's __init__ imports, in 0.12.2 and since
    "fairseq.model_parallel": "fairseq",
    "espnet2.tasks.asr": "espnet",
    # `python -m espnet2.bin.asr_train` finds espnet2.tasks.asr before that imports torch, hence
    # before this hook exists; abs_task is imported by it after torch
    "espnet2.tasks.abs_task": "espnet",
}

_EXPLICIT = {
    "timm": "import cape_plugins.timm",
    "fairseq": "--user-dir integrations/fairseq/user_dir",
    "espnet": "python -m cape_plugins.run -m espnet2.bin.asr_train",
}


def install(*, force: bool = False) -> None:
    """Watch for the hosts' imports; register at once with those already imported.

    Safe to call several times. Never raises.

    Args:
        force: install even if ``CAPE_PLUGINS_AUTOLOAD`` switches it off (an explicit request).
    """
    try:
        if not force and os.environ.get("CAPE_PLUGINS_AUTOLOAD", "1") == "0":
            return
        if any(isinstance(finder, _HostFinder) for finder in sys.meta_path):
            return
        sys.meta_path.insert(0, _HostFinder())
        for trigger in _TRIGGERS:
            module = sys.modules.get(trigger)
            spec = getattr(module, "__spec__", None)
            if module is not None and not getattr(spec, "_initializing", False):
                _host_ready(trigger, module)
    except Exception as error:
        _warn(f"cape_plugins: autoload failed ({type(error).__name__}: {error})")


class _HostFinder(importlib.abc.MetaPathFinder):
    """Finds the trigger modules as the other finders do, and notes when they have run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _TRIGGERS:
            return None
        for finder in sys.meta_path:
            if isinstance(finder, _HostFinder) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _NotifyingLoader(spec.loader)  # type: ignore[arg-type]
                return spec
        return None


class _NotifyingLoader(importlib.abc.Loader):
    """Hands the module back to its real loader, then calls :func:`_host_ready`."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # restored first, so that the module (inspect, pickle, reload) never sees this loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        _host_ready(module.__name__, module)


def _host_ready(trigger: str, module: ModuleType) -> None:
    host = _TRIGGERS[trigger]
    if trigger == "espnet2.tasks.abs_task":
        _when_subclassed(module, "AbsTask", "ASRTask", lambda: _register(host))
    else:
        _register(host)


def _register(host: str) -> None:
    """Call the host package's register(); a failure becomes one warning with the fix."""
    try:
        importlib.import_module(f"cape_plugins.{host}").register()
    except Exception as error:
        _warn(
            f"cape_plugins could not register with {host} ({type(error).__name__}: {error}), so "
            f"its models are missing there; everything else works. To see the whole error: "
            f"python -c 'import cape_plugins.{host}'. To go without: CAPE_PLUGINS_AUTOLOAD=0. "
            f"To load it explicitly: {_EXPLICIT[host]}"
        )


def _when_subclassed(module: ModuleType, base: str, name: str, call: Callable[[], None]) -> None:
    """Call back once, when a subclass called ``name`` of ``module.base`` is created."""
    base_class = getattr(module, base, None)
    if base_class is None or any(cls.__name__ == name for cls in base_class.__subclasses__()):
        return  # another version of the host, or ASRTask exists and has its own trigger
    before = vars(base_class).get("__init_subclass__")

    def __init_subclass__(cls: type, **kwargs: Any) -> None:
        if before is not None:
            before.__get__(None, cls)(**kwargs)
        else:
            super(base_class, cls).__init_subclass__(**kwargs)
        if cls.__name__ == name:
            if before is not None:
                base_class.__init_subclass__ = before
            else:
                del base_class.__init_subclass__
            call()

    base_class.__init_subclass__ = classmethod(__init_subclass__)


def _warn(message: str) -> None:
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    except RuntimeWarning:  # -W error must not break the import of torch or of a host
        print(message, file=sys.stderr)
