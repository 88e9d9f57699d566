"""The numbers in the pages that docs/tables.py fills and in docs/results' pages are the scores'."""

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"
tables = runpy.run_path(str(DOCS / "tables.py"))
PAGES = {path.name: path.read_text() for path in tables["PAGES"]}


def test_every_study_with_scores_has_a_table_or_is_linked():
    named = {"demo", "demo_again", "cost"}
    named |= set(re.findall(r"\(results/(\w+)\.md\)", PAGES["positions.md"]))
    named |= set(re.findall(r"<!-- (\w+) -->\n\|", PAGES["positions.md"]))
    scores = {path.stem for path in (DOCS / "results").glob("*.csv")}
    assert named == scores


NAMED = [(page, name) for page in PAGES for name in re.findall(r"<!-- (\w+) -->", PAGES[page])]


@pytest.mark.parametrize(("page", "name"), NAMED)
def test_every_table_is_that_of_the_scores_and_a_number_changed_by_hand_is_not(page, name):
    before, mark, after = PAGES[page].partition(f"<!-- {name} -->")
    changed = before + mark + re.sub(r"\d+\.\d+", "43.31", after, count=1)
    assert changed != PAGES[page]
    assert tables["filled"](changed) == PAGES[page]


def test_the_pages_of_results_are_those_of_the_scores():
    pages = tables["results"]()
    there = {path: path.read_text() for path in (DOCS / "results").glob("*.md")}
    assert pages == there
    assert len(pages) == len(list((DOCS / "results").glob("*.csv"))) - 1  # but the cost


def test_an_unknown_table_is_refused():
    with pytest.raises(KeyError, match="digit"):
        tables["filled"]("<!-- digit -->\n<!-- -->")


def test_a_missing_score_is_a_dagger_and_two_have_both_values():
    spread = tables["spread"]
    assert spread([1.0, float("nan"), 3.0], 1) == "† (1.0, –, 3.0)"
    assert spread([1.0, 3.0], 1) == "2.0 (1.0, 3.0)"
    assert spread([1.0, 2.0, 3.0], 1) == "2.0 ± 2.5"
    assert spread([], 1) == ""
