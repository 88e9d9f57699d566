"""The command that the tests of a folder are of, in this process."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest

import cape_support
import lab_support
from cape_studies import hosts
from cape_studies.evaluate import call
from cape_studies.hosts import EVALUATE
from lab_support import Rows

Main = partial[None]


@pytest.fixture
def main(request) -> Main:
    """The command of the host that the test's folder is named after."""
    return partial(call, request.path.parent.name)


def filled(main: Main, arguments: tuple[object, ...], **more: object) -> list[str]:
    """Arguments of a host's command, with the options that are not among them."""
    if main.args == ("timm",):
        more["workers"] = 0
    more = {f"--{name}": value for name, value in more.items() if f"--{name}" not in arguments}
    return [*map(str, arguments), *(str(word) for option in more.items() for word in option)]


@pytest.fixture
def run(main, tmp_path) -> Callable[..., Rows]:
    """The command, and the rows of its CSV."""

    def told(*arguments: object) -> Rows:
        path = tmp_path / "o.csv"
        main([*filled(main, arguments, csv=path, device="cpu"), "--overwrite"])
        return lab_support.rows(path)

    return told


@pytest.fixture
def together(main, tmp_path) -> Callable[..., list[Rows]]:
    """Several commands of the host in one process of its own, and the rows of each one's CSV."""

    def told(*commands: Sequence[object]) -> list[Rows]:
        csvs = [tmp_path / f"together{i}.csv" for i in range(len(commands))]
        each = [
            [*EVALUATE, *main.args, *filled(main, (*one,), csv=csv, device="cpu")]
            for one, csv in zip(commands, csvs, strict=True)
        ]
        status, said = cape_support.run(*hosts.together(each))
        assert status == 0, said
        return [*map(lab_support.rows, csvs)]

    return told


@pytest.fixture
def refused(main, tmp_path, capsys) -> Callable[..., str]:
    """The one line that the command ends with; it leaves no CSV."""

    def told(*arguments: object, status: int = 2) -> str:
        out = tmp_path / "refused.csv"
        words = filled(main, arguments, csv=out)
        line = lab_support.refused(main, capsys, *words, status=status)
        assert not out.exists()
        return line

    return told
