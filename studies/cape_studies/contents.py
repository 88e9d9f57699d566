"""A user's data are their contents: names below a folder, and what is in the files."""

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from cape_studies import process

SETTLED_NS = 2_000_000_000  # a file that changed since then may change again within one tick


def digest(folder: Path, kept: Path | None = None) -> str:
    """A digest of all files below a folder, those behind links too; hidden ones are left out.

    Where the folder lies, when a file was written, rights and links do not count. A file that was
    seen before is read again if its size, or the time when it was written or changed (ctime, which
    no program sets), is another.

    Args:
        folder: of the data.
        kept: folder for what was seen, in a file for each folder of data, also after a move; None:
            every file is read.

    Raises:
        OSError: something cannot be read.
    """
    note = kept / str(folder.stat().st_ino) if kept else None
    known: dict[str, list[str]] = {}
    if note and note.exists():
        lines = (line.rsplit(" ", 2) for line in note.read_text("ascii").splitlines())
        known = {name: seen for name, *seen in lines}
    found: dict[str, list[str]] = {}
    for name, path in tqdm(_files(folder), f"reading {folder}", delay=3, disable=None, leave=False):
        found[name] = _seen(path, known.get(name, ["", ""]))
    if note and found != known:
        with suppress(OSError):  # of a report, on a disk that is full or read-only
            process.write(note, "".join(f"{name} {' '.join(of)}\n" for name, of in found.items()))
    every = "".join(f"{name} {content}\n" for name, (_, content) in sorted(found.items()))
    return hashlib.sha256(every.encode()).hexdigest()[:10]


def _seen(path: Path, before: list[str]) -> list[str]:
    """Size and times of a file, and the digest of its content; both are empty if it is not there.
    The former is empty too if the file has just changed."""
    try:
        at = path.stat()
        now = f"{at.st_size}-{at.st_mtime_ns}-{at.st_ctime_ns}"
        if now == before[0]:
            return before
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()[:32]  # type: ignore[attr-defined]  # Python 3.11's
    except FileNotFoundError:  # a link that leads nowhere, or it was removed just now
        return ["", ""]
    return [now if at.st_ctime_ns < time.time_ns() - SETTLED_NS else "", content]


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Name below the folder, in ASCII, and path of each file. A link to a folder that holds it is
    left out."""

    def failed(error: OSError) -> NoReturn:
        raise error

    def within(place: Path) -> bool:
        return place.is_symlink() and place.resolve() in {one.resolve() for one in place.parents}

    inside = len(os.path.join(folder, ""))
    for path, folders, files in os.walk(folder, onerror=failed, followlinks=True):
        folders[:] = [one for one in folders if one[0] != "." and not within(Path(path, one))]
        for name in files:
            if name[0] != ".":
                yield ascii(os.path.join(path[inside:], name)), Path(path, name)
