"""The files of a folder, and what is said of them."""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

SHOWN = 10  # faults in a message


def files(folder: Path) -> Iterator[Path]:
    """All files below a folder, sorted, those behind links to folders too. Hidden ones are left out
    (``._a.jpg`` of a Mac, ``.ipynb_checkpoints``).

    A link that leads nowhere is among them, with a warning.

    Raises:
        ValueError: a link leads to a folder that holds it, or a name is not UTF-8.
        OSError: a folder cannot be read.
    """
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
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


def account(used: Iterable[Path], given: Iterable[Path], reason: str) -> str:
    """How many files are used, and how many are not for a reason."""
    known = dict.fromkeys(used)
    left = kinds(path for path in given if path not in known)
    return (kinds(known) or "no file") + (f"; left out: {left} ({reason})" if left else "")


def content(path: Path) -> bytes:
    """A digest of what is in a file."""
    return hashlib.sha256(path.read_bytes()).digest()


def twice(
    train: Iterable[Path], tests: Iterable[Path], of: Callable[[Path], bytes] = content
) -> Iterator[str]:
    """Faults: files of the tests whose content a file of training has; ``of`` gives it."""
    known = {of(path): path for path in train}
    for path in tests:
        if same := known.get(of(path)):
            yield f"{path} of a test has the same content as {same} of training"


def complain(faults: Iterable[str]) -> None:
    """Raise ValueError with the first faults, if there are any, in one line."""
    every = list(faults)
    if every:
        more = f"; and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
        raise ValueError("; ".join(every[:SHOWN]) + more)
