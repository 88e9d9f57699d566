"""What pyproject.toml cannot say: the studies, their recipes and scripts go into sdist and wheel.

In a checkout they lie above this folder, where an editable installation reads them too; in the
sdist they lie in it, so that paths in the studies' YAMLs are right everywhere.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
SOURCE = HERE if (HERE / "configs").is_dir() else HERE.parent
# two of the benchmarks, which are the study relpos_cost's
CARRIED = (
    "configs",
    "integrations",
    "studies/data",
    "benchmarks/common.py",
    "benchmarks/relpos_cost.py",
)


def carry(target: Path) -> None:
    """Copy what is carried below a folder, in place of what an earlier build left there."""
    shutil.rmtree(target, ignore_errors=True)
    for name in CARRIED:
        source = SOURCE / name
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source, target / name, ignore=ignored)
        else:
            shutil.copy2(source, target / name)


class BuildPy(build_py):
    """Below the wheel's package; an editable installation reads the checkout's."""

    def run(self) -> None:
        """As setuptools, and the studies."""
        super().run()
        if not self.editable_mode:
            carry(Path(self.build_lib, "cape_studies", "_files"))


class Sdist(sdist):
    """Beside the package."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """As setuptools, and the studies."""
        super().make_release_tree(base_dir, files)
        if SOURCE != HERE:
            carried = Path(base_dir, "carried")
            carry(carried)
            for one in carried.iterdir():
                one.rename(Path(base_dir, one.name))
            carried.rmdir()


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
