"""Options of a command: a pydantic model lists them once, and the command line is made from it.

pydantic-settings' own CLI cuts values at their commas and reads them as JSON, so that
``--model-kwargs img_size=(32,48) depth=2`` comes out as something else.
"""

import argparse
import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator
from pydantic.fields import FieldInfo
from typing_extensions import Self  # pydantic's

#: how a value stands in the help, by its type or format in JSON Schema; others by the option's name
_METAVARS = {"integer": "N", "path": "FILE", "number": "X", "object": "NAME=VALUE"}


@dataclass(frozen=True)
class Typed:
    """How an option is typed, where its type does not tell: ``Annotated[int, Typed("R")]``.

    ``metavar`` is its value in the help, ``flag`` another flag such as ``-c``; with ``positional``
    it has no flag, with ``empty`` the flag may stand without a value.
    """

    metavar: str | None = None
    flag: str | None = None
    positional: bool = False
    empty: bool = False


class Options(BaseModel):
    """Options of a command, checked when they are made: before any work.

    A field is an option: ``str``, ``int``, ``float``, ``Path``, ``Literal`` (choices), ``bool`` (a
    flag without a value, for True), ``list`` of these (several values after one flag), ``dict``
    (``NAME=VALUE …``, the values as Python writes them, else text), and each with ``| None``.

    Attributes:
        groups: first field of a group → the group's heading in the help.

    Raises:
        pydantic.ValidationError: a value is not allowed; it is a ValueError.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    groups: ClassVar[dict[str, str]] = {}

    @classmethod
    def add_to(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Give a parser the options; returns it."""
        group: Any = parser
        schemas, shared = cls.model_json_schema()["properties"], RunOptions.model_fields
        for name, field in sorted(cls.model_fields.items(), key=lambda one: one[0] in shared):
            if name in cls.groups:
                group = parser.add_argument_group(cls.groups[name])
            typed = next((one for one in field.metadata if isinstance(one, Typed)), Typed())
            settings = _reading(schemas[name], typed)
            settings |= {"help": _help(field), "default": argparse.SUPPRESS}
            if typed.positional:
                parser.add_argument(name, **settings)
            else:
                flags = [flag for flag in (typed.flag, spelled(name)) if flag]
                group.add_argument(*flags, dest=name, required=field.is_required(), **settings)
        return parser

    @classmethod
    def read(cls, given: argparse.Namespace) -> Self:
        """The options that argparse found on a command line; what else it found is left alone.

        Raises:
            ValueError: the first thing that is wrong, in one line, as it was typed.
        """
        try:
            return cls(**{k: value for k, value in vars(given).items() if k in cls.model_fields})
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
    def check_run(self) -> Self:
        """Refuse values that come twice, and one file for two outputs."""
        if 1 in self.attention_logn:
            raise ValueError("--attention-logn takes tokens of a training sample, ≥ 2, or 0, got 1")
        once(self.attention_logn, "--attention-logn")
        outputs = [path.resolve() for path in (self.csv_path, self.items) if path is not None]
        once(outputs, "the output", ": choose another name")
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
    """The first of pydantic's findings in one line, with the option's name as it is typed.

    A value that may be of several types has a finding for each.
    """
    first = error.errors()[0]
    name = f"{spelled(str(first['loc'][0]))}: " if first["loc"] else ""
    if isinstance(own := first.get("ctx", {}).get("error"), ValueError):  # of a validator of ours
        return f"{name}{own}"
    alike = [one["msg"] for one in error.errors() if one["loc"][:2] == first["loc"][:2]]
    text = " or ".join(f"{message[0].lower()}{message[1:]}" for message in alike)
    return f"{name}{text}, got {first['input']!r}"


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
        found: dict[str, Any] = {}
        for given in values:
            name, equals, value = given.partition("=")
            if not equals or not name.isidentifier():
                parser.error(f"{option_string} takes NAME=VALUE, got {given!r}")
            try:
                found[name] = ast.literal_eval(value)
            except (ValueError, SyntaxError):
                found[name] = value
        setattr(namespace, self.dest, found)


def _reading(schema: dict[str, Any], typed: Typed) -> dict[str, Any]:
    """How argparse reads an option of this schema: the words, their values are pydantic's."""
    schema = next((one for one in schema.get("anyOf", []) if one["type"] != "null"), schema)
    if schema["type"] == "boolean":
        return {"action": "store_true"}
    one = schema.get("items", schema)
    shown = typed.metavar or _METAVARS.get(one.get("format") or one.get("type"))
    settings: dict[str, Any] = {"choices": one.get("enum"), "metavar": shown}
    if schema["type"] in ("array", "object"):
        settings["nargs"] = "*" if typed.empty else "+"
    if schema["type"] == "object":
        settings["action"] = _NamesAndValues
    return settings


def _help(field: FieldInfo) -> str:
    """The description, with the default where there is one that it does not tell."""
    text, default = (field.description or "").replace("%", "%%"), field.default
    if field.is_required() or not default or "default" in text:
        return text
    values = default if isinstance(default, list) else [default]
    return f"{text} (default: {' '.join(map(str, values))})".strip()
