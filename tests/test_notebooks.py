"""The notebooks of docs/notebooks: committed without outputs, and run from first cell to last."""

import os
import re
import sys
from pathlib import Path

import pytest

from cape_support import ROOT

nbclient = pytest.importorskip("nbclient", reason="of the extra [docs], which is for Python 3.12")
nbformat = pytest.importorskip("nbformat")

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@each
def test_it_is_valid_holds_no_outputs_and_links_to_files_that_exist(path):
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert not [cell.id for cell in code if cell.outputs or cell.execution_count is not None]
    assert any("assert" in cell.source for cell in code)  # what running it here can find out
    text = "".join(cell.source for cell in book.cells if cell.cell_type != "code")
    links = re.findall(r"\]\(([^)#\s]+)", text)
    assert links
    assert not [link for link in links if not (path.parent / link).exists()]


@pytest.mark.release
@each
def test_it_runs(path, tmp_path, monkeypatch):
    here = tmp_path / "docs" / "notebooks"  # it finds scripts and configs from there
    here.mkdir(parents=True)
    for folder in ("integrations", "configs", "studies"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    # as in an active environment, whose commands its shell cells call
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    book = nbformat.read(path, as_version=4)
    about = dict(timeout=900, kernel_name="python3", resources={"metadata": {"path": str(here)}})
    try:
        nbclient.NotebookClient(book, **about).execute()
    except nbclient.exceptions.CellExecutionError as error:
        logs = [*tmp_path.glob("out/notebooks/*/*.log")]
        said = "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs)
        pytest.fail(f"{error}\n{said}")
    shown = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in shown)
