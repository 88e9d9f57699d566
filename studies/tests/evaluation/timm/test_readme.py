"""The evaluations of integrations/timm/README.md."""

import argparse
import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("timm")

from cape_studies.evaluation.timm.options import TimmOptions

README = Path(__file__).resolve().parents[4] / "integrations" / "timm" / "README.md"


def test_the_evaluations_of_the_readme_parse(tmp_path):
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(), flags=re.DOTALL)
    block = "\n".join(one for one in blocks if "cape-timm-eval" in one)
    said = 'said() { printf "%s\\n" "$@" end; }; cape-timm-eval() { said "$@"; }; '
    others = "python() { :; }; cape-report() { :; }; "
    done = subprocess.run(
        ["bash", "-c", said + others + block],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    tests = set()
    for command in done.stdout.split("\nend\n")[:-1]:
        parser = TimmOptions.add_to(argparse.ArgumentParser())
        read = TimmOptions.read(parser.parse_args(command.split("\n")))
        tests.add((tuple(read.extent), read.tta, bool(read.strategies)))
    assert tests >= {
        ((), False, False),
        ((1.0, "ratio", "sqrt"), False, False),
        ((), True, False),
        ((), False, True),
    }
