"""docs/options.md: the script makes it of the hosts' options, and every option stands there."""

import re
import runpy

import pytest

from cape_support import ROOT

for host in ("timm", "fairseq", "espnet2", "transformers"):
    pytest.importorskip(host)

PAGE = (ROOT / "docs" / "options.md").read_text("utf-8")
MADE = runpy.run_path(str(ROOT / "tools" / "docs" / "options.py"))
ROWS = {cells[0]: cells for line in PAGE.splitlines() if (cells := line[2:-2].split(" | "))}


def test_the_page_is_what_the_script_makes():
    assert MADE["page"](PAGE) == PAGE, "python tools/docs/options.py"
    changed = PAGE.replace("half a patch", "")
    assert MADE["page"](changed) == PAGE != changed


def test_a_row_says_who_takes_an_option_and_what_each_host_has_by_default():
    _, _, takers, *defaults = ROWS["`max_global_shift`"]
    assert takers == "`cape`; in timm `cape_rope` too"
    assert defaults == ["0.5 half images", "5 tokens", "30 seconds", "5 tokens"]
    assert ROWS["`extent`"][2] == "all but `nopos`"
    assert ROWS["`cape_low`"][1] == "`cape` with `frequency_scale=0.1`"


@pytest.mark.parametrize("host", MADE["HOSTS"])
def test_every_option_of_our_variants_has_a_row_and_those_of_other_packages_have_none(host):
    assert {f"`{name}`" for name in MADE["options"](host)} <= ROWS.keys()
    assert not re.search("fire", PAGE)
