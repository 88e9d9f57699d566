"""integrations/timm/run_timm_tests.py, the comparison with timm's own tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("timm")

SCRIPT = Path(__file__).parents[2] / "integrations" / "timm" / "run_timm_tests.py"


def run(*arguments: object) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env=environment
    )


def test_a_folder_that_is_no_checkout_is_named(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        f"{tmp_path / 'tests' / 'test_models.py'} does not exist: "
        "give a checkout of pytorch-image-models"
    )


def test_timms_own_tests_pass_where_they_pass_for_timms_vit():
    checkout = os.environ.get("TIMM_CHECKOUT")
    if not checkout:
        pytest.skip("TIMM_CHECKOUT names no checkout of pytorch-image-models")
    done = run(checkout, "--models", "vit_tiny_patch4_cape_32")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "ours pass wherever the stock model passes" in done.stdout
    assert done.stdout.count("1 passed") >= 9
    nothing = run(checkout, "--models", "resnet*")
    assert "no model of cape-plugins matches resnet*" in nothing.stderr
