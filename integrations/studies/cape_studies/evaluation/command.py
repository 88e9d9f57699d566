"""The evaluation commands' ways in and out: a missing host and a mistake are one line each."""

import argparse
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from cape_studies.evaluation.options import Options

Kind = TypeVar("Kind", bound=Options)


def call(module: str, prog: str, extra: str, argv: Sequence[str] | None = None) -> None:
    """Import the module of a command now, not before, and call its ``main(argv)``.

    Args:
        module: of the command.
        prog: the command's name.
        extra: of cape-plugins, that brings what the command needs.
        argv: its arguments. Default: those of this process.

    Raises:
        SystemExit: status 2, with one line on stderr, if something is not installed.
    """
    try:
        command = importlib.import_module(module)
    except ImportError as error:
        end(prog, f"{error}: pip install 'cape-plugins[{extra}]'")
    command.main(argv)


def main(
    prog: str,
    kind: type[Kind],
    work: Callable[[Kind], object],
    argv: Sequence[str] | None,
    *,
    examples: str = "",
) -> None:
    """Read a command's options, which its class describes, and do its work.

    Raises:
        SystemExit: as :func:`one_line_errors`.
    """
    parser = argparse.ArgumentParser(
        prog=prog,
        description=inspect.getdoc(kind),
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    with one_line_errors(prog):
        work(kind.read(kind.add_to(parser).parse_args(argv)))


@contextmanager
def one_line_errors(prog: str) -> Iterator[None]:
    """End with status 2 and one line on stderr where the input is bad."""
    try:
        yield
    except (ValueError, ImportError) as error:
        end(prog, error)


def end(prog: str, error: object) -> NoReturn:
    """Exit with status 2 and one line on stderr."""
    text = str(error).strip()
    if "Original Traceback" in text:  # of a process that loads data: its last line is the error
        text = text.splitlines()[-1]
    print(f"{prog}: error: {' '.join(text.split())}", file=sys.stderr)
    sys.exit(2)


def said(error: BaseException, most: int = 1) -> str:
    """The first lines of an error that are not empty, in one line; its type if it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:most]) or type(error).__name__
