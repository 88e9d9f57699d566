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
import threading
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

# A module → the package of ours that is due once that module has been executed.
_TRIGGERS = {
    "timm.models": "timm",
    # the last sub-package that fairseq's __init__ imports, in 0.12.2 and since
    "fairseq.model_parallel": "fairseq",
    "espnet2.tasks.asr": "espnet",
    # `python -m espnet2.bin.asr_train` finds espnet2.tasks.asr before that imports torch, hence
    # before this hook exists; abs_task is imported by it after torch
    "espnet2.tasks.abs_task": "espnet",
    # espnet3 has an ASR task of its own, in the same wheel
    "espnet3.systems.esp2_asr.task": "espnet",
    # torch.export.save and load import it: a saved program names our operator
    "torch._export.serde.serialize": "fused",
}

_EXPLICIT = {
    "timm": "import cape_plugins.timm",
    "fairseq": "--user-dir integrations/fairseq/user_dir",
    "espnet": "python -m cape_plugins.run -m espnet2.bin.asr_train",
    "fused": "import cape_plugins.fused",
}

ready: set[str] = set()  # modules that have what we need by now, although Python still runs them


def install(*, force: bool = False) -> None:
    """Watch for the hosts' imports; register at once with those already imported.

    Safe to call several times. Never raises.

    Args:
        force: install even if ``CAPE_PLUGINS_AUTOLOAD`` switches it off (an explicit request).
    """
    try:
        if not force and os.environ.get("CAPE_PLUGINS_AUTOLOAD", "1") == "0":
            return
        if any(_is_ours(finder) for finder in sys.meta_path):
            return
        sys.meta_path.insert(0, _HostFinder())
        for trigger in _TRIGGERS:
            module = sys.modules.get(trigger)
            spec = getattr(module, "__spec__", None)
            if module is not None and not getattr(spec, "_initializing", False):
                _host_ready(trigger, module)
    except Exception as error:
        _warn(f"cape_plugins: autoload failed ({type(error).__name__}: {error})")


def _is_ours(finder: object) -> bool:
    """Whether a finder is one of these: by a mark, for the class changes when this is reloaded."""
    return getattr(finder, "cape_plugins_autoload", False) is True


class _HostFinder(importlib.abc.MetaPathFinder):
    """Finds the trigger modules as the other finders do, and notes when they have run."""

    cape_plugins_autoload = True

    def __init__(self) -> None:
        self.finding: set[tuple[int, str]] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _TRIGGERS:
            return None
        search = (threading.get_ident(), fullname)
        if search in self.finding:  # another finder asks the finders in its turn
            return None
        self.finding.add(search)
        try:
            for finder in list(sys.meta_path):
                if _is_ours(finder) or not hasattr(finder, "find_spec"):
                    continue
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = _NotifyingLoader(spec.loader)  # type: ignore[assignment]
                    return spec
            return None
        finally:
            self.finding.discard(search)


class _NotifyingLoader:
    """A module's real loader, which calls :func:`_host_ready` once the module has run."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not there yet while it is copied
            raise AttributeError(name)
        return getattr(self.loader, name)

    def exec_module(self, module: ModuleType) -> None:
        # restored first, so that the module (inspect, pickle, reload) never sees this loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        _host_ready(module.__name__, module)


def _host_ready(trigger: str, module: ModuleType) -> None:
    ready.add(trigger)
    if trigger == "espnet2.tasks.abs_task":
        _when_task_created(module)
    else:
        _register(_TRIGGERS[trigger])


def _register(package: str) -> None:
    """Call our package's register(), if it has one; a failure becomes one warning with the fix."""
    try:
        getattr(importlib.import_module(f"cape_plugins.{package}"), "register", lambda: None)()
    except Exception as error:
        _explain(package, f"{type(error).__name__}: {error}")


def _when_task_created(abs_task: ModuleType) -> None:
    """Register with ESPnet once, when a class of its ASR task's module subclasses AbsTask."""
    tasks = {trigger for trigger, package in _TRIGGERS.items() if package == "espnet"}
    base = getattr(abs_task, "AbsTask", None)
    if base is None:
        _explain("espnet", f"{abs_task.__name__} has no AbsTask: this form is not known")
        return
    if any(cls.__module__ in tasks for cls in base.__subclasses__()):
        return  # it exists and has its own trigger
    before = vars(base).get("__init_subclass__")

    def __init_subclass__(cls: type, **kwargs: Any) -> None:
        if before is not None:
            before.__get__(None, cls)(**kwargs)
        else:
            super(base, cls).__init_subclass__(**kwargs)
        if cls.__module__ in tasks:
            if before is not None:
                base.__init_subclass__ = before
            else:
                del base.__init_subclass__
            ready.add(cls.__module__)
            _register("espnet")

    base.__init_subclass__ = classmethod(__init_subclass__)


def _explain(package: str, error: str) -> None:
    _warn(
        f"cape_plugins could not register with {package} ({error}), so "
        f"its models are missing there; everything else works. To see the whole error: "
        f"python -c 'import cape_plugins.{package}'. To go without: CAPE_PLUGINS_AUTOLOAD=0. "
        f"To load it explicitly: {_EXPLICIT[package]}"
    )


def _warn(message: str) -> None:
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    except RuntimeWarning:  # -W error must not break the import of torch or of a host
        print(message, file=sys.stderr)
