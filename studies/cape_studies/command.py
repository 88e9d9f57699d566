"""How the commands start and how they end: options from a pydantic model, errors of one line."""

import argparse
import ast
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    create_model,
    field_validator,
)


@dataclass(frozen=True)
class Typed:
    """How a field is typed, where that is not ``--name`` and its words.

    Attributes:
        bare: without its name.
        short: with this name too.
        again: with one word, which is shown as this, and again for each of a list.
    """

    bare: bool = False
    short: str = ""
    again: str = ""


class CommandOptions(BaseModel):
    """Options of a command, a field for each; they are checked before any work."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*")
    @classmethod
    def check_list(cls, value: Any) -> Any:
        """Refuse a value that is given twice: its scores would count as those of two trainings."""
        once(value if isinstance(value, list | tuple) else [], "the list")
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


Kind = TypeVar("Kind", bound=CommandOptions)


def main(
    prog: str, kind: type[Kind], work: Callable[[Kind], object], argv: Sequence[str] | None
) -> None:
    """Read a command's options and do its work, in :func:`one_line_errors`.

    Args:
        prog: the command's name.
        kind: the class of the options.
        work: is called with the options.
        argv: words of the command line; None: the process's.
    """
    with one_line_errors(prog):
        work(parsed(prog, kind, argv))


def script(function: Callable[..., object]) -> None:
    """The command of a script whose options are a function's arguments; its help is the docstring
    of the function's module, and its own."""
    fields: dict[str, Any] = {
        name: (one.annotation, ... if one.default is one.empty else one.default)
        for name, one in inspect.signature(function).parameters.items()
    }
    said = sys.modules[function.__module__].__doc__, function.__doc__
    about = "\n\n".join(cleandoc(one or "") for one in said)
    kind = create_model("Arguments", __base__=CommandOptions, __doc__=about, **fields)
    main(Path(sys.argv[0]).name, kind, lambda given: function(**vars(given)), None)


def parsed(prog: str, kind: type[Kind], argv: Sequence[str] | None = None) -> Kind:
    """The options of :func:`main`.

    Raises:
        ValueError: an option is wrong; says the first fault.
        SystemExit: status 0 after ``--help``.
    """
    own = _parser(prog, kind)
    given, unknown = own.parse_known_intermixed_args(argv)
    if unknown:
        raise ValueError(f"there is no {unknown[0]}: {' '.join(own.format_usage().split())}")
    try:
        return kind(**vars(given))
    except ValidationError as error:
        raise ValueError(first_fault(error)) from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parser(prog: str, kind: type[CommandOptions]) -> argparse.ArgumentParser:
    """Of words alone, which pydantic checks: an option for each field."""
    made = _Parser(prog, description=cleandoc(kind.__doc__ or ""), allow_abbrev=False)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    for name, field in kind.model_fields.items():
        typed = next((one for one in field.metadata if isinstance(one, Typed)), Typed())
        flags = [typed.short] if typed.short else []
        flags.append(name if typed.bare else f"--{name.replace('_', '-')}")
        about: dict[str, Any] = {"help": (field.description or "").replace("%", "%%")}
        about["default"] = argparse.SUPPRESS
        if field.default not in (None, False, "", [], (), {}) and not field.is_required():
            default = field.default if isinstance(field.default, list | tuple) else [field.default]
            about["help"] += f" (default: {' '.join(map(str, default))})"
        if field.annotation is bool:
            about["action"] = "store_true"
        elif typed.again:
            about |= {"action": "append", "metavar": typed.again}
        else:
            kind_of = get_origin(field.annotation)
            choices = get_args(field.annotation) if kind_of is Literal else ()
            shown = name if typed.bare else name.upper()
            about["metavar"] = f"{{{','.join(choices)}}}" if choices else shown
            one = "?" if typed.bare and not field.is_required() else None
            about["nargs"] = "*" if kind_of in (list, tuple, dict) else one
            about |= {} if typed.bare else {"required": field.is_required()}
        made.add_argument(*flags, **about)
    return made


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


@contextmanager
def one_line_errors(prog: str) -> Iterator[None]:
    """End with one line on stderr and status 2 if the input is bad or the memory too small."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # as in cape-run --list | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)  # the status of who is ended by SIGPIPE
    except (ValueError, ImportError, OSError, MemoryError, RuntimeError) as error:
        text = str(error).strip()
        if isinstance(error, RuntimeError) and "allocate" not in text:  # torch's of memory have it
            raise
        if isinstance(error, MemoryError | RuntimeError):
            text = f"out of memory, give smaller batches or inputs: {text}"
        if "Original Traceback" in text:  # of a process that loads data; its last line is the error
            text = text.splitlines()[-1]
        print(f"{prog}: error: {' '.join(text.split())}", file=sys.stderr)
        sys.exit(2)


def said(error: BaseException, most: int | None = 1) -> str:
    """The first lines of an error that are not empty, or all, in one line; or its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:most]) or type(error).__name__
