"""The benchmarks run, at sizes where their numbers mean nothing, and see what goes wrong."""

import csv
import importlib.util
import itertools
import math
import os
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
STEPS = "gpu1-variants.csv"


def run(*command: object, **environment: object) -> tuple[int, str]:
    """Exit status and output."""
    return cape_support.run(*command, cwd=ROOT, **{"PYTHONPATH": ROOT, **environment})


def variants(*arguments: object, **environment: object) -> tuple[int, str]:
    return run(sys.executable, "benchmarks/variants.py", *arguments, **environment)


def gpu(*arguments: object, **environment: object) -> tuple[int, str]:
    environment = {"PYTHON": sys.executable, "DRY_RUN": 1, **environment}
    return run("bash", "benchmarks/gpu.sh", *arguments, **environment)


def outcomes(report: Path) -> list[str]:
    """What became of the steps: the line below each, as in "Parity: done, 20 s"."""
    lines = report.read_text().splitlines()
    return [found[1] for line in lines if (found := re.fullmatch(r"[^:]+: (.*), \d+ s", line))]


@pytest.fixture
def broken(tmp_path):
    """A folder for PYTHONPATH in which the import of a package fails."""

    def make(package: str) -> Path:
        (tmp_path / f"{package}.py").write_text(f"raise ImportError('{package} is broken')")
        return tmp_path

    return make


@pytest.mark.release
def test_a_host_that_does_not_import_is_left_out_and_named(broken):
    path = f"{broken('timm')}:{ROOT}"
    status, said = variants("--tiny", "--cases", "vit_small", PYTHONPATH=path)
    assert status == 1
    assert "timm is broken" in said


@pytest.mark.release
def test_a_unit_that_a_case_lacks_is_refused_before_anything_runs():
    status, said = variants("--cases", "vit_small", "--unit", "relpos")
    assert status == 2
    assert "--unit relpos" in said.splitlines()[-1]
    assert "cape_rope" in said.splitlines()[-1]  # what it has


@pytest.mark.release
def test_the_kernels_of_the_parts_are_printed_without_any_host(tmp_path):
    path = tmp_path / "kernels.csv"
    _, said = run(sys.executable, "benchmarks/kernels.py", "--cases", "--csv", path)
    assert "rotation of a layer, rope, bytes a channel" in said
    rows = list(csv.DictReader(path.open()))
    assert all(int(row["forward"]) > 0 for row in rows)


def test_a_part_that_there_is_not_is_refused():
    status, said = gpu(7)
    assert status == 2
    assert "'7'" in said


def test_another_checkout_without_the_package_is_refused(tmp_path):
    status, said = gpu(1, BEFORE=tmp_path, OUT=tmp_path / "out")
    assert status == 2
    assert f"BEFORE={tmp_path} " in said


def test_what_fails_there_is_reported_and_the_rest_still_runs(broken, tmp_path):
    status, said = gpu(1, OUT=tmp_path / "out", PYTHONPATH=broken("torch"))
    assert status == 1
    assert "ImportError: torch is broken" in said
    assert said.count(": FAILED, ") == 3 + ("timm" in HERE)


# The process ends, without a goodbye, when the second variant is to be built.
CUT_OFF = """
import os, sys, variants

builder = variants.builder

def until_the_second(*given):
    build = builder(*given)
    return lambda pos: build(pos) if pos == "nopos" else os._exit(9)

variants.builder = until_the_second
variants.main()
"""


@pytest.mark.release
@pytest.mark.skipif("timm" not in HERE, reason="needs timm")
def test_a_run_that_is_cut_off_has_lost_no_row(tmp_path):
    path = tmp_path / "rows.csv"
    given = ("--tiny", "--cases", "vit_small", "--pos", "cape", "--rounds", 1, "--csv", path)
    code = (sys.executable, "-c", CUT_OFF)
    status, said = run(*code, *given, PYTHONPATH=f"{ROOT / 'benchmarks'}:{ROOT}")
    assert status == 9, said
    assert said.splitlines()[-1].startswith("| nopos | ")
    (row,) = csv.DictReader(path.open())
    assert (row["variant"], row["label"]) == ("nopos", "")


@pytest.mark.release
@pytest.mark.skipif("not HERE", reason="needs a host")
def test_every_variant_is_compared_in_every_host_that_is_here(tmp_path):
    status, said = gpu(1, OUT=tmp_path)
    assert status == 0, said[-3000:]
    assert {*outcomes(tmp_path / "gpu1.md")} <= {"done", "left out: no timm here"}
    rows = list(csv.DictReader((tmp_path / STEPS).open())) if HERE else []
    compared = {(row["case"], row["variant"]) for row in rows if not row["compiled"]}
    here = {case: all_ for case, all_ in VARIANTS_OF.items() if HOSTS[case] in HERE}
    assert compared == {(f"tiny {case}", pos) for case, all_ in here.items() for pos in all_}
    for row in rows:
        assert float(row["step"]) > 0
        assert math.isfinite(float(row["memory"]))
    parameters = {(row["case"], row["variant"]): float(row["parameters"]) for row in rows}
    for case in (
        f"tiny {case}" for case in here
    ):  # timm's class token has a position, but in nopos
        assert 1 <= parameters[case, "cape"] == parameters[case, "sinpos"]
        assert parameters[case, "sinpos"] < parameters[case, "abspos"]


@pytest.mark.release
def test_the_tests_for_a_gpu_run_on_the_cpu(tmp_path):
    status, said = gpu(2, OUT=tmp_path)
    assert status == 0, said[-3000:]
    found = outcomes(tmp_path / "gpu2.md")
    assert {*found} <= {"done", "left out: no timm here", "left out: no fairseq here"}
    assert found[0] == "done"
    assert "passed" in (tmp_path / "gpu2.md").read_text()


@pytest.mark.release
@pytest.mark.skipif("TIMM_SCRIPTS" not in os.environ, reason="needs timm's train.py")
def test_the_study_of_a_gpu_runs_on_the_cpu(tmp_path):
    pytest.importorskip("submitit")
    image, numpy = pytest.importorskip("PIL.Image"), pytest.importorskip("numpy")
    folder, noise = tmp_path / "images", numpy.random.default_rng(0)  # CIFAR-10's folders
    for split, index in itertools.product(("train", "test"), range(180)):
        path = folder / split / f"class{index % 10}" / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(noise.integers(256, size=(32, 32, 3), dtype="uint8")).save(path)
    status, said = gpu(3, OUT=tmp_path, CIFAR10=folder)
    assert status == 0, said[-3000:]
    assert outcomes(tmp_path / "gpu3.md") == ["done", "done"]
    assert "top1" in (tmp_path / "gpu3-report" / "table.md").read_text()


def test_without_its_trainer_the_study_of_a_gpu_is_left_out(tmp_path):
    status, said = gpu(3, OUT=tmp_path, TIMM_SCRIPTS=tmp_path)
    assert status == 0
    assert "left out: no train.py of timm" in said
