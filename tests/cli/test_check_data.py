"""``data check``: problems and exit codes."""

import json
from pathlib import Path

from helpers.command import run


def test_exit_codes(spair_root: Path, tmp_path: Path, capsys):
    arguments = ["data", "check", "--benchmark", "spair", "--root"]
    assert run(*arguments, spair_root) == 0
    assert "no problem found" in capsys.readouterr().out
    (spair_root / "JPEGImages" / "cat" / "b.jpg").unlink()
    assert run(*arguments, spair_root) == 1
    assert "b.jpg: no such image file" in capsys.readouterr().out
    assert run(*arguments, spair_root, "--json") == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 1
    assert run(*arguments, tmp_path / "nowhere") == 2
