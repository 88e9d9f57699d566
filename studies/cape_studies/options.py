"""Options of a command: a pydantic model lists and checks them; :mod:`.command` reads them."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    ValidationError,
    field_validator,
    model_validator,
)
from typing_extensions import Self  # pydantic's


class Positional:
    """Marks a field that is typed without its name."""


@dataclass(frozen=True)
class Again:
    """Marks a list whose option takes one word, and is given again for each; ``word`` shows it."""

    word: str


@dataclass(frozen=True)
class Short:
    """Marks a field whose option has a short name too."""

    name: str


class CommandOptions(BaseModel):
    """Options of a command, a field for each; they are checked before any work."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*")
    @classmethod
    def check_list(cls, value: Any) -> Any:
        """Refuse a value that is given twice: its scores would count as those of two trainings."""
        once(value if isinstance(value, list) else [], "the list")
        return value


def _pairs(words: Any) -> Any:
    found: dict[str, Any] = {}
    for given in words if isinstance(words, list) else ():
        name, equals, value = given.partition("=")
        if not equals or not name.replace("-", "_").isidentifier():
            raise ValueError(f"takes NAME=VALUE, got {given!r}")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found if isinstance(words, list) else words


#: ``NAME=VALUE …``, the values as Python writes them, else text
Pairs = Annotated[dict[str, Any], BeforeValidator(_pairs)]


class EvaluationOptions(CommandOptions):
    """Options of all commands that evaluate models."""

    device: str | None = Field(
        None, description="cpu, cuda, …; none: cuda if there is one, else cpu"
    )
    workers: NonNegativeInt = Field(0, description="number of processes that load data")
    amp: bool = Field(False, description="mixed precision")
    csv: Path | None = Field(
        None, description="file to write the scores to; none: they are only printed"
    )
    items: Path | None = Field(
        None, description="CSV to write, with what each test item adds to a score"
    )
    overwrite: bool = Field(False, description="replace existing files")

    @model_validator(mode="after")
    def check_run(self) -> Self:
        """Refuse one file for two outputs."""
        outputs = [path.resolve() for path in (self.csv, self.items) if path is not None]
        once(outputs, "the output", ": choose another name")
        return self

    @property
    def place(self) -> Any:
        """The torch.device of ``--device``.

        Raises:
            ValueError: it cannot be used here.
        """
        import torch

        name = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            torch.zeros(1, device=name).item()  # fails for the device 'meta'
        except (RuntimeError, AssertionError) as error:  # AssertionError: torch without CUDA
            said = str(error).splitlines()[0]
            raise ValueError(f"--device {name} cannot be used: {said}") from error
        return torch.device(name)


def first_fault(error: ValidationError) -> str:
    """Pydantic's first finding in one line, with the option's name as it is typed."""
    first = error.errors()[0]
    name = f"--{str(first['loc'][0]).replace('_', '-')}: " if first["loc"] else ""
    if isinstance(own := first.get("ctx", {}).get("error"), ValueError):  # from a validator of ours
        return f"{name}{own}"
    # for a value of several allowed types there is a finding for each type
    alike = [one["msg"] for one in error.errors() if one["loc"][:2] == first["loc"][:2]]
    text = " or ".join(f"{message[0].lower()}{message[1:]}" for message in alike)
    return f"{name}{text}, got {first['input']!r}"


def named(given: str, option: str) -> tuple[str | None, str]:
    """NAME=PATH in two parts; None and the whole if it has no name, or is an existing path.

    Raises:
        ValueError: one of the two is empty.
    """
    name, equals, path = given.partition("=")
    if not equals or Path(given).exists():
        return None, given
    if not name or not path:
        raise ValueError(f"{option} takes PATH or NAME=PATH, got {given!r}")
    return name, path


def once(values: Sequence[Any], option: str, hint: str = "") -> None:
    """Raise ValueError if a value is given twice."""
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{option} has {value} twice{hint}")
