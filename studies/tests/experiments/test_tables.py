"""The numbers in the pages that tools/docs/tables.py fills are those of the scores."""

import re
import runpy
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[3]
tables = runpy.run_path(str(ROOT / "tools" / "docs" / "tables.py"))
RESULTS = ROOT / "studies" / "results"
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in tables["PAGES"]}


CORNER = ["nopos", "rope", "rope_gap", "rope_moved", "cape_low", "cape_rope", "abspos"]


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
        "canvas:shift:cope:16",
        "canvas:shift:rope:0:seeds 9",
        "step:vit_small:cope/rope",
        "multi30k_longer:bleu_chosen−bleu:sinpos:more than 15",
    ],
)
def test_a_number_that_was_not_measured_is_refused(of):
    with pytest.raises(KeyError):
        tables["filled"](f"<!--={of}-->1.0<!--/-->")


def test_two_searches_are_compared_training_by_training():
    shown = tables["number"]("multi30k_longer:bleu_chosen−bleu:sinpos:at most 12")
    rows = pd.read_csv(RESULTS / "multi30k_longer.csv")
    rows = rows[(rows["variant"] == "sinpos") & (rows["metric"] == "bleu")]
    of = rows.pivot(index="seed", columns="evaluation", values="value")
    apart = (of["bleu_chosen"] - of["bleu"]).mean()
    assert apart < -1
    assert shown.startswith(f"−{-apart:.1f} [")


#: of many studies, which takes seconds
LONG = "integrations/espnet/README.md", "studies/results/README.md"
NAMED = [
    pytest.param(page, name, marks=pytest.mark.release if page in LONG else [])
    for page in PAGES
    for name in re.findall(r"<!-- (\w+) -->", PAGES[page])
]


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
