"""The command that the tests of a folder are of, in this process."""

from collections.abc import Callable
from functools import partial

import pytest

import lab_support
from cape_studies.evaluate import call
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
def refused(main, tmp_path, capsys) -> Callable[..., str]:
    """The one line that the command ends with; it leaves no CSV."""

    def told(*arguments: object, status: int = 2) -> str:
        out = tmp_path / "refused.csv"
        words = filled(main, arguments, csv=out)
        line = lab_support.refused(main, capsys, *words, status=status)
        assert not out.exists()
        return line

    return told
