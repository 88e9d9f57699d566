"""Options of a command: a pydantic model lists them once, and the command line is made from it.

pydantic-settings' own CLI is not used: it cuts every value of a list at its commas and reads it as
JSON, so that ``--model name=a.pt,b.pt``, ``--model-kwargs img_size=(32,48)`` and several NAME=VALUE
after one flag come out as something else, or as errors.
"""

import argparse
import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator
from pydantic.fields import FieldInfo

Kind = TypeVar("Kind", bound="Options")
#: how a value stands in the help; others by the option's own name
_METAVARS = {int: "N", Path: "FILE", float: "X", dict: "NAME=VALUE"}


@dataclass(frozen=True)
class Typed:
    """How an option is typed, where its type does not tell: ``Annotated[int, Typed("R")]``.

    Attributes:
        metavar: its value in the help. Default: N for integers, FILE for paths, …
        flag: another flag for it, such as ``-c``.
        positional: it has no flag.
        empty: of several values: none at all are allowed after the flag.
    """

    metavar: str | None = None
    flag: str | None = None
    positional: bool = False
    empty: bool = False


class Options(BaseModel):
    """Options of a command, checked when they are made: before any work.

    A field is an option: ``str``, ``int``, ``float``, ``Path``, ``Literal`` (choices), ``bool`` (a
    flag without a value), ``list`` of these (several values after one flag), ``dict``
    (``NAME=VALUE …``, the values as Python writes them, else text), and each with ``| None``.

    Attributes:
        groups: first field of a group → the group's heading in the help, in this order.

    Raises:
        pydantic.ValidationError: a value is not allowed; it is a ValueError.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    groups: ClassVar[dict[str, str]] = {}

    @classmethod
    def add_to(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Give a parser the options; returns it."""
        headed = {title: parser.add_argument_group(title) for title in cls.groups.values()}
        group: Any = parser
        for name, field in cls.model_fields.items():
            if name in cls.groups:
                group = headed[cls.groups[name]]
            typed = next((one for one in field.metadata if isinstance(one, Typed)), Typed())
            settings = {
                **_reading(field, typed),
                "help": _help(field),
                "default": argparse.SUPPRESS,
            }
            if typed.positional:
                parser.add_argument(name, **settings)
            else:
                flags = [typed.flag] if typed.flag else []
                settings |= {"dest": name, "required": field.is_required()}
                group.add_argument(*flags, spelled(name), **settings)
        return parser

    @classmethod
    def read(cls: type[Kind], given: argparse.Namespace) -> Kind:
        """The options that argparse found on a command line; what else it found is left alone.

        Raises:
            ValueError: the first thing that is wrong, in one line, as it was typed.
        """
        try:
            return cls(**{name: vars(given)[name] for name in cls.model_fields if name in given})
        except ValidationError as error:
            raise ValueError(problem(error)) from error


class RunOptions(Options):
    """What the commands share that run models."""

    groups: ClassVar[dict[str, str]] = {"attention_logn": "running", "out": "output"}

    attention_logn: list[NonNegativeInt] = Field(
        default=[],
        description="logits of self-attention × log N / log of this, N_train in tokens, for models "
        "that were trained without; several: each; 0: off (default: as trained)",
    )
    device: str | None = Field(None, description="default: cuda if there is one, else cpu")
    workers: NonNegativeInt = Field(0, description="processes that load data")
    amp: bool = Field(False, description="mixed precision")
    out: Annotated[str | None, Typed("PREFIX")] = Field(None, description="of PREFIX.csv")
    csv: Path | None = Field(None, description="the scores, instead of PREFIX.csv")
    items: Path | None = Field(None, description="CSV of what each test item adds, for a bootstrap")
    overwrite: bool = Field(False, description="replace files that are there, when all is done")

    @model_validator(mode="after")
    def check_run(self) -> "RunOptions":
        """Refuse values that come twice, and files that would be written over one another."""
        if 1 in self.attention_logn:
            raise ValueError("--attention-logn takes tokens of a training sample, ≥ 2, or 0, got 1")
        once(self.attention_logn, "--attention-logn")
        outputs = [path for path in (self.csv_path, self.items) if path is not None]
        if len({path.resolve() for path in outputs}) < len(outputs):
            raise ValueError(
                f"{self.items} would be written over another output: choose another name"
            )
        for name in set(type(self).model_fields) - {"out", "csv", "items"}:
            value = getattr(self, name)
            for one in value if isinstance(value, list) else [value]:
                given = Path(str(one).rpartition("=")[2])  # NAME=PATH too
                if given.is_file() and any(given.resolve() == path.resolve() for path in outputs):
                    raise ValueError(
                        f"{given} would be written over {spelled(name)}: choose another name"
                    )
        return self

    @property
    def csv_path(self) -> Path | None:
        """Where the scores go."""
        return self.csv or (Path(f"{self.out}.csv") if self.out else None)

    @property
    def logns(self) -> Sequence[int | None]:
        """Those of ``--attention-logn``; None is as trained."""
        return self.attention_logn or [None]


