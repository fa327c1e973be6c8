"""``analyse tables``: Markdown and LaTeX."""

import json

from helpers.analysis import BENCH
from helpers.command import run


def test_tables(evaluated, tmp_path, capsys):
    (tmp_path / "bench.json").write_text(json.dumps(BENCH))
    out = tmp_path / "tables"
    assert run("analyse", "tables", evaluated, "--bench", tmp_path / "bench.json", "--out", out) == 0
    names = {"benchmarks", "classes-spair", "difficulty-spair", "costs"}
    assert {path.name for path in out.iterdir()} == {f"{name}{end}" for name in names for end in (".md", ".tex")}
    assert str(out / "costs.tex") in capsys.readouterr().out
    assert run("analyse", "tables", "--out", out) == 2
    assert "nothing to put into a table" in capsys.readouterr().err
