"""The pictures and tables of docs/evidence.md, and the models that it names."""

import itertools
import re
import runpy
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[3]
tool = runpy.run_path(str(ROOT / "tools" / "docs" / "figures.py"))
PAGE = (ROOT / "docs" / "evidence.md").read_text("utf-8")


@pytest.fixture(scope="module")
def figures():
    return tool["figures"]()


@pytest.mark.release
def test_every_picture_is_of_the_scores_and_published_numbers_of_today(figures):
    kept = {path.stem: path for path in (ROOT / "docs" / "figures").glob("*.png")}
    assert sorted(kept) == sorted(figures)
    for name, panels in figures.items():
        with Image.open(kept[name]) as picture:
            assert picture.text["Digest"] == tool["digest"](panels), f"{name}: make figures"
        assert kept[name].stat().st_size < 200_000


def test_the_page_shows_every_picture(figures):
    assert sorted(re.findall(r"\(figures/(\w+)\.png\)", PAGE)) == sorted(figures)


def test_a_line_has_the_scores_and_the_intervals_of_the_pages(figures):
    (line,) = (one for one in figures["image_sizes"][0].lines if one.label == "ropepos")
    found = tool["scores_of"]("cifar10_sizes", "sizes").found["rope", "64"]
    at = line.x.index(2.0)  # 64 pixels after 32
    assert (line.y[at], line.low[at], line.high[at]) == found[:3]


def test_the_tables_of_the_page_are_the_published_numbers():
    assert tool["page"](PAGE) == PAGE, "make figures"
    (row,) = re.findall(r"^\| rotary, mixed .*$", PAGE, flags=re.MULTILINE)
    assert [cell.strip() for cell in row.split("|")[2:4]] == ["80.9", "81.8"]


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
