"""The numbers in docs/positions.md and in README's demo are those of docs/results."""

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "positions.md").read_text()
DEMO = [("sinpos", False), ("cape", False), ("cape", True)]
tables = runpy.run_path(str(DOCS / "tables.py"))


def test_every_table_of_the_page_is_that_of_the_scores():
    assert tables["filled"](PAGE) == PAGE


def test_every_study_with_scores_has_a_table():
    named = {tables["FROM"].get(name, name) for name in re.findall(r"<!-- (\w+) -->", PAGE)}
    scores = {path.stem for path in (DOCS / "results").glob("*.csv")}
    assert named == {"overall"} | scores - {"demo"}  # whose table is README's


def test_a_number_changed_by_hand_is_noticed():
    before, mark, after = PAGE.partition("<!-- multi30k_short -->")
    changed = before + mark + re.sub(r"\d+\.\d+", "43.31", after, count=1)
    assert changed != PAGE
    assert tables["filled"](changed) == PAGE


def test_an_unknown_table_is_refused():
    with pytest.raises(KeyError, match="digit"):
        tables["filled"]("<!-- digit -->\n<!-- -->")


def test_readme_has_the_numbers_that_the_demo_gave():
    def numbers(text):
        return [float(number) for number in re.findall(r"-?\d+\.\d+", text.replace("−", "-"))]

    given = {}  # evaluation, variant and whether a difference → columns
    for part in re.split(r"^### ", (DOCS / "results" / "demo.md").read_text(), flags=re.M)[1:]:
        title, header, _, *rows = [line for line in part.splitlines() if line.strip()]
        conditions = [cell.strip() for cell in header.split("|")[3:-1]]
        for row in (row for row in rows if row.startswith("| ")):
            name, _, *cells = [cell.strip() for cell in row.split("|")[1:-1]]
            key = (title.split(",")[0], name, "difference" in title)
            given[key] = {c: numbers(cell) for c, cell in zip(conditions, cells, strict=True)}

    of = {"timm": "sizes", "fairseq": "length", "espnet": "duration"}
    seeds = tables["scores_of"]("demo").groupby(["evaluation", "condition", "variant"])["value"]
    lines = [
        line
        for line in (DOCS.parent / "README.md").read_text().splitlines()
        if line.split("|")[1:2] in [[f" {host} "] for host in of] and line.count("|") == 7
    ]
    assert len(lines) == sum(len(given[name, "cape", True]) for name in of.values())
    for line in lines:
        host, _, condition, sinpos, cape, less = [cell.strip() for cell in line.split("|")[1:-1]]
        expected = [given[of[host], v, d][condition.strip("*")] for v, d in DEMO]
        shown = [numbers(sinpos)[0], numbers(cape)[0], *numbers(less)]
        assert shown == pytest.approx([expected[0][0], expected[1][0], *expected[2]], abs=0.056)
        for variant, cell in (("sinpos", sinpos), ("cape", cape)):
            each = seeds.get_group((of[host], condition.strip("*"), variant))
            assert numbers(cell)[1:] == pytest.approx(list(each), abs=0.051)
