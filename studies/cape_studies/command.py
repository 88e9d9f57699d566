"""How the commands start and how they end: an error is one line on stderr."""

import argparse
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import cleandoc
from typing import Any, Literal, NoReturn, get_args, get_origin

from pydantic import ValidationError

from cape_studies.options import Again, CommandOptions, Positional, Short, first_fault

Kind = type[CommandOptions] | Mapping[str, type[CommandOptions]]


def call(host: str, argv: Sequence[str] | None = None) -> None:
    """The command of a host; its module ``evaluate`` is imported now, not before.

    The module has ``OPTIONS``, the ``kind`` of :func:`main`, and ``run``, which gives the scores
    one by one, or None if there are none.
    """
    prog = f"cape-{host}-eval"
    with one_line_errors(prog):
        try:
            module = importlib.import_module(f"cape_studies.evaluate.{host}.evaluate")
            write = importlib.import_module("cape_studies.evaluate.output").write
        except ImportError as error:
            raise ImportError(f"{error}: pip install 'cape-studies[{host}]'") from error
    logging.basicConfig(format="%(message)s")
    logging.getLogger().setLevel(logging.WARNING)  # importing fairseq sets INFO or DEBUG
    with warnings.catch_warnings():
        # the hosts' calls warn of pinned memory without a GPU and of masks of two types, and in
        # every batch of autocast's old name
        warnings.filterwarnings("ignore", category=UserWarning, module="torch")
        warnings.filterwarnings("ignore", category=FutureWarning, module="espnet2")
        main(prog, module.OPTIONS, lambda options: write(options, module.run(options)), argv)


def main(prog: str, kind: Kind, work: Callable[[Any], object], argv: Sequence[str] | None) -> None:
    """Read a command's options and do its work, in :func:`one_line_errors`.

    Args:
        prog: the command's name.
        kind: the class of the options, or word → class for a command that begins with one of them.
        work: is called with the options.
        argv: words of the command line; None: the process's.
    """
    with one_line_errors(prog):
        work(parsed(prog, kind, argv))


def parsed(prog: str, kind: Kind, argv: Sequence[str] | None = None) -> Any:
    """The options of :func:`main`.

    Raises:
        ValueError: an option is wrong; says the first fault.
        SystemExit: status 0 after ``--help``.
    """
    words = [*(sys.argv[1:] if argv is None else argv)]
    if isinstance(kind, Mapping):
        first = _Parser(prog=prog, epilog=f"{prog} WORD --help says what it takes")
        first.add_argument("word", choices=[*kind])
        word = first.parse_args(words[:1]).word
        return parsed(f"{prog} {word}", kind[word], words[1:])
    own = _parser(prog, kind)
    given, unknown = own.parse_known_intermixed_args(words)
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
        marks = {type(mark): mark for mark in field.metadata}
        flags = [f"--{name.replace('_', '-')}"]
        about: dict[str, Any] = {"help": str(field.description).replace("%", "%%")}
        about["default"] = argparse.SUPPRESS
        if field.default not in (None, False, [], {}) and not field.is_required():
            default = field.default if isinstance(field.default, list) else [field.default]
            about["help"] += f" (default: {' '.join(map(str, default))})"
        several = get_origin(field.annotation) in (list, dict)
        if short := marks.get(Short):
            flags.insert(0, short.name)
        if Positional in marks:
            flags = [name]
            about["nargs"] = "*" if several else None if field.is_required() else "?"
        elif again := marks.get(Again):
            about |= {"action": "append", "metavar": again.word}
        elif field.annotation is bool:
            about["action"] = "store_true"
        else:
            choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            about["nargs"] = "*" if several else None
            about["metavar"] = f"{{{','.join(choices)}}}" if choices else name.upper()
            about["required"] = field.is_required()
        made.add_argument(*flags, **about)
    return made


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
