"""How the commands start and how they end: an error is one line on stderr."""

import importlib
import io
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any

import tyro
from pydantic import ValidationError

from cape_studies.options import problem


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


def main(prog: str, kind: Any, work: Callable[[Any], object], argv: Sequence[str] | None) -> None:
    """Read a command's options and do its work, in :func:`one_line_errors`.

    Args:
        prog: the command's name.
        kind: the class of the options, or a union of ``tyro.conf.subcommand``.
        work: is called with the options.
        argv: words of the command line; None: the process's.
    """
    with one_line_errors(prog):
        work(parsed(prog, kind, argv))


def parsed(prog: str, kind: Any, argv: Sequence[str] | None, rest: str | None = None) -> Any:
    """The options of :func:`main`.

    Args:
        prog, kind, argv: see :func:`main`.
        rest: a field that takes the words which stand between options and belong to none.

    Raises:
        ValueError: an option is wrong; the first fault in one line, in place of tyro's box.
        SystemExit: status 0 after ``--help``.
    """
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            config = (tyro.conf.FlagCreatePairsOff,)
            if rest is None:
                return tyro.cli(kind, prog=prog, args=argv, config=config)
            found, more = tyro.cli(
                kind, prog=prog, args=argv, config=config, return_unknown_args=True
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        error: Any = stop
        while error := error.__context__:
            if isinstance(error, ValidationError):
                raise ValueError(problem(error)) from None
        # tyro's box: rules separate title, message and the hint at --help
        _, message, *_ = re.split("(?m)^.*(?:─{3}|-{9}).*$", box.getvalue())
        raise ValueError(message.replace("│", "")) from None
    if wrong := [word for word in more if word.startswith("-")]:
        names = [f"--{name.replace('_', '-')}" for name in kind.model_fields if name != rest]
        raise ValueError(f"there is no {wrong[0]}; there is {', '.join(sorted(names))}")
    return found.model_copy(update={rest: [*getattr(found, rest), *more]})


@contextmanager
def one_line_errors(prog: str) -> Iterator[None]:
    """End with one line on stderr and status 2 if the input is bad or the memory too small."""
    try:
        yield
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
