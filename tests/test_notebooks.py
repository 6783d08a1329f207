"""Every notebook runs from top to bottom, and ends in a picture."""

import os
import pathlib
import time

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((pathlib.Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.any_backend(quickest="torch")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(path.parent.parent), os.environ.get("PYTHONPATH", "")])
    )
    notebook = nbformat.read(path, as_version=4)
    start = time.perf_counter()
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    print(f"{path.name}: {time.perf_counter() - start:.0f} s")
    last = [cell for cell in notebook.cells if cell.cell_type == "code"][-1]
    assert any("image/png" in output.get("data", {}) for output in last.outputs), (
        "a notebook ends in a picture"
    )


@pytest.mark.any_backend
def test_notebooks_are_kept_without_outputs():
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code"), (
            path.name
        )
