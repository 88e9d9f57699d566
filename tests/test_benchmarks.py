"""The benchmarks run, at sizes where their numbers mean nothing, and see what goes wrong."""

import csv
import importlib.util
import math
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("tabulate")

import cape_support
from cape_support import IMAGES, ROOT, SEQUENCES

VARIANTS_OF = {"vit_small": ("abspos", *IMAGES), "wmt_base": SEQUENCES, "asr_36": SEQUENCES}
HOSTS = {"vit_small": "timm", "wmt_base": "fairseq", "asr_36": "espnet2"}
HERE = {host for host in HOSTS.values() if importlib.util.find_spec(host)}


def gpu(*arguments: object, **environment: object) -> tuple[int, str]:
    """Exit status and output of a part of gpu.sh, tiny and on the CPU."""
    environment = {"PYTHON": sys.executable, "DRY_RUN": 1, "PYTHONPATH": ROOT, **environment}
    return cape_support.run("bash", "benchmarks/gpu.sh", *arguments, cwd=ROOT, **environment)


def outcomes(report: Path) -> list[str]:
    """What became of the steps: the line below each, as in "Parity: done, 20 s"."""
    lines = report.read_text().splitlines()
    return [found[1] for line in lines if (found := re.fullmatch(r"[^:]+: (.*), \d+ s", line))]


@pytest.mark.parametrize(
    ("part", "given", "status", "says"),
    [
        (7, {}, 2, "'7'"),
        (1, {"BEFORE": "nowhere"}, 2, "BEFORE=nowhere "),
        (3, {"TIMM_SCRIPTS": "nowhere"}, 0, "left out: no train.py of timm"),
    ],
)
def test_what_a_part_of_the_gpus_script_lacks_is_told(part, given, status, says, tmp_path):
    found, said = gpu(part, OUT=tmp_path, **given)
    assert found == status
    assert says in said


def test_what_fails_there_is_reported_and_the_rest_still_runs(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('torch is broken')")
    status, said = gpu(1, OUT=tmp_path / "out", PYTHONPATH=tmp_path)
    assert status == 1
    assert "ImportError: torch is broken" in said
    assert said.count(": FAILED, ") == 3 + ("timm" in HERE)


@pytest.mark.release
@pytest.mark.skipif("not HERE", reason="needs a host")
def test_every_variant_is_compared_in_every_host_that_is_here(tmp_path):
    status, said = gpu(1, OUT=tmp_path)
    assert status == 0, said[-3000:]
    assert {*outcomes(tmp_path / "gpu1.md")} <= {"done", "left out: no timm here"}
    rows = list(csv.DictReader((tmp_path / "gpu1-variants.csv").open()))
    compared = {(row["case"], row["variant"]) for row in rows if not row["compiled"]}
    here = {case: all_ for case, all_ in VARIANTS_OF.items() if HOSTS[case] in HERE}
    assert compared == {(f"tiny {case}", pos) for case, all_ in here.items() for pos in all_}
    assert all(float(row["step"]) > 0 and math.isfinite(float(row["memory"])) for row in rows)
    parameters = {(row["case"], row["variant"]): float(row["parameters"]) for row in rows}
    for case in (f"tiny {case}" for case in here):
        assert 1 <= parameters[case, "cape"] == parameters[case, "sinpos"]
        assert parameters[case, "sinpos"] < parameters[case, "abspos"]


@pytest.mark.release
def test_the_tests_for_a_gpu_run_on_the_cpu_and_kernels_of_the_parts_without_any_host(tmp_path):
    status, said = gpu(2, OUT=tmp_path)
    assert status == 0, said[-3000:]
    found = outcomes(tmp_path / "gpu2.md")
    assert {*found} <= {"done", "left out: no timm here", "left out: no fairseq here"}
    assert found[0] == "done"
    assert "passed" in (tmp_path / "gpu2.md").read_text()
    path = tmp_path / "kernels.csv"
    command = (sys.executable, "benchmarks/kernels.py", "--cases", "--csv", path)
    _, said = cape_support.run(*command, cwd=ROOT, PYTHONPATH=ROOT)
    assert "rotation of a layer, rope, bytes a channel" in said
    assert all(int(row["forward"]) > 0 for row in csv.DictReader(path.open()))
