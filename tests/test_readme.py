"""README: its Python runs, its variants, extras and files exist.

Its shell commands run in tests/fairseq/test_readme.py, tests/espnet/test_readme.py and
studies/tests/test_readme.py.
"""

import re

import pytest

from cape_support import ROOT, blocks

README = (ROOT / "README.md").read_text("utf-8")
TIMM, CORE = blocks(README, "python")
PAGES = [
    ROOT / "README.md",
    *(ROOT / "integrations").glob("*/README.md"),
    *(ROOT / "docs").glob("*.md"),
]


def test_the_core_without_a_host_runs():
    names: dict = {}
    exec(CORE, names)
    assert names["out"].shape == (2, 8, 7, 64)


def test_timms_quickstart_makes_the_models_that_it_says(capsys):
    timm = pytest.importorskip("timm")
    (trained,) = re.findall(r"backbones with weights \(`(\w+)`\)", README)
    assert timm.models.is_model_pretrained(trained)
    assert "pretrained" not in TIMM  # the first example needs no network
    names: dict = {}
    exec(TIMM, names)
    assert names["model"].num_classes == 10
    assert capsys.readouterr().out == re.findall(r"# (torch\.Size\(.*?\)):", TIMM)[0] + "\n"


def test_the_extras_and_the_targets_exist():
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    extras = re.findall(r"\.\[(\w+)\]", README)
    assert set(extras) == {"timm", "fairseq", "espnet", "all"}
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras)
    targets = re.findall(r"`make (\w+)`", README)
    assert {"demo", "docs"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_every_file_that_a_page_links_to_exists(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", text)
    links = [link for link in links if not link.startswith(("http://", "https://"))]
    assert not [link for link in links if not (page.parent / link).exists()]
