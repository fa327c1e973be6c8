"""Notebooks run from top to bottom, without a GPU and without the network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# A process of its own: Jupyter's kernel speaks through sockets, which the tests themselves may not open.
RUN = """
import sys, nbformat
from nbclient import NotebookClient
book = nbformat.read(sys.argv[1], as_version=4)
assert not any(cell.get("outputs") for cell in book.cells), "clear the outputs before committing"
NotebookClient(book, timeout=300, kernel_name="python3").execute()
pictures = sum("image/png" in output.get("data", {}) for cell in book.cells for output in cell.get("outputs", []))
print("pictures:", pictures)
"""


QUICK = "quickstart"  # runs by default, the others with --run-slow, as in continuous integration
PARAMETERS = [
    pytest.param(path, marks=() if path.stem == QUICK else pytest.mark.slow, id=path.stem) for path in NOTEBOOKS
]


def test_the_notebooks_are_there():
    assert [path.stem for path in NOTEBOOKS] == ["attention", "own_keypoints", "propagate", "quickstart"]


@pytest.mark.parametrize("path", PARAMETERS)
def test_runs(path: Path, tmp_path: Path):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "JUPYTER_PLATFORM_DIRS": "1", "IPYTHONDIR": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", RUN, str(path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert int(result.stdout.split("pictures:")[-1]) >= (3 if path.stem == QUICK else 2)
