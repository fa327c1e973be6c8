"""``report``: one page."""

from helpers.command import run


def test_report(evaluated, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert run("report", evaluated, "--title", "Mine", "--out", out) == 0
    assert "evaluation: 1\nreport: " in capsys.readouterr().out
    assert "<h1>Mine</h1>" in out.read_text()
    assert run("report", evaluated, "--out", tmp_path / "report.pdf") == 2
    assert "choose a name that ends in .html" in capsys.readouterr().err
    assert run("report", tmp_path / "nowhere", "--out", out) == 2
    assert "nowhere: no such file or folder" in capsys.readouterr().err
