"""README's commands of studies run, at the size of --quick."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("timm")
pytestmark = pytest.mark.release

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_commands_ask_list_run_and_report(tmp_path):
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    (script,) = (block for block in blocks if "cape-run" in block)
    commands = [line.split("#")[0].strip() for line in script.splitlines()]
    programs = [command.split()[0] for command in commands]
    assert programs == ["cape-run", "cape-run", "cape-run", "cape-report"]
    make = README.parent / "integrations" / "timm" / "make_digit_images.py"
    subprocess.run([sys.executable, make, "--out", tmp_path / "DIR"], check=True)
    commands[0] += " --quick --variants nopos rope"
    commands[2] += " --quick --variants sinpos_low cape_low"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", "\n".join(commands)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "multi30k_short" in done.stdout
    assert list((tmp_path / "out" / "my_images").glob("runs/nopos-*/scores.csv"))
    assert list((tmp_path / "out" / "digit_images").glob("**/index.html"))
