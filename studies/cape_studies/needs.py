"""The user's data that a study needs: which folder is which, what lacks, and whether it changed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cape_studies.config import Need
from cape_studies.data.files import digests


@dataclass(frozen=True)
class Data:
    """A folder of the user's, as it was when the command began.

    Attributes:
        folder: its path.
        contents, changes: see :func:`cape_studies.data.files.digests`; empty if it is not there.
    """

    folder: Path
    contents: str
    changes: str

    @classmethod
    def now(cls, folder: Path) -> "Data":
        """The folder as it is."""
        return cls(folder, *(digests(folder) if folder.is_dir() else ("", "")))

    def changed(self) -> bool:
        """Whether anything in it was changed since, even if that was taken back."""
        return Data.now(self.folder) != self


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
