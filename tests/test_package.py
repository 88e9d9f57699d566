"""The sdists and wheels: what they hold, and that they work where nothing else is installed."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED = (  # what git holds at the top, but .gitignore
    *("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "Makefile", ".ci", ".github"),
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md", ".pre-commit-config.yaml"),
    *("cape_plugins", "studies", "tests", "tools", "configs", "integrations", "benchmarks", "docs"),
    *("constraints", "examples"),
)
LEFT_BEHIND = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(
        int(version("setuptools").split(".")[0]) < 77,
        reason="ESPnet 202511 holds back setuptools, which needs 77 for the licence expression",
    ),
]


def build(source: Path, dist: Path) -> None:
    """What ``make dist`` does, without its isolation."""
    clock = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    for each in (source, source / "studies"):
        tool = ["sh", ROOT / "tools" / "dist", sys.executable, each, dist, "--no-isolation"]
        subprocess.run(tool, check=True, capture_output=True, env=clock)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of what git would ship: setuptools leaves a build folder in the source tree."""
    folder = tmp_path_factory.mktemp("source")
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=LEFT_BEHIND, symlinks=True)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def dist(source, tmp_path_factory) -> Path:
    """Sdists and wheels of both distributions, the sdists unpacked beside."""
    folder = tmp_path_factory.mktemp("dist")
    build(source, folder)
    for sdist in folder.glob("*.tar.gz"):
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
    return folder


def made(dist: Path, name: str) -> SimpleNamespace:
    """Of one distribution the wheel that is built from its sdist: path, names and metadata."""
    (wheel,) = dist.glob(f"{name}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        about = {Path(n).name: archive.read(n).decode() for n in names if ".dist-info/" in n}
    return SimpleNamespace(wheel=wheel, names=names, unpacked=dist / f"{name}-0.1.0", **about)


@pytest.fixture(scope="module")
def built(dist) -> SimpleNamespace:
    return made(dist, "cape_plugins")


@pytest.fixture(scope="module")
def laboratory(dist) -> SimpleNamespace:
    return made(dist, "cape_studies")


def test_the_wheel_holds_the_package_alone_and_its_entry_point(built):
    assert built.wheel.name == "cape_plugins-0.1.0-py3-none-any.whl"
    inside = {name for name in built.names if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in inside} == {"cape_plugins"}
    ours = {str(path.relative_to(ROOT)) for path in (ROOT / "cape_plugins").rglob("*.py")}
    assert ours | {"cape_plugins/py.typed"} <= inside
    entry = "[torch.backends]\ncape_plugins = cape_plugins.autoload:install"
    assert entry in vars(built)["entry_points.txt"]
    assert {"License-Expression: MIT", "License-File: LICENSE"} < {*built.METADATA.splitlines()}


def install(python: Path, *words: object) -> None:
    """Into the environment of that Python, which needs no pip of its own."""
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-compile", *words]
    subprocess.run([*map(str, pip)], check=True, capture_output=True)


def test_sdists_and_wheels_are_the_same_bytes_wherever_and_whenever_they_are_built(
    source, dist, tmp_path
):
    def copy(one: str, target: str) -> None:  # with another time and other rights
        shutil.copyfile(one, target)
        os.utime(target, (0, 1234567890))
        os.chmod(target, Path(one).stat().st_mode & 0o700)

    another = tmp_path / "another"
    shutil.copytree(source, another, ignore=LEFT_BEHIND, copy_function=copy, symlinks=True)
    local = another / "studies" / "cape_studies.egg-info"  # an installation's
    local.mkdir()
    (local / "PKG-INFO").write_text("Version: 1")
    build(another, tmp_path / "dist")
    files = [*dist.glob("*.tar.gz"), *dist.glob("*.whl")]
    assert len(files) == 4
    for one in files:
        again = tmp_path / "dist" / one.name
        assert sha256(one.read_bytes()).digest() == sha256(again.read_bytes()).digest(), one.name


def test_the_laboratorys_wheel_carries_the_studies_and_what_they_run(laboratory):
    assert laboratory.wheel.name == "cape_studies-0.1.0-py3-none-any.whl"
    inside = {name.removeprefix("cape_studies/_files/") for name in laboratory.names}
    ours = [path for path in (ROOT / "configs").rglob("*") if path.is_file()]
    assert len(ours) > 80
    assert {str(path.relative_to(ROOT)) for path in ours} <= inside
    assert not [name for name in laboratory.names if "__pycache__" in name or "/tests/" in name]
    lines = {*laboratory.METADATA.splitlines()}
    assert {f"Provides-Extra: {name}" for name in ("timm", "fairseq", "espnet", "demo")} < lines


def test_cape_run_lists_the_studies_and_runs_demo_timm_in_an_empty_folder(
    built, laboratory, tmp_path
):
    """Of both wheels, beside the libraries of this environment, whose editable installs are off."""
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # first, while pip sees no other installation of ours
    install(python, "--no-deps", "--no-index", built.wheel, laboratory.wheel)
    # a .pth in a folder that a .pth names is not read: no checkout of ours comes with it
    paths = (sysconfig.get_path("purelib"), ROOT / "examples" / "cape-fire")
    (site / "libraries.pth").write_text("".join(f"{path}\n" for path in paths))
    (tmp_path / "empty").mkdir()

    left_out = "PYTHONPATH", "TIMM_SCRIPTS", "TRANSFORMERS_SCRIPTS"
    nothing = {k: v for k, v in os.environ.items() if k not in left_out} | {"HOME": str(tmp_path)}

    def run(command: str, *words: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "venv" / "bin" / command
        about = dict(capture_output=True, text=True, cwd=tmp_path / "empty", env=nothing)
        return subprocess.run([script, *words], **about)

    listed = run("cape-run", "--list")
    known = sorted(path.stem for path in (ROOT / "configs" / "studies").glob("*.yaml"))
    said = [line.split(" (")[0].split(":")[0] for line in listed.stdout.splitlines()]
    assert sorted(name for name in said if name in known) == known, listed.stderr
    assert not list((tmp_path / "empty").iterdir())
    done = run("cape-run", "demo_timm", "--quick")
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    for variant in ("rope", "cape_rope"):
        (scores,) = (tmp_path / "empty").glob(f"out/runs/{variant}-seed0-*/shift-*/scores.csv")
        assert "top1" in scores.read_text()
    reported = run("cape-report", "demo_timm", "--quick")
    assert reported.returncode == 0, reported.stderr
    assert "cape_rope" in (tmp_path / "empty" / "out/demo_timm/report/index.html").read_text()


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
