"""The pictures and the published numbers of docs/evidence.md, and the models that it names."""

import itertools
import re
import runpy
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[3]
tool = runpy.run_path(str(ROOT / "tools" / "docs" / "figures.py"))
PAGE = (ROOT / "docs" / "evidence.md").read_text("utf-8")
PUBLISHED = pd.read_csv(ROOT / "docs" / "published.csv", dtype=str, keep_default_na=False)


@pytest.fixture(scope="module")
def figures():
    return tool["figures"]()


def test_every_picture_is_of_the_scores_and_published_numbers_of_today(figures):
    kept = {path.stem: path for path in (ROOT / "docs" / "figures").glob("*.png")}
    assert sorted(kept) == sorted(figures)
    for name, panels in figures.items():
        with Image.open(kept[name]) as picture:
            assert picture.text["Digest"] == tool["digest"](panels), f"{name}: make figures"
        assert kept[name].stat().st_size < 200_000


def test_the_page_shows_every_picture(figures):
    assert sorted(re.findall(r"\(figures/(\w+)\.png\)", PAGE)) == sorted(figures)


def test_a_changed_number_interval_or_label_is_another_picture(figures):
    panels = figures["image_sizes"]
    line = panels[0].lines[1]
    kept = tool["digest"](panels)
    for other in (
        line._replace(y=(line.y[0] + 0.1, *line.y[1:])),
        line._replace(low=(line.low[0] - 0.1, *line.low[1:])),
        line._replace(label="another"),
    ):
        assert tool["digest"]([panels[0]._replace(lines=[other]), panels[1]]) != kept


def test_a_line_has_the_scores_and_the_intervals_of_the_pages(figures):
    (line,) = (one for one in figures["image_sizes"][0].lines if one.label == "ropepos")
    found = tool["scores_of"]("cifar10_sizes", "sizes").found["rope", "64"]
    at = line.x.index(2.0)  # 64 pixels after 32
    assert (line.y[at], line.low[at], line.high[at]) == found[:3]


def test_published_lines_are_in_the_order_of_sizes(figures):
    (mixed,) = (one for one in figures["image_sizes"][1].lines if one.label == "timm's rope_mixed")
    assert mixed.x == pytest.approx([144 / 224, 1, 384 / 224, 512 / 224], abs=1e-3)
    assert mixed.y == (74.2, 80.9, 81.8, 79.1)


def test_the_tables_of_the_page_are_the_published_numbers():
    assert tool["page"](PAGE) == PAGE, "make figures"
    (row,) = re.findall(r"^\| rotary, mixed .*$", PAGE, flags=re.MULTILINE)
    assert [cell.strip() for cell in row.split("|")[2:4]] == ["80.9", "81.8"]


def test_every_published_number_has_its_source_and_what_was_seen_of_it():
    for column in ("source", "link", "model", "trained", "seen"):
        assert PUBLISHED[column].str.strip().all(), column
    assert PUBLISHED["link"].str.startswith("https://").all()
    assert pd.to_numeric(PUBLISHED["value"]).notna().all()
    once = ["situation", "variant", "column", "source"]
    assert not PUBLISHED.duplicated(once).any()


def expanded(pattern):
    """``a_{b,c}`` → a_b, a_c."""
    parts = [part.split(",") for part in re.split(r"[{}]", pattern)]
    return ["".join(one) for one in itertools.product(*parts)]


def test_every_model_of_timm_that_the_page_names_exists_and_has_weights():
    timm = pytest.importorskip("timm")
    known = {name.partition(".")[0] for name in timm.list_models(pretrained=True)}
    names = re.findall(r"`((?:vit|eva02)_[\w{},*]+)`", PAGE)
    assert len(names) > 8
    for name in itertools.chain(*map(expanded, names)):
        pattern = re.compile(name.replace("*", r"\w+"))
        assert any(map(pattern.fullmatch, known)), name
