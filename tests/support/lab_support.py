"""What the tests of the evaluation commands share."""

import csv
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cape_studies.items import made

Rows = list[dict[str, str]]
SCRIPTS = Path(__file__).parents[2] / "studies" / "data"


def script(path: str) -> Any:
    """A script of studies/data, or elsewhere in the checkout, as a module."""
    spec: Any = importlib.util.spec_from_file_location(Path(path).stem, SCRIPTS / path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(path: Path) -> Rows:
    """Of a CSV."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def refused(
    main: Callable[[Sequence[str]], None], capsys, *arguments: object, status: int = 2
) -> str:
    """The one line on stderr that a command with something wrong ends with."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main([*map(str, arguments)])
    assert stop.value.code == status
    (line,) = [one for one in capsys.readouterr().err.splitlines() if ": error: " in one]
    return line


def check_items(scores: Rows, items: Path) -> None:
    """Each score that has items is what they make; each item is in one score, there once."""
    left = rows(items)
    about = [name for name in left[0] if name in scores[0] and name not in ("value", "weight")]
    for score in scores:
        mine = [one for one in left if all(one[name] == score[name] for name in about)]
        if score["how"] == "number":
            continue
        left = [one for one in left if one not in mine]
        assert len({one["item"] for one in mine}) == len(mine) == int(score["items"])
        stats = [name for name in mine[0] if name.startswith("stats_") and mine[0][name]]
        sums = [sum(float(one[name]) for one in mine) for name in stats or ("value", "weight")]
        assert sums[1] == pytest.approx(float(score["weight"]))
        expected = made(score["how"], sums)
        if score["how"] in ("percent", "mean"):
            expected = (100 if score["how"] == "percent" else 1) * sums[0] / sums[1]
        assert float(score["value"]) == pytest.approx(expected)
    assert not left