def problem(error: ValidationError) -> str:
    """The first of pydantic's findings in one line, with the option's name as it is typed."""
    first = error.errors()[0]
    if "ctx" in first and isinstance(first["ctx"].get("error"), ValueError):  # a validator's own
        text = str(first["ctx"]["error"])
        return text if not first["loc"] else f"{spelled(str(first['loc'][0]))}: {text}"
    name = spelled(str(first["loc"][0]))
    return f"{name}: {first['msg'][0].lower()}{first['msg'][1:]}, got {first['input']!r}"


def spelled(name: str) -> str:
    """A field's name as it is typed."""
    return f"--{name.replace('_', '-')}"


def named(given: str, option: str) -> tuple[str | None, str]:
    """NAME=PATH in two; None and the whole where there is no name, or such a path exists.

    Raises:
        ValueError: the name or the path is empty.
    """
    name, equals, path = given.partition("=")
    if not equals or Path(given).exists():
        return None, given
    if not name or not path:
        raise ValueError(f"{option} takes PATH or NAME=PATH, got {given!r}")
    return name, path


def once(values: Sequence[Any], option: str, hint: str = "") -> None:
    """Raise ValueError if a value comes twice."""
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{option} has {value} twice{hint}")


class _NamesAndValues(argparse.Action):
    """``NAME=VALUE …`` as a dict."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        found = {}
        for given in values:
            name, equals, value = given.partition("=")
            if not equals or not name.isidentifier():
                parser.error(f"{option_string} takes NAME=VALUE, got {given!r}")
            try:
                found[name] = ast.literal_eval(value)
            except (ValueError, SyntaxError):
                found[name] = value
        setattr(namespace, self.dest, found)


def _reading(field: FieldInfo, typed: Typed) -> dict[str, Any]:
    """How argparse reads an option: the words only, their values are pydantic's."""
    kind = field.annotation
    if get_origin(kind) in (Union, UnionType):
        kind = next(part for part in get_args(kind) if part is not NoneType)
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction if field.default else "store_true"}
    several = get_origin(kind) or kind
    settings: dict[str, Any] = {}
    if several in (list, dict):
        settings["nargs"] = "*" if typed.empty else "+"
        kind = dict if several is dict else get_args(kind)[0]
    if several is dict:
        settings["action"] = _NamesAndValues
    if get_origin(kind) is Literal:
        return {**settings, "choices": get_args(kind)}
    while hasattr(kind, "__metadata__"):  # Annotated: what is inside
        kind = get_args(kind)[0]
    metavar = typed.metavar or _METAVARS.get(kind)  # type: ignore[arg-type]
    return {**settings, "metavar": metavar} if metavar else settings


def _help(field: FieldInfo) -> str:
    """The description, with the default where there is one that it does not tell."""
    text, default = (field.description or "").replace("%", "%%"), field.default
    if field.is_required() or default in (None, False, "", [], {}) or "default" in text:
        return text
    values = default if isinstance(default, list | tuple) else [default]
    shown = " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    return f"{text} (default: {shown})".strip()
