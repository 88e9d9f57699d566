"""The commands of docs/studies.md run, at the size of --quick."""

import pytest

from cape_support import ROOT, block_with, shell

pytest.importorskip("timm")
pytestmark = pytest.mark.release


def test_the_commands_ask_list_run_and_report(tmp_path):
    script = block_with(ROOT / "docs" / "studies.md", "cape-run --list")
    commands = [line.split("#")[0].strip() for line in script.splitlines()]
    programs = [command.split()[0] for command in commands]
    assert programs == ["cape-run", "cape-run", "cape-report"]
    commands[1] += " --quick 'run=[sinpos_low,cape_low]'"
    commands[2] += " --quick 'run=[sinpos_low,cape_low]'"
    assert "multi30k_short" in shell("\n".join(commands), tmp_path)
    assert list((tmp_path / "out" / "digit_images").glob("**/index.html"))
