"""The sdist and the wheel: what they hold, and that they work where nothing else is installed."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED = (  # what git holds at the top, but .gitignore
    *("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "Makefile", ".ci"),
    *("constraints.txt", "constraints-py311.txt", "constraints-fairseq-0.12.txt"),
    *("cape_plugins", "tests", "tools", "configs", "integrations", "benchmarks", "docs"),
)

pytestmark = pytest.mark.skipif(
    int(version("setuptools").split(".")[0]) < 77,
    reason="ESPnet 202511 holds back setuptools, which needs 77 for the licence expression",
)


def build(source: Path, folder: Path, *kinds: str, **environment: str) -> None:
    command = [sys.executable, "-m", "build", *kinds, "--no-isolation", "--outdir", str(folder)]
    environment = {**os.environ, **environment}
    subprocess.run([*command, str(source)], check=True, capture_output=True, env=environment)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    # a copy of what git would ship: setuptools leaves a build folder in the source tree
    source = tmp_path_factory.mktemp("source")
    for name in SHIPPED:
        (source / name).symlink_to(ROOT / name)
    return source


@pytest.fixture(scope="module")
def dist(source, tmp_path_factory) -> Path:
    """A folder with the sdist, and the wheel that is built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    build(source, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist) -> Path:
    (built,) = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def unpacked(dist, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / "cape_plugins-0.1.0"


def test_the_wheel_holds_the_package_only(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"cape_plugins"}
    hosts = ("timm/__init__.py", "fairseq/__init__.py", "espnet/__init__.py")
    for needed in ("py.typed", "autoload.py", *hosts):
        assert f"cape_plugins/{needed}" in names
    assert not [name for name in names if name.endswith(".c")]


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler here")
def test_the_wheel_holds_the_extension_for_every_python_since_3_10(wheel):
    assert "-cp310-abi3-" in wheel.name
    assert "cape_plugins/fused/_rows.abi3.so" in zipfile.ZipFile(wheel).namelist()


def test_without_a_compiler_the_wheel_is_built_without_the_extension(source, wheel, tmp_path):
    build(source, tmp_path, "--wheel", CC="false")
    (plain,) = tmp_path.glob("*.whl")
    lost = {*zipfile.ZipFile(wheel).namelist()} - {*zipfile.ZipFile(plain).namelist()}
    assert lost == {"cape_plugins/fused/_rows.abi3.so"}


def test_the_wheel_declares_the_autoload_entry_point(wheel):
    archive = zipfile.ZipFile(wheel)
    (entry_points,) = (n for n in archive.namelist() if n.endswith("entry_points.txt"))
    text = archive.read(entry_points).decode()
    assert "[torch.backends]\ncape_plugins = cape_plugins.autoload:install" in text


def test_the_wheel_declares_its_licence_and_pythons(wheel):
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (n for n in archive.namelist() if n.endswith("METADATA"))
    lines = archive.read(metadata).decode().splitlines()
    assert "License-Expression: MIT" in lines
    assert "License-File: LICENSE" in lines
    assert "Classifier: Programming Language :: Python :: 3.12" in lines
    assert not [line for line in lines if line.startswith("Classifier: License")]


def test_the_wheel_imports_in_an_empty_environment(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    code = "import cape_plugins; print(cape_plugins.__version__, len(dir(cape_plugins)) > 9)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == ["0.1.0", "True"], done.stderr


def test_the_sdist_holds_what_git_holds(unpacked):
    assert (unpacked / "cape_plugins" / "fused" / "_rows.c").exists()
    for name in SHIPPED:
        assert (unpacked / name).exists()
    junk = ("*.so", "*.pyc")
    assert not [path for pattern in junk for path in unpacked.rglob(pattern)]


def test_the_sdists_tests_run(unpacked):
    tests = ("test_positions.py", "test_sinusoid.py", "test_augment.py", "test_paper_listing.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(f"tests/{name}" for name in tests)],
        cwd=unpacked,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
