"""README: its Python runs; its models, variants, options, extras and files exist.

Its shell commands run in tests/fairseq/test_readme.py, tests/espnet/test_readme.py and
studies/tests/test_readme.py.
"""

import re

import pytest

from cape_plugins import variants
from cape_support import ROOT, block_with, blocks

README = ROOT / "README.md"
TEXT = README.read_text("utf-8")
INLINE = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL))
PAGES = [README, *(ROOT / "integrations").glob("*/README.md"), *(ROOT / "docs").glob("*.md")]
EXAMPLE = block_with(README, "import Positions", "python")


@pytest.mark.parametrize("pos", variants.names(1))
def test_the_core_without_a_host_runs_with_every_variant(pos):
    asked = {"max_global_shift", "max_local_shift", "relpos_context", "random_range", "pose_range"}
    asked = (asked | {"abspos_context"}) & variants.get(pos, 1).options(1).keys()
    named = re.search(r"# or ([\w, ]+);", EXAMPLE)[1]
    assert not asked or pos not in named.split(", ")  # which need none
    given = "".join(f", {name}=9.0" for name in asked)
    names: dict = {}
    exec(EXAMPLE.replace('"rope"', f'"{pos}"').replace("layers=1", f"layers=1{given}"), names)
    assert names["out"].shape == (2, 8, 7, 64)


def test_timms_example_prints_what_it_says_and_timm_knows_every_model_that_it_names(capsys):
    timm = pytest.importorskip("timm")
    example = block_with(README, "timm.create_model", "python")
    assert "pretrained" not in example  # the first example needs no network
    exec(example, {})
    assert capsys.readouterr().out == re.findall(r"# (torch\.Size\(.*\))", example)[0] + "\n"
    text = "\n".join([*INLINE, *blocks(README, "python")])
    named = {*re.findall(r"\bvit_\w+_\w*\d\w*\b", text)}
    assert named
    assert not [name for name in named if not timm.models.is_model(name)]
    assert all(timm.models.is_model_pretrained(name) for name in named if "dinov3" in name)


def test_every_variant_option_extra_and_target_that_it_names_is_one():
    every = {(pos, axes) for axes in (1, 2) for pos in variants.names(axes)}
    options = {name for pos, axes in every for name in variants.get(pos, axes).options(axes)}
    options |= {"pos", "data", "list"}  # of hosts and cape-run
    options |= {"model", "img_size", "pretrained", "dynamic_img_size", "ref_feat_shape"}  # of timm
    options |= {"device", "lenpen", "ctc_weight"}  # of train.py, fairseq, ESPnet
    named = re.findall(r"--([\w-]+)|(\w+)=|(\w+): ", "\n".join(INLINE))
    assert {"".join(one).replace("-", "_") for one in named} <= options
    typed = {*re.findall(r"(?:--pos |pos: )(\w+)", TEXT)}
    assert typed <= {pos for pos, _ in every} | {"espnet_rel_pos"}
    one, others = re.search(r"\.\[(\w+)\]\" +# or ([\w, ]+);", TEXT).groups()
    project, makefile = (
        (ROOT / name).read_text("utf-8") for name in ("pyproject.toml", "Makefile")
    )
    for extra in (one, *others.split(", ")):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE)
    targets = re.findall(r"^make (\w+)", TEXT, re.MULTILINE)
    assert all((named, typed, targets))
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_every_file_that_a_page_links_to_exists(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", text)
    links = [link for link in links if not link.startswith(("http://", "https://"))]
    assert not [link for link in links if not (page.parent / link).exists()]
