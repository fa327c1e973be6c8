"""``report``: one page."""

from helpers.analysis import prediction, write_eval
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


def test_a_comparison_is_in_the_report(evaluated, tmp_path, capsys):
    """Whether the folder is named that it lies in, or its file."""
    other = write_eval(
        tmp_path / "out" / "other", [prediction(name, 30.0) for name in ("000000-a-b:cat", "000001-b-a:cat")]
    )
    assert run("score", evaluated, "--against", other) == 0
    out = tmp_path / "report.html"
    for item in (evaluated, evaluated / "against-other.json"):
        capsys.readouterr()
        assert run("report", item, "--out", out) == 0
        assert "comparison: 1" in capsys.readouterr().out
        page = out.read_text()
        assert "Comparison: mine against other" in page
        assert "mine is better than other by" in page or "cannot be told apart" in page
