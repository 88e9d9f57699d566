"""The sdist and the wheel: what they hold, and that they work where nothing else is installed."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED = (  # what git holds at the top, but .gitignore
    *("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "Makefile", ".ci", ".github"),
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md", ".pre-commit-config.yaml"),
    *("constraints.txt", "constraints-py311.txt", "constraints-fairseq-0.12.txt"),
    *("cape_plugins", "tests", "tools", "configs", "integrations", "benchmarks", "docs"),
)
HOSTS = ("timm/__init__.py", "fairseq/__init__.py", "espnet/__init__.py")

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(
        int(version("setuptools").split(".")[0]) < 77,
        reason="ESPnet 202511 holds back setuptools, which needs 77 for the licence expression",
    ),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> SimpleNamespace:
    """The sdist, unpacked, and the wheel that is built from it: its path, names and metadata."""
    # from a copy of what git would ship: setuptools leaves a build folder in the source tree
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in SHIPPED:
        (source / name).symlink_to(ROOT / name)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, source]
    subprocess.run(build, check=True, capture_output=True)
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(dist, filter="data")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        about = {Path(n).name: archive.read(n).decode() for n in names if ".dist-info/" in n}
    return SimpleNamespace(unpacked=dist / "cape_plugins-0.1.0", wheel=wheel, names=names, **about)


def test_the_wheel_is_pure_python_and_holds_the_package_only(built):
    assert built.wheel.name == "cape_plugins-0.1.0-py3-none-any.whl"
    inside = [name for name in built.names if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in inside} == {"cape_plugins"}
    assert {Path(name).suffix for name in inside} <= {".py", ".typed", ".html"}
    assert {f"cape_plugins/{name}" for name in ("py.typed", "autoload.py", *HOSTS)} <= {*inside}


def test_the_wheel_declares_its_entry_point_licence_and_pythons(built):
    entry = "[torch.backends]\ncape_plugins = cape_plugins.autoload:install"
    assert entry in vars(built)["entry_points.txt"]
    lines = built.METADATA.splitlines()
    assert "License-Expression: MIT" in lines
    assert "License-File: LICENSE" in lines
    assert "Classifier: Programming Language :: Python :: 3.12" in lines
    assert not [line for line in lines if line.startswith("Classifier: License")]


def test_the_wheel_imports_in_an_empty_environment(built, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--no-deps", "--no-index", built.wheel]
    subprocess.run(install, check=True, capture_output=True)
    code = "import cape_plugins; print(cape_plugins.__version__, len(dir(cape_plugins)) > 9)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == ["0.1.0", "True"], done.stderr


def test_the_sdist_holds_what_git_holds_and_its_tests_run(built):
    assert not [name for name in SHIPPED if not (built.unpacked / name).exists()]
    assert not [path for kind in ("*.so", "*.pyc") for path in built.unpacked.rglob(kind)]
    tests = ("test_positions.py", "test_sinusoid.py", "test_augment.py", "test_paper_listing.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(f"tests/{name}" for name in tests)],
        cwd=built.unpacked,
        env={**os.environ, "PYTHONPATH": str(built.unpacked)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
