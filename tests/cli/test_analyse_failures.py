"""``analyse failures``: a page of the worst pairs."""

import pytest
from helpers.command import run


@pytest.mark.parametrize("name", ["folder", "page.html"])
def test_failures(evaluated, spair_root, tmp_path, capsys, name):
    out = tmp_path / name
    assert run("analyse", "failures", evaluated, "--root", spair_root, "--most", 1, "--out", out) == 0
    assert "1 of 2 pairs, PCK 0.0 to 0.0" in capsys.readouterr().out
    page = out if out.suffix else out / "failures.html"
    assert "--root SPair-71k --most 1 --out" in page.read_text()


def test_failures_of_nothing(evaluated, spair_root, tmp_path, capsys):
    assert run("analyse", "failures", tmp_path / "nowhere", "--root", spair_root, "--out", tmp_path / "x") == 2
    assert "no such folder; name one that transformatcher eval wrote" in capsys.readouterr().err
    assert run("analyse", "failures", evaluated, "--root", tmp_path / "nowhere", "--out", tmp_path / "x") == 2
    assert "no such folder (the SPair-71k folder" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        run("analyse", "failures", evaluated, "--root", spair_root, "--alpha", -1, "--out", tmp_path / "x")
    assert "--alpha: '-1' is not a number from 0.0001 to 1" in capsys.readouterr().err
