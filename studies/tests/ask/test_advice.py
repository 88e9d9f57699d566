"""What README and docs say of the studies of a user's data is what these train."""

import json
import re

import pytest

from cape_studies import config, yamls
from cape_support import ROOT

ASK = (ROOT / "docs" / "ask.md").read_text("utf-8")
ANSWER = json.loads((ROOT / "docs" / "answers" / "my_images.json").read_text("utf-8"))


@pytest.mark.parametrize("name", ["my_images", "my_sentences", "my_text", "my_recordings"])
def test_the_page_lists_the_variants_that_are_trained(name):
    (trains,) = re.findall(rf"^\| `{name}` \|.*\| (.*?) \|$", ASK, re.MULTILINE)
    listed = re.sub(r" \(.*?\)", "", trains.split(": ")[1]).replace(" and ", ", ").split(", ")
    assert listed == [*config.load(yamls.find(name)).variants]


def test_cape_rope_of_images_is_what_readme_recommends():
    (row,) = re.findall(r"`cape_rope` with `(\w+)=(.*?)`", README)
    kwargs = images("cape_rope")["model-kwargs"]
    assert kwargs == {row[0]: float(row[1])}


README = (ROOT / "README.md").read_text("utf-8")


def images(variant):
    return config.load(yamls.find("my_images")).variants[variant].options


def test_timms_own_rotary_vit_is_asked_with_what_timm_offers_for_other_sizes():
    model = "vit_small_patch16_rope_224"
    assert images("timm_rope")["model"] == images("timm_rope_dinov3")["model"] == model
    assert "ref_feat_shape" in images("timm_rope")["model-kwargs"]
    assert images("timm_rope_dinov3")["model-kwargs"]["rope_type"] == "dinov3"
    assert "ropepos" in images("rope")["model"]  # ours, which the page does not call timm's
    assert "rope (`ropepos`)" in ASK


def test_the_example_of_an_answer_says_below_it_what_the_answer_says():
    (words,) = re.findall(r"^So on these images: .*?\n\n", ASK, re.MULTILINE | re.DOTALL)
    named = {*re.findall(r"`(\w+)`", words)}
    worse = {one for of in ANSWER["ranges"].values() for one in of["worse_on_these_items"]}
    best = {of["best"] for of in ANSWER["ranges"].values()}
    assert worse <= named <= worse | best
    assert not any(of["worse"] for of in ANSWER["ranges"].values())
