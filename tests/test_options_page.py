"""docs/options.md: the script makes it of the hosts' options, and every option stands there."""

import runpy

import pytest

from cape_support import ROOT

for host in ("timm", "fairseq", "espnet2", "transformers"):
    pytest.importorskip(host)


def test_the_page_is_what_the_script_makes_with_a_row_for_each_option():
    text = (ROOT / "docs" / "options.md").read_text("utf-8")
    made = runpy.run_path(str(ROOT / "tools" / "docs" / "options.py"))
    assert made["page"](text) == text, "python tools/docs/options.py"
    assert made["page"](text.replace("half a patch", "")) == text
    rows = {cells[0]: cells for line in text.splitlines() if (cells := line[2:-2].split(" | "))}
    _, _, takers, *defaults = rows["`max_global_shift`"]
    assert takers == "`cape`; in timm `cape_rope` too"
    assert defaults == ["0.5 half images", "5 tokens", "30 seconds", "5 tokens"]
    for host in made["HOSTS"]:
        assert {f"`{name}`" for name in made["options"](host)} <= rows.keys()
    assert "fire" not in text  # of another package
