"""The numbers in the pages that tools/docs/tables.py fills are those of the scores."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
tables = runpy.run_path(str(ROOT / "tools" / "docs" / "tables.py"))
RESULTS = ROOT / "studies" / "results"
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in tables["PAGES"]}


def test_every_study_is_in_the_list_by_question():
    last = PAGES["docs/results.md"].partition("## Studies")[2]
    listed = re.findall(r"\(\.\./studies/results/(\w+)\.md\)", last)
    pages = {path.stem for path in RESULTS.glob("*.md")}
    assert sorted(listed) == sorted([*pages])


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_a_cell_holds_one_number_with_its_interval(page):
    rows = [line for line in PAGES[page].splitlines() if line.startswith("|")]
    assert rows
    for row in rows:
        for cell in row.strip("|").split("|"):
            assert len(re.findall(r"\d \[", re.sub(r"<!--.*?-->", "", cell))) <= 1, row


def test_bold_is_the_best_and_what_differs_neither_significantly_nor_by_more_than_the_noise():
    scores = tables["scores_of"]("digit_canvas_long", "shift")
    middle, corner = (tables["column"](scores, at) for at in ("0", "corner"))
    rows = {typed: called[0] for typed, called in tables["TYPED"].items() if typed in middle}
    assert len(rows) > 4
    for at, shown in (("0", middle), ("corner", corner)):
        means = {name: scores.found[name, at].value for name in rows.values()}
        best = max(means, key=means.get)
        for typed, name in rows.items():
            far = means[best] - means[name] > float(shown["noise"]) + 0.05
            worse = name != best and (scores.difference(name, best, at).differs() or far)
            assert shown[typed].startswith("**") != worse, (at, name)
    assert any(not shown.startswith("**") for shown in corner.values())


def test_a_column_of_errors_has_its_lowest_in_bold():
    shown = tables["column"](tables["scores_of"]("digits_rope", "length"), "30–40")
    numbers = {typed: text for typed, text in shown.items() if typed.startswith("`")}
    lowest = min(numbers, key=lambda typed: float(numbers[typed].strip("*")))
    assert numbers[lowest].startswith("**")


NUMBERS = [(page, of) for page in PAGES for of in re.findall(r"<!--=(.+?)-->", PAGES[page])]


def test_every_number_is_that_of_the_scores_and_one_changed_by_hand_is_not():
    assert len(NUMBERS) > 30
    for page in {page for page, _ in NUMBERS}:
        changed = re.sub(r"(<!--=.+?-->).*?(<!--/-->)", r"\g<1>43.31\2", PAGES[page])
        assert changed != PAGES[page]
        assert tables["filled"](changed) == PAGES[page]


@pytest.mark.parametrize(
    "of", ["canvas:shift:cape_rope−rope:17", "canvas:shift:cope:16", "step:vit_small:cope"]
)
def test_a_number_that_was_not_measured_is_refused(of):
    with pytest.raises(KeyError):
        tables["filled"](f"<!--={of}-->1.0<!--/-->")


NAMED = [(page, name) for page in PAGES for name in re.findall(r"<!-- (\w+) -->", PAGES[page])]


@pytest.mark.parametrize(("page", "name"), NAMED)
def test_every_table_is_that_of_the_scores_and_a_number_changed_by_hand_is_not(page, name):
    before, mark, after = PAGES[page].partition(f"<!-- {name} -->")
    changed = before + mark + re.sub(r"\d+\.\d+", "43.31", after, count=1)
    assert changed != PAGES[page]
    assert tables["filled"](changed) == PAGES[page]


def test_the_pages_of_results_are_those_of_the_scores():
    pages = tables["results"]()
    there = {
        path: path.read_text() for path in RESULTS.glob("*.md") if path != RESULTS / "README.md"
    }
    assert pages == there
    csvs = {path.stem for path in RESULTS.glob("*.csv")}
    assert {path.stem for path in pages} == csvs - {"protocols"}


def test_no_line_begins_with_a_filled_number_as_markdown_takes_it_for_html():
    pages = [*PAGES.values(), *(path.read_text() for path in RESULTS.glob("*.md"))]
    assert not re.findall(r"^ *<!--=.*", "\n".join(pages), re.MULTILINE)


def test_an_unknown_table_is_refused():
    with pytest.raises(KeyError, match="digit"):
        tables["filled"]("<!-- digit -->\n<!-- -->")
