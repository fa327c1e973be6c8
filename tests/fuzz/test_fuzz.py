"""The fuzz targets on their seeds and on what they once found; and under the fuzzer itself, for a few seconds."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REPLAY = """
import sys
from pathlib import Path
import command_lines, seeds, targets
seeds.write(Path(sys.argv[1]))
for module, kind in ((targets, "image"), (targets, "annotation"), (command_lines, "command")):
    paths = [*Path(sys.argv[1], f"{kind}s").iterdir(), *Path(sys.argv[2]).glob(f"{kind}-*")]
    for path in paths:
        getattr(module, f"check_{kind}")(path.read_bytes())
        if kind != "command":
            getattr(module, f"check_{kind}")(path.read_bytes()[:-7])  # cut off
    print(kind, len(paths))
"""


def test_seeds_and_what_was_found(tmp_path: Path):
    """In a process of its own: there, as with users, nobody checks types and shapes; and some of these crashed it."""
    command = [sys.executable, "-c", REPLAY, str(tmp_path), str(HERE / "found")]
    result = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    counts = dict(line.split() for line in result.stdout.splitlines())
    assert int(counts["image"]) > 30
    assert int(counts["annotation"]) > 10
    assert int(counts["command"]) >= 40


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
@pytest.mark.slow
def test_a_few_seconds_of_fuzzing(tmp_path: Path):
    command = [sys.executable, str(HERE / "run.py"), "--seconds", "9", "--folder", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]
    assert "images: " in result.stdout
    assert "places reached" in result.stdout
