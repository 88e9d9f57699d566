"""Loading by name: registers our models with each host as soon as that host is imported.

A package brings a host of its own by its entry-point group ``cape_plugins.hosts``: the host's
module, after whose import it registers, and its own module, which has ``register()``.

PyTorch (≥ 2.5) calls :func:`install` at the end of ``import torch``, through the entry point
group ``torch.backends``; ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` and ``CAPE_PLUGINS_AUTOLOAD=0``
switch that off. An exception here would make torch unimportable for the whole environment, so
nothing leaves :func:`install`, and this module imports only the standard library.
"""

import functools
import importlib.metadata
import importlib.util
import os
import sys
import threading
import warnings
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint
from typing import Any

GROUP = "cape_plugins.hosts"  #: of entry points: a host's module = a module with ``register()``
# A host's module, and what of ours registers once that module has been executed.
_OURS = (
    ("timm.models", "cape_plugins.timm"),
    # the last sub-package that fairseq's __init__ imports, in 0.12.2 and since
    ("fairseq.model_parallel", "cape_plugins.fairseq"),
    ("espnet2.tasks.asr", "cape_plugins.espnet"),
    # espnet3's ASR task is in the same wheel and has its own choices of encoders
    ("espnet3.systems.esp2_asr.task", "cape_plugins.espnet"),
    # `python -m espnet2.bin.asr_train` finds espnet2.tasks.asr before that imports torch, hence
    # before this hook exists. After torch it imports abs_task: see _when_task_exists.
    ("espnet2.tasks.abs_task", "cape_plugins.espnet"),
    ("transformers.models.auto.modeling_auto", "cape_plugins.transformers"),
    # imports torch itself, before which this hook does not exist: see _when_imported
    ("transformers.models.auto.configuration_auto", "cape_plugins.transformers"),
)
# package → the explicit way, where that is no `import`
_EXPLICIT = {
    "cape_plugins.fairseq": "--user-dir integrations/fairseq/user_dir",
    "cape_plugins.espnet": "python -m cape_plugins.run -m espnet2.bin.asr_train",
}


# Names that mean something in a host, so that no variant of another package may have them.
_MODELS_OF_TIMM = "models of timm's own"
MEANT_BY_HOSTS = {
    "ropepos": "our rope in timm",
    "univit": "a setting of cape in timm",
    "sinpos_low": "a setting of sinpos in timm",
    "cape_low": "a setting of cape in timm",
    "univit_low": "a setting of cape in timm",
    "abspos": _MODELS_OF_TIMM,
    "rope_mixed": _MODELS_OF_TIMM,
    "rope_ape": _MODELS_OF_TIMM,
    "rope_mixed_ape": _MODELS_OF_TIMM,
    "rel_pos": "relative positions of ESPnet's own",
    "espnet_rel_pos": "relative positions of ESPnet's own",
}


def install() -> None:
    """Watch for the hosts' imports, register with those already imported; never raises."""
    try:
        if os.environ.get("CAPE_PLUGINS_AUTOLOAD") == "0":
            return
        if installed():
            return
        triggers = [*_triggers()]  # before the finder, which asks for them
        sys.meta_path.insert(0, _HostFinder())
        for trigger in triggers:
            if _is_being_imported(trigger):
                _when_imported(trigger)
            elif sys.modules.get(trigger):
                _host_ready(trigger)
    except Exception as error:
        warn(f"cape_plugins: autoload failed ({type(error).__name__}: {error})")


@functools.cache
def hosts() -> dict[str, list[str]]:
    """Module with ``register()`` → the modules of its host: ours, then those of other packages."""
    found: dict[str, list[str]] = {}
    for trigger, package in (*_OURS, *((one.name, one.value) for one in entry_points(GROUP))):
        found.setdefault(package, []).append(trigger)
    return found


@functools.cache
def _triggers() -> dict[str, list[str]]:
    """The other way round: a host's module → what registers once that has been executed."""
    found: dict[str, list[str]] = {}
    for package, triggers in hosts().items():
        for trigger in triggers:
            found.setdefault(trigger, []).append(package)
    return found


