"""The commands' ways in and out: a missing host and a mistake are one line each."""

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

from cape_studies.evaluation.options import problem


def call(host: str, argv: Sequence[str] | None = None) -> None:
    """The command of timm, fairseq or espnet, which is imported now, not before.

    Its module ``evaluate`` has ``OPTIONS``, the ``kind`` of :func:`main`, and ``run``, which gives
    the scores one by one, or None where there are none.
    """
    prog = f"cape-{host}-eval"
    with one_line_errors(prog):
        try:
            module = importlib.import_module(f"cape_studies.evaluation.{host}.evaluate")
            write = importlib.import_module("cape_studies.evaluation.output").write
        except ImportError as error:
            raise ImportError(f"{error}: pip install 'cape-studies[{host}]'") from error
    logging.basicConfig(format="%(message)s")
    logging.getLogger().setLevel(logging.WARNING)  # which importing fairseq sets to INFO or DEBUG
    with warnings.catch_warnings():
        # in calls of the hosts, of pinned memory without a GPU, masks of two types, and in every
        # batch of an old name of autocast
        warnings.filterwarnings("ignore", category=UserWarning, module="torch")
        warnings.filterwarnings("ignore", category=FutureWarning, module="espnet2")
        main(prog, module.OPTIONS, lambda options: write(options, module.run(options)), argv)


def main(prog: str, kind: Any, work: Callable[[Any], object], argv: Sequence[str] | None) -> None:
    """Read a command's options and do its work with them, in :func:`one_line_errors`.

    ``kind`` is the class of the options, or a union of ``tyro.conf.subcommand``; ``argv`` are the
    words of the command line, None: the process's.
    """
    with one_line_errors(prog):
        work(parsed(prog, kind, argv))


def parsed(prog: str, kind: Any, argv: Sequence[str] | None) -> Any:
    """The options of :func:`main`.

    Raises:
        ValueError: what is wrong first, in one line, in place of tyro's box.
        SystemExit: status 0 after ``--help``.
    """
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            config = (tyro.conf.FlagCreatePairsOff,)
            return tyro.cli(kind, prog=prog, args=argv, config=config)
    except SystemExit as stop:
        if not stop.code:
            raise
        found: Any = stop
        while found := found.__context__:
            if isinstance(found, ValidationError):
                raise ValueError(problem(found)) from None
        # lines with rules part title, message and where to find help
        _, message, *_ = re.split("(?m)^.*(?:─{3}|-{9}).*$", box.getvalue())
        raise ValueError(message.replace("│", "")) from None


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
