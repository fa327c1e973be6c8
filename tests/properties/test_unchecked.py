"""The parsers once more as users have them: in this suite shapes and types are checked, which hides what is not."""

import subprocess
import sys
from pathlib import Path


def test_parsers_without_checks_of_types():
    here = Path(__file__).parent
    options = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    command = [sys.executable, "-m", "pytest", *options, str(here / "test_parsers.py")]
    result = subprocess.run(command, cwd=here.parents[1], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-3000:]
    assert "passed" in result.stdout