def entry_points(group: str) -> list[EntryPoint]:
    """Those of a group; none, and a warning, if a package's list is malformed."""
    try:
        return [*importlib.metadata.entry_points(group=group)]
    except Exception as error:
        warn(f"cape_plugins could not read entry points ({error!r}): no package's {group} are here")
        return []


def installed() -> bool:
    """Whether the hook is there, by an attribute: reloading this module makes another class."""
    return any(getattr(finder, "of_cape_plugins", None) is True for finder in sys.meta_path)


class _HostFinder:
    """Finds the trigger modules as the other finders do, and notes when they have run."""

    of_cape_plugins = True

    def __init__(self) -> None:
        self.searches: set[tuple[int, str]] = set()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        search = (threading.get_ident(), fullname)
        if fullname not in _triggers() or search in self.searches:
            return None
        self.searches.add(search)
        try:
            spec = importlib.util.find_spec(fullname)  # asks all finders, this one too
        finally:
            self.searches.discard(search)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _NotifyingLoader(spec.loader)  # type: ignore[assignment]
        return spec


class _NotifyingLoader:
    """A module's real loader, which calls :func:`_host_ready` once the module has run."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # copying asks before it is set
            raise AttributeError(name)
        return getattr(self.loader, name)

    def exec_module(self, module: Any) -> None:
        # restored first, so that the module (inspect, pickle, reload) never sees this loader
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        _host_ready(module.__name__)


def _host_ready(trigger: str) -> None:
    """Register with the trigger's host; a failure becomes one warning with the fix.

    While a package for that host is being imported, nothing is done: the package imports the host,
    which leads here before all of its modules exist. It calls register() itself at its end.
    """
    for package in _triggers()[trigger]:
        try:
            if (package, trigger) == ("cape_plugins.espnet", "espnet2.tasks.abs_task"):
                _when_task_exists(sys.modules[trigger].AbsTask)
            elif _is_being_imported(package):
                continue
            elif importlib.import_module(package).register() is False:
                raise ImportError(f"{trigger} has no class ASRTask, this version is not known")
        except Exception as error:
            explicit = _EXPLICIT.get(package, f"import {package}")
            warn(
                f"{package} could not register with {trigger.partition('.')[0]} "
                f"({type(error).__name__}: {error}), so its models are missing there; everything "
                f"else works. To see the whole error: python -c 'import {package}'. To go without: "
                f"CAPE_PLUGINS_AUTOLOAD=0. To load it explicitly: {explicit}"
            )


def _when_imported(trigger: str) -> None:
    """Register once a module has run that was being imported when torch was.

    importlib says so by an attribute of the module's spec, which is set to False at the end.
    """

    class Watched(ModuleSpec):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "_initializing" and not value:
                self.__class__ = ModuleSpec  # type: ignore[assignment]
                if trigger in sys.modules:  # else it failed
                    _host_ready(trigger)

    spec = sys.modules[trigger].__spec__
    if type(spec) is ModuleSpec:
        spec.__class__ = Watched


def _when_task_exists(base: Any) -> None:
    """Register with ESPnet once, as soon as an ASR task's module subclasses AbsTask."""
    inherited = classmethod(lambda cls, **options: super(base, cls).__init_subclass__(**options))
    original = vars(base).get("__init_subclass__", inherited)

    def __init_subclass__(cls: type, **options: Any) -> None:
        original.__get__(None, cls)(**options)
        if cls.__module__ in _triggers():
            base.__init_subclass__ = original
            _host_ready(cls.__module__)

    base.__init_subclass__ = classmethod(__init_subclass__)


def _is_being_imported(name: str) -> bool:
    return getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False)


def warn(message: str) -> None:
    """Warn; where warnings are errors print: the import of torch or of a host must not break."""
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    except RuntimeWarning:
        print(message, file=sys.stderr)
