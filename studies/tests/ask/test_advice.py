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


def test_the_example_of_an_answer_says_below_it_what_the_answer_says():
    (words,) = re.findall(r"^So on these images: .*?\n\n", ASK, re.MULTILINE | re.DOTALL)
    named = {*re.findall(r"`(\w+)`", words)}
    worse = {one for of in ANSWER["ranges"].values() for one in of["worse_on_these_items"]}
    best = {of["best"] for of in ANSWER["ranges"].values()}
    assert worse <= named <= worse | best
    assert not any(of["worse"] for of in ANSWER["ranges"].values())
