"""What our models rely on in a host, compared with what is installed before one is built.

Each host's folder has one table, ``RELIES`` in its ``relies.py``. It is compared once in a process.
"""

import functools
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import CodeType
from typing import Any


@dataclass(frozen=True, eq=False, kw_only=True)
class Relies:
    """What our models rely on in a host; of names with ``|`` between them one is enough.

    Attributes:
        host: our package for it, and its extra.
        tested: distribution → versions with which our tests pass, the newest last.
        overrides: ``module:Class.method`` that ours overrides or replaces → all its parameters
            after ``self``, in order. ``*``: ours hands on whatever it gets.
        uses: ``module:Class`` → attributes of its instances, and arguments of its constructor;
            ``module:function`` → arguments that it takes, and names that it uses.
    """

    host: str
    tested: Mapping[str, tuple[str, ...]]
    overrides: Mapping[str, str]
    uses: Mapping[str, str]

    def check(self) -> None:
        """Compare the table with what is installed.

        Raises:
            ImportError: one of its names is not there. The line names the host's version, those
                that were tested, and what to install.
        """
        if self.mismatch:
            raise self.error(self.mismatch)

    def error(self, reason: str) -> ImportError:
        """What to raise where our models do not fit the host that is installed."""
        tested = ", ".join(f"{name} {one}" for name, all in self.tested.items() for one in all)
        return ImportError(
            f"cape_plugins.{self.host} does not fit {' '.join(self.installed)}: {reason}; tested: "
            f"{tested}: pip install 'cape-plugins[{self.host}]', or '.[{self.host}]' in a checkout"
        )

    @functools.cached_property
    def installed(self) -> tuple[str, str]:
        """Distribution and version of the host."""
        for distribution in self.tested:
            try:
                return distribution, version(distribution).partition("+")[0]
            except PackageNotFoundError:
                continue
        return next(iter(self.tested)), "0"  # not installed, or without metadata

    @property
    def state(self) -> str:
        """``tested``, ``newer than tested (…)`` or ``not tested (…)``."""
        distribution, found = self.installed
        tested = self.tested[distribution]
        if found in tested:
            return "tested"
        newer = _numbers(found) > _numbers(tested[-1])
        return f"{'newer than' if newer else 'not'} tested ({', '.join(tested)})"

    @functools.cached_property
    def mismatch(self) -> str:
        """The first difference between the table and what is installed; empty: there is none."""
        try:
            for path, names in self.overrides.items():
                found, known = parameters(find(path)), names.split()
                same = [one in name.split("|") for one, name in zip(found, known, strict=False)]
                if names != "*" and not (all(same) and len(found) == len(known)):
                    return f"{path} takes ({', '.join(found)}), in ours it is ({', '.join(known)})"
            for path, names in self.uses.items():
                there = set(_names(find(path)))
                for name in names.split():
                    if there.isdisjoint(name.split("|")):
                        return f"{path} has no {name}"
        except (ImportError, AttributeError) as error:
            return str(error)
        return ""


def find(path: str) -> Any:
    """What ``module:Class.name`` names."""
    module, _, names = path.partition(":")
    return functools.reduce(getattr, names.split("."), importlib.import_module(module))


def parameters(function: Any) -> list[str]:
    """Names of parameters after ``self``, with their stars."""
    every = inspect.signature(function).parameters.values()
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
    return [stars.get(one.kind.name, "") + one.name for one in every if one.name != "self"]


def _names(thing: Any) -> Iterator[str]:
    """Names that a function or code takes, uses or gives by name, or a class and its bases have."""
    if isinstance(thing, type):
        yield from dir(thing)
        for base in thing.__mro__:
            yield from _names(vars(base).get("__init__"))
    elif isinstance(thing, tuple):  # names of arguments are constants in Python's code
        yield from (one for one in thing if isinstance(one, str))
    elif isinstance(thing, str):
        yield thing
    elif code := _code(thing):
        yield from (*code.co_names, *code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        for constant in code.co_consts:
            yield from _names(constant)


def _code(thing: Any) -> CodeType | None:
    """Of a function, or of one inside it (before Python 3.12 each comprehension is one)."""
    if isinstance(thing, CodeType):
        return thing
    return getattr(inspect.unwrap(thing), "__code__", None)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
