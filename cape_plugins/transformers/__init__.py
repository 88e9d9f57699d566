"""CAPE in Hugging Face transformers: model types by name, and positions changed in training.

    >>> config = AutoConfig.for_model("cape_llama", pos="alibi", hidden_size=256)
    >>> model = AutoModelForCausalLM.from_config(config)
    >>> llama = AutoModelForCausalLM.from_pretrained("…")       # transformers' own
    >>> augment_positions(llama, "pose_rope", pose_range=4096.0)

The types are registered as soon as transformers' auto classes are imported
(``cape_plugins.autoload``), or by importing this package. Our models are imported when one is asked
for: to register them costs nothing.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from cape_plugins.transformers.names import TYPES
from cape_plugins.transformers.relies import RELIES

_AUTO = "transformers.models.auto"


def register() -> None:
    """Add our types to transformers' tables, which hold names until a model is asked for.

    It imports transformers' tables if needed. A second call changes nothing; one while the table of
    models is being imported adds the configurations alone.

    Raises:
        ImportError: transformers is missing, or its tables are not those that we know.
    """
    try:
        names = import_module(f"{_AUTO}.configuration_auto").CONFIG_MAPPING_NAMES
        for kind, classes in TYPES.items():
            # transformers looks for the classes of a type in a module of this name
            sys.modules.setdefault(f"transformers.models.{kind}", _Models(kind))
            names.setdefault(kind, classes["CONFIG"])
        models = import_module(f"{_AUTO}.modeling_auto")
        if not hasattr(models, "AutoModel"):
            return  # it is importing the configurations; autoload calls again at its end
        for kind, classes in TYPES.items():
            for table in classes.keys() - {"CONFIG"}:
                getattr(models, f"{table}_MAPPING_NAMES").setdefault(kind, classes[table])
                # made from the names of configurations, perhaps before ours were among them
                mapping = getattr(models, f"{table}_MAPPING")
                mapping._reverse_config_mapping.setdefault(classes["CONFIG"], kind)
    except (ImportError, AttributeError) as error:
        raise RELIES.error(str(error)) from error


class _Models(ModuleType):
    """What transformers imports for a type of ours: our models, once one is asked for."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"transformers.models.{kind}", f"{kind} of cape-plugins")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        RELIES.check()
        return getattr(import_module("cape_plugins.transformers.models"), name)


def __getattr__(name: str) -> Any:
    """``augment_positions``, whose module imports PyTorch."""
    if name == "augment_positions":
        RELIES.check()
        return import_module("cape_plugins.transformers.augment").augment_positions
    raise AttributeError(name)


register()
