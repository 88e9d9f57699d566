"""docs/positions.md: its tables are what docs/tables.py makes of the scores in docs/results."""

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "positions.md").read_text()
tables = runpy.run_path(str(DOCS / "tables.py"))


def test_every_table_of_the_page_is_that_of_the_scores():
    assert tables["filled"](PAGE) == PAGE


def test_every_study_with_scores_has_a_table():
    named = set(re.findall(r"<!-- (\w+) -->", PAGE))
    assert named == {"overall"} | {path.stem for path in (DOCS / "results").glob("*.csv")}


def test_a_number_changed_by_hand_is_noticed():
    assert tables["filled"](PAGE.replace("41.31", "43.31")) == PAGE


def test_an_unknown_table_is_refused():
    with pytest.raises(KeyError, match="digit"):
        tables["filled"]("<!-- digit -->\n<!-- -->")
