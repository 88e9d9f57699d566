"""The pictures of README and docs/variants.md: what they show, and that files are what is drawn."""

import re
import runpy
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread

from cape_support import SEQUENCES

DOCS = Path(__file__).resolve().parents[2] / "docs"
TOOLS = DOCS.parent / "tools" / "docs"
picture = runpy.run_path(str(TOOLS / "draw_picture.py"))
of_variants = runpy.run_path(str(TOOLS / "draw_variants.py"))


def assert_same(drawn: Path, kept: Path) -> None:
    one, other = (torch.tensor(imread(path)) for path in (drawn, kept))
    assert one.shape == other.shape
    assert (one - other).abs().mean() < 2 / 255  # fonts may differ


def test_the_file_is_what_is_drawn(tmp_path):
    picture["draw"](tmp_path / "drawn.png")
    assert_same(tmp_path / "drawn.png", DOCS / "cape.png")


def test_every_variant_that_does_something_has_its_picture_on_the_page():
    shown = re.findall(r"\(variants/(\w+)\.png\)", (DOCS / "variants.md").read_text("utf-8"))
    assert sorted(shown) == sorted(of_variants["SHOWN"])
    assert {*shown, "nopos", "relpos_first"} == {*SEQUENCES}  # relpos in the first layer


@pytest.mark.parametrize("pos", of_variants["SHOWN"])
def test_samples_differ_in_training_where_the_variant_augments_and_the_file_is_what_is_drawn(
    pos, tmp_path
):
    one, another, evaluation = of_variants["panels"](pos).values()
    augments = pos.startswith(("cape", "random", "pose"))
    assert torch.equal(one, another) != augments
    assert torch.equal(one, evaluation) != augments
    of_variants["draw"](pos, tmp_path / "drawn.png")
    assert_same(tmp_path / "drawn.png", DOCS / "variants" / f"{pos}.png")
