"""The user's data that a study needs: which folder is which, what lacks, and whether it changed."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cape_studies import contents
from cape_studies.config import Need


@dataclass(frozen=True)
class Data:
    """A folder of the user's, as it was when the command began.

    Attributes:
        name: of the need.
        folder: its path.
        contents: digest of what is in it.
        out: folder of all results, where it is kept what was seen, so that a second look reads
            nothing; None: nothing is written.
    """

    name: str
    folder: Path
    contents: str
    out: Path | None

    @classmethod
    def now(cls, name: str, folder: Path, out: Path | None) -> "Data":
        """The folder as it is."""
        kept = out / ".contents" if out else None
        seen = contents.digest(folder, kept) if folder.is_dir() else ""
        return cls(name, folder, seen, out)

    @property
    def link(self) -> Path:
        """What stands for the folder in all commands, wherever the user moves it; where nothing is
        written, the folder."""
        return self.out / "data" / f"{self.name}-{self.contents}" if self.out else self.folder

    def bring(self) -> None:
        """Lead the link to the folder."""
        if not self.link.is_symlink() or self.link.readlink() != self.folder:
            self.link.parent.mkdir(parents=True, exist_ok=True)
            new = self.link.with_name(f".{self.link.name}.{os.getpid()}")
            new.symlink_to(self.folder)
            new.replace(self.link)

    def changed(self) -> bool:
        """Whether other files or contents are there than then."""
        return Data.now(self.name, self.folder, self.out) != self


def known_data(given: Sequence[str], needs: Mapping[str, Need]) -> dict[str, Path]:
    """The folders of ``--data``, each NAME=DIR, or DIR alone where one folder is needed.

    A name ends at the first "=", as paths may have more of them.

    Raises:
        ValueError: a folder has no name, and several or none are needed; or a name has two folders.
    """
    found: dict[str, Path] = {}
    for word in given:
        name, equals, folder = word.partition("=")
        if not equals or name not in needs:
            if len(needs) != 1:
                one_of = f"give NAME=DIR, NAME one of {', '.join(sorted(needs))}"
                raise ValueError(
                    f"--data {word}: {one_of if needs else 'this study needs no data'}"
                )
            (name,), folder = needs, word
        if name in found:
            raise ValueError(f"--data has {name} twice: {found[name]} and {folder}")
        found[name] = Path(folder).resolve()
    return found


def lacking(needs: Mapping[str, Need], data: Mapping[str, Path]) -> Iterator[str]:
    """A line for each folder of data that is missing or has not what it should."""
    for name, need in needs.items():
        about = f"{need.what} ({need.source}), laid out as {need.layout}"
        folder = data.get(name)
        if folder is None:
            yield f"give --data {name}=DIR: {about}"
        elif not folder.is_dir():
            yield f"no such folder: {folder}; {name} is {about}"
        elif none := [one for one in need.files if not any(folder.glob(one))]:
            yield f"{folder} has no {none[0]}: {name} is {about}"
