"""The benchmarks run, at sizes where their numbers mean nothing, and see what goes wrong."""

import csv
import importlib.util
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tabulate")

from cape_plugins.variants import VARIANTS, names

ROOT = Path(__file__).parents[1]
AXES = {"vit_small": 2, "wmt_base": 1, "asr_36": 1}
HOSTS = {"vit_small": "timm", "wmt_base": "fairseq", "asr_36": "espnet2"}
HERE = {host for host in HOSTS.values() if importlib.util.find_spec(host)}


def run(*command: object, **environment: object) -> subprocess.CompletedProcess:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(paths), **environment, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )


def variants(*arguments: object, **environment: object) -> subprocess.CompletedProcess:
    return run(sys.executable, "benchmarks/variants.py", *arguments, **environment)


def gpu(*arguments: object, **environment: object) -> subprocess.CompletedProcess:
    environment = {"PYTHON": sys.executable, "DRY_RUN": 1, **environment}
    return run("bash", "benchmarks/gpu.sh", *arguments, **environment)


@pytest.fixture
def broken(tmp_path):
    """A folder for PYTHONPATH in which the import of a package fails."""

    def make(package: str) -> Path:
        (tmp_path / f"{package}.py").write_text(f"raise ImportError('{package} is broken')")
        return tmp_path

    return make


def test_a_host_that_does_not_import_is_left_out_and_named(broken):
    ran = variants("--tiny", "--cases", "vit_small", PYTHONPATH=f"{broken('timm')}:{ROOT}")
    assert ran.returncode == 1
    assert "vit_small left out, its host is missing here: timm is broken" in ran.stdout


@pytest.mark.skipif("espnet2" not in HERE, reason="needs ESPnet")
def test_a_conformer_is_compared_too():
    ran = variants("--tiny", "--cases", "conformer_12", "--pos", "cape", "rope", "--rounds", 1)
    assert ran.returncode == 0, ran.stdout
    assert "tiny conformer_12, step" in ran.stdout
    assert "| rope" in ran.stdout


def test_a_unit_that_a_case_lacks_is_refused_before_anything_runs():
    (unit, *_) = {*names(1)} - {*names(2)}
    ran = variants("--cases", "vit_small", "--unit", unit)
    assert ran.returncode == 2
    last = ran.stdout.splitlines()[-1]
    assert last.endswith(f"--unit {unit}: vit_small has {', '.join(names(2))}")


def outcomes(report: Path) -> list[str]:
    """What became of the steps, from the summary at the end of a report."""
    return [
        line.split(" | ")[1] for line in report.read_text().splitlines() if line.endswith(" s |")
    ]


@pytest.fixture(scope="module")
def part_2(tmp_path_factory):
    out = tmp_path_factory.mktemp("part_2")
    return gpu(2, OUT=out), out


@pytest.mark.parametrize("part", [1, 3])
def test_what_a_gpu_is_to_run_runs_on_the_cpu(part, tmp_path):
    ran = gpu(part, OUT=tmp_path)
    assert ran.returncode == 0, ran.stdout[-3000:]
    found = outcomes(tmp_path / f"gpu{part}.md")
    assert "done" in found
    assert all(outcome == "done" or outcome.startswith("left out: no ") for outcome in found)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """CIFAR-10's folders, with 18 images of noise in each class."""
    image, numpy = pytest.importorskip("PIL.Image"), pytest.importorskip("numpy")
    folder, noise = tmp_path_factory.mktemp("images"), numpy.random.default_rng(0)
    for split, index in itertools.product(("train", "test"), range(180)):
        path = folder / split / f"class{index % 10}" / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(noise.integers(256, size=(32, 32, 3), dtype="uint8")).save(path)
    return folder


@pytest.mark.skipif("TIMM_SCRIPTS" not in os.environ, reason="needs timm's train.py")
def test_the_study_of_a_gpu_runs_on_the_cpu(images, tmp_path):
    pytest.importorskip("exca")
    ran = gpu(4, OUT=tmp_path, CIFAR10=images)
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert outcomes(tmp_path / "gpu4.md") == ["done", "done"]
    assert "top1" in (tmp_path / "gpu4-report" / "table.md").read_text()


def test_without_its_trainer_the_study_of_a_gpu_is_left_out(tmp_path):
    ran = gpu(4, OUT=tmp_path, TIMM_SCRIPTS=tmp_path)
    assert ran.returncode == 0
    assert "left out: no train.py of timm, or no CIFAR-10, here" in ran.stdout


def test_training_steps_run_wherever_a_host_is_here(part_2):
    ran, out = part_2
    assert ran.returncode == 0, ran.stdout[-3000:]
    expected = [f"left out: no {host} here" for host in HOSTS.values() if host not in HERE]
    assert sorted({*outcomes(out / "gpu2.md")} - {"done"}) == sorted(expected)


@pytest.mark.skipif(not HERE, reason="needs a host")
def test_every_variant_of_the_table_is_compared_in_every_host_that_is_here(part_2):
    rows = list(csv.DictReader((part_2[1] / "gpu2-steps.csv").open()))
    compared = {(row["case"], row["variant"]) for row in rows if not row["compiled"]}
    here = {case: axes for case, axes in AXES.items() if HOSTS[case] in HERE}
    assert compared == {(f"tiny {case}", pos) for case in here for pos in names(here[case])}
    for row in rows:
        assert float(row["step"]) > 0
        assert math.isfinite(float(row["memory"]))
        if VARIANTS[row["variant"]].attention is None:  # fewer parameters than abspos, the unit
            assert (float(row["parameters"]) < 1) == (VARIANTS[row["variant"]].adds != "table")


def test_what_fails_there_is_reported_and_the_rest_still_runs(broken, tmp_path):
    ran = gpu(1, OUT=tmp_path / "out", PYTHONPATH=broken("torch"))
    assert ran.returncode == 1
    assert "ImportError: torch is broken" in ran.stdout
    assert ran.stdout.count("| FAILED |") == 2 - (importlib.util.find_spec("triton") is None)


def test_a_part_that_there_is_not_is_refused():
    ran = gpu(7)
    assert ran.returncode == 2
    assert ran.stdout == "gpu.sh: got '7', choose a part: 1, 2, 3, 4, or pack\n"
