"""The evaluation commands' ways in and out: a missing host and a mistake are one line each."""

import argparse
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cape_studies.evaluation.options import Options


def call(host: str, argv: Sequence[str] | None = None) -> None:
    """Import the command of timm, fairseq or espnet now, not before, and call its ``main(argv)``.

    Raises:
        SystemExit: status 2, with one line on stderr, if something is not installed.
    """
    with one_line_errors(f"cape-{host}-eval"):
        try:
            command = importlib.import_module(f"cape_studies.evaluation.{host}.evaluate")
        except ImportError as error:
            raise ImportError(f"{error}: pip install 'cape-plugins[{host}]'") from error
    command.main(argv)


def main(
    prog: str, kind: type[Options], work: Callable[[Any], object], argv: Sequence[str] | None
) -> None:
    """Read a command's options, which its class describes, and do its work.

    Raises:
        SystemExit: as :func:`one_line_errors`.
    """
    parser = argparse.ArgumentParser(prog=prog, description=inspect.getdoc(kind))
    given = kind.add_to(parser).parse_args(argv)
    with one_line_errors(prog):
        work(kind.read(given))


@contextmanager
def one_line_errors(prog: str) -> Iterator[None]:
    """End with status 2 and one line on stderr where the input is bad or the memory too small."""
    try:
        yield
    except (ValueError, ImportError, MemoryError, RuntimeError) as error:
        text = str(error).strip()
        if isinstance(error, RuntimeError) and "allocate" not in text:  # as torch's of memory say
            raise
        if isinstance(error, MemoryError | RuntimeError):
            text = f"out of memory, give smaller batches or inputs: {text}"
        if "Original Traceback" in text:  # of a process that loads data: its last line tells
            text = text.splitlines()[-1]
        print(f"{prog}: error: {' '.join(text.split())}", file=sys.stderr)
        sys.exit(2)


def said(error: BaseException, most: int = 1) -> str:
    """The first lines of an error that are not empty, in one line; its type if it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:most]) or type(error).__name__
