"""The numbers in the pages that tools/docs/tables.py fills are those of the scores."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
tables = runpy.run_path(str(ROOT / "tools" / "docs" / "tables.py"))
RESULTS = ROOT / "studies" / "results"
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in tables["PAGES"]}


def test_every_page_of_a_study_is_listed_and_those_of_three_trainings_are_in_the_navigation():
    page = PAGES["studies/results/README.md"]
    listed = re.findall(r"\[(\w+)\]\(\1\.md\)", page)
    assert sorted(listed) == sorted({path.stem for path in RESULTS.glob("*.md")} - {"README"})
    shown = page.partition("{toctree}")[2].partition("```")[0].split()[1:]
    assert shown == re.findall(r"^\| \[(\w+)\].* [3-9] +\|$", page, re.MULTILINE)
    assert {*shown} < {*listed}


def test_the_part_of_a_studys_page_that_is_written_by_hand_has_150_words_at_most():
    for page in {*RESULTS.glob("*.md")} - {RESULTS / "README.md"}:
        text = page.read_text("utf-8")
        parts = re.findall(r"<!-- read -->\n(.*?)<!-- /read -->", text, re.DOTALL)
        assert all(len(re.sub("<!--.*?-->", "", one).split()) <= 150 for one in parts), page.stem


@pytest.mark.parametrize("page", ["README.md", "docs/paper.md"])
def test_a_cell_holds_one_number_with_its_interval(page):
    rows = [line for line in PAGES[page].splitlines() if line.startswith("|")]
    assert rows
    for row in rows:
        for cell in row.strip("|").split("|"):
            assert len(re.findall(r"\d \[", re.sub(r"<!--.*?-->", "", cell))) <= 1, row


CORNER = ["nopos", "rope", "rope_gap", "rope_moved", "cape_low", "cape_rope", "abspos"]


@pytest.fixture(scope="module")
def corner():
    """Scores of digits in the corner, and the cells of a column of them."""
    scores = tables["scores_of"]("digit_canvas_long", "shift")
    return scores, tables["column"](scores, "corner", CORNER, "abspos")


@pytest.mark.parametrize(
    ("study", "test", "condition", "bold"),
    [
        ("digit_canvas_long", "shift", "corner", ["rope_moved"]),
        ("digit_canvas_long", "shift", "0", []),  # its best is not significantly better
    ],
)
def test_bold_is_the_best_of_a_column_if_it_is_significantly_better_than_the_hosts_own(
    study, test, condition, bold
):
    scores = tables["scores_of"](study, test)
    cells = tables["column"](scores, condition, CORNER, "abspos")
    assert [one for one, cell in cells.items() if cell.startswith("**")] == bold
    best = max(CORNER, key=lambda one: scores.found[one, condition].value)
    assert scores.difference(best, "abspos", condition).differs() == bool(bold)


def test_a_cell_whose_trainings_lie_far_apart_is_their_range(corner):
    scores, cells = corner
    values = scores.values["cape_low", "corner"]
    assert cells["cape_low"] == f"{values.min():.0f} to {values.max():.0f} (3)"
    assert not cells["rope_gap"].startswith("**")


def test_a_cell_of_another_number_of_trainings_says_so(corner):
    scores, cells = corner
    assert cells[""] == "6"
    for name in CORNER:
        count = len(scores.values[name, "corner"])
        assert cells[name].endswith(f"({count})") == (count != 6)


def test_a_column_of_errors_has_its_lowest_in_bold():
    scores = tables["scores_of"]("digits_rope", "length")
    cells = tables["column"](scores, "30–40", ["nopos", "sinpos", "alibi", "relpos_2.5s"], "sinpos")
    lowest = min((float(cells[name].strip("*")), name) for name in ("nopos", "sinpos", "alibi"))
    assert [one for one, cell in cells.items() if "*" in cell] == [lowest[1]]


def test_each_table_has_the_floor_and_the_hosts_own():
    for shown in tables["TABLES"].values():
        if "columns" in shown:  # else they are costs
            assert {"nopos", shown["own"]} <= {*shown["rows"].values()}


@pytest.mark.parametrize(
    ("evaluation", "pair", "condition"),
    [
        ("bleu", ("cape", "relpos"), "at most 12"),
        ("bleu_long", ("relpos", "cape"), "more than 15"),
        ("loss_long", ("cape", "sinpos"), "14–16"),
        ("loss_long", ("relpos", "cape"), "26–50"),
    ],
)
def test_what_the_claims_say_of_captions_the_new_trainings_alone_say_too(
    evaluation, pair, condition
):
    found = [
        tables["scores_of"]("multi30k_short", evaluation, seeds).difference(*pair, condition)
        for seeds in ((), (4, 5, 6))
    ]
    assert found[0].differs() == found[1].differs()
    assert not found[0].differs() or (found[0].value > 0) == (found[1].value > 0)


def test_a_number_of_some_trainings_is_of_these_alone():
    of = "multi30k_short:bleu_long:cape:more than 15:alone"
    parts = [float(tables["number"](f"{of}:seeds {seeds}")) for seeds in ("1 2 3", "4 5 6")]
    assert float(tables["number"](of)) == pytest.approx(sum(parts) / 2, abs=0.1)
    assert parts[0] != parts[1]


NUMBERS = [(page, of) for page in PAGES for of in re.findall(r"<!--=(.+?)-->", PAGES[page])]


@pytest.mark.release
def test_every_number_is_that_of_the_scores_and_one_changed_by_hand_is_not():
    assert len(NUMBERS) > 30
    for page in {page for page, _ in NUMBERS}:
        changed = re.sub(r"(<!--=.+?-->).*?(<!--/-->)", r"\g<1>43.31\2", PAGES[page])
        assert changed != PAGES[page]
        assert tables["filled"](changed) == PAGES[page]


@pytest.mark.parametrize(
    "of",
    [
        "canvas:shift:cape_rope−rope:17",
        "canvas:shift:cope:16",
        "canvas:shift:rope:0:seeds 9",
        "step:vit_small:cope/rope",
    ],
)
def test_a_number_that_was_not_measured_is_refused(of):
    with pytest.raises(KeyError):
        tables["filled"](f"<!--={of}-->1.0<!--/-->")


NAMED = [(page, name) for page in PAGES for name in re.findall(r"<!-- (\w+) -->", PAGES[page])]


@pytest.mark.parametrize(("page", "name"), NAMED)
def test_every_table_is_that_of_the_scores_and_a_number_changed_by_hand_is_not(page, name):
    before, mark, after = PAGES[page].partition(f"<!-- {name} -->")
    number = re.compile(r"\d+\.\d+|\d+(?= +\|$)", re.MULTILINE)
    changed = before + mark + number.sub("43.31", after, count=1)
    assert changed != PAGES[page]
    assert tables["filled"](changed) == PAGES[page]


@pytest.mark.release
def test_the_pages_of_results_are_those_of_the_scores():
    pages = tables["results"]()
    there = {
        path: path.read_text() for path in RESULTS.glob("*.md") if path != RESULTS / "README.md"
    }
    assert pages == there
    csvs = {path.stem for path in RESULTS.glob("*.csv")}
    assert {path.stem for path in pages} == csvs - tables["NO_SCORES"]


def test_no_line_begins_with_a_filled_number_as_markdown_takes_it_for_html():
    pages = [*PAGES.values(), *(path.read_text() for path in RESULTS.glob("*.md"))]
    assert not re.findall(r"^ *<!--=.*", "\n".join(pages), re.MULTILINE)


def test_an_unknown_table_is_refused():
    with pytest.raises(KeyError, match="digit"):
        tables["filled"]("<!-- digit -->\n<!-- -->")
