"""The files of a folder, and what is said of them."""

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator
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


def digests(folder: Path) -> tuple[str, str]:
    """Two digests of what :func:`files` gives, without opening a file.

    The first is of names below the folder, sizes, and times of writing in nanoseconds: the same
    data have the same again after a change that was taken back. The second also has the times of
    any change of a file or link (ctime), which no program sets: it tells that nothing happened
    between two looks. A link to a folder that holds it is left out.

    Raises:
        OSError: a folder cannot be read.
    """
    contents, changes = hashlib.sha256(), hashlib.sha256()
    todo: list[tuple[str, str, tuple[str, ...]]] = [(str(folder), "", (os.path.realpath(folder),))]
    while todo:
        path, inside, above = todo.pop()
        with os.scandir(path) as there:
            entries = sorted((one for one in there if one.name[0] != "."), key=lambda one: one.name)
        seen, changed = [], []
        for one in entries:
            name = f"{inside}{one.name}"
            try:
                if one.is_symlink():
                    changed.append(f"{name}\0{one.stat(follow_symlinks=False).st_ctime_ns}\n")
                if one.is_dir():
                    own = os.path.realpath(one) if one.is_symlink() else f"{above[-1]}/{one.name}"
                    if own not in above:
                        todo.append((one.path, f"{name}/", (*above, own)))
                    continue
                at = one.stat()
            except FileNotFoundError:  # a link that leads nowhere, or it was removed just now
                seen.append(f"{name}\n")
                continue
            seen.append(f"{name}\0{at.st_size}\0{at.st_mtime_ns}\n")
            changed.append(f"{at.st_ctime_ns}\n")
        for made, lines in ((contents, seen), (changes, changed)):
            made.update("".join(lines).encode("utf-8", "surrogateescape"))
    changes.update(contents.digest())
    return contents.hexdigest()[:10], changes.hexdigest()[:10]


def kinds(paths: Iterable[Path]) -> str:
    """How many files of which suffix: ``10 .bmp, 3 .txt``; empty without files."""
    found = Counter(path.suffix.lower() or path.name for path in paths)
    return ", ".join(f"{many:,} {suffix}" for suffix, many in found.most_common())


def account(used: Iterable[Path], given: Iterable[Path], reason: str) -> str:
    """How many files are used, and how many are not for a reason."""
    known = dict.fromkeys(used)
    left = kinds(path for path in given if path not in known)
    return (kinds(known) or "no file") + (f"; left out: {left} ({reason})" if left else "")


def twice(train: Iterable[Path], tests: Iterable[Path]) -> Iterator[str]:
    """Faults: files of the tests whose content a file of training has."""
    known = {_digest(path): path for path in train}
    for path in tests:
        if same := known.get(_digest(path)):
            yield f"{path} of a test has the same content as {same} of training"


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def complain(faults: Iterable[str]) -> None:
    """Raise ValueError with the first faults, if there are any, in one line."""
    every = list(faults)
    if every:
        more = f"; and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
        raise ValueError("; ".join(every[:SHOWN]) + more)
