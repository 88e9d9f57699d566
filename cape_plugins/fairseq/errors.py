"""Errors at fairseq's command line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def one_line() -> Iterator[None]:
    """End fairseq's commands at a ValueError as argparse does: one line, exit status 2.

    In other programs, which build a model in Python, the ValueError is raised as usual.
    """
    program = Path(sys.argv[0])
    try:
        yield
    except ValueError as error:
        if not (program.name.startswith("fairseq-") or program.parent.name == "fairseq_cli"):
            raise
        print(f"{program.name}: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
