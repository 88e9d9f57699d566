"""The wheel: the package and nothing else, importable where nothing else is installed."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    # built from a copy of what git would ship: setuptools leaves a build folder in the source tree
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "cape_plugins", "demo", "tests"):
        (source / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*command, str(source)], check=True, capture_output=True, text=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_only(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"cape_plugins"}
    hosts = ("timm/__init__.py", "fairseq/__init__.py", "espnet/__init__.py")
    for needed in ("py.typed", "autoload.py", "fused/add_sinusoid.c", *hosts):
        assert f"cape_plugins/{needed}" in names


def test_the_wheel_declares_the_autoload_entry_point(wheel):
    archive = zipfile.ZipFile(wheel)
    (entry_points,) = (n for n in archive.namelist() if n.endswith("entry_points.txt"))
    text = archive.read(entry_points).decode()
    assert "[torch.backends]\ncape_plugins = cape_plugins.autoload:install" in text


def test_the_wheel_imports_in_an_empty_environment(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    code = "import cape_plugins; print(cape_plugins.__version__, len(dir(cape_plugins)) > 9)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == ["0.1.0", "True"], done.stderr
