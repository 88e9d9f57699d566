"""The files of a folder, and what is said of those that are not used."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

SHOWN = 10  # faults in a message


def files(folder: Path) -> Iterator[Path]:
    """All files below a folder, sorted, those behind links to folders too. Hidden ones are left out
    (``._a.jpg`` of a Mac, ``.ipynb_checkpoints``).

    A link that leads nowhere is among them, with a warning.

    Raises:
        ValueError: a folder cannot be read, a link leads to a folder that holds it, or a name is
            not UTF-8.
    """
    try:
        there = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise ValueError(f"{folder} cannot be read: {error}") from error
    for path in there:
        if not path.exists():
            logging.warning(f"{path} is a link that leads nowhere")
        if any("\ud800" <= letter <= "\udfff" for letter in path.name):  # no CSV can hold it
            raise ValueError(f"{str(path)!r} has a name that is not UTF-8: rename it")
        if not path.is_dir():
            yield path
        elif folder.resolve().is_relative_to(path.resolve()):
            raise ValueError(f"{path} is a link to a folder that holds it: remove the link")
        else:
            yield from files(path)


def kinds(paths: Iterable[Path]) -> str:
    """How many files of which suffix: ``10 .bmp, 3 .txt``; empty without files."""
    found = Counter(path.suffix.lower() or path.name for path in paths)
    return ", ".join(f"{many:,} {suffix}" for suffix, many in found.most_common())


def complain(folder: Path, faults: Iterable[str]) -> None:
    """Raise ValueError with the first faults, if there are any, in one line."""
    every = list(faults)
    if every:
        more = f"; {len(every) - SHOWN} more in {folder}" if len(every) > SHOWN else ""
        raise ValueError("; ".join(every[:SHOWN]) + more)
