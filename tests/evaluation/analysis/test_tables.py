"""Tables as Markdown and LaTeX."""

from pathlib import Path

import pytest

from transformatcher.evaluation.analysis.tables import Section, Table, to_latex, to_markdown, write_table

TABLE = Table("t", "A & B", ["model", "x_1"], [Section([["a|b", "1.0"]], "50 %"), Section([["†", "<2>"]])],
              ["α ≥ 0"], ["transformatcher eval --out a"])  # fmt: skip


def test_markdown():
    text = to_markdown(TABLE)
    assert "| model | x_1 |\n|---|--:|\n| **50 %** |  |\n| a\\|b | 1.0 |\n| † | &lt;2> |" in text
    assert text.endswith("```sh\ntransformatcher eval --out a\n```\n")


def test_latex():
    text = to_latex(TABLE)
    assert text.startswith("% transformatcher eval --out a\n\\begin{table}")
    assert r"model & x\_1 \\" in text
    assert r"\multicolumn{2}{l}{\emph{50 \%}} \\" in text
    assert r"$\dagger$ & <2> \\" in text
    assert text.count(r"\midrule") == 2


def test_text_cannot_leave_its_cell():
    table = Table("t", "<b>", ["x"], [Section([["a\n\n<script>"]], "s\n## t")], ["n\n# m"], ["run\n```\n\\input{x}"])
    markdown, latex = to_markdown(table), to_latex(table)
    assert "<" not in markdown
    assert "| a  &lt;script> |" in markdown
    assert "\n#" not in markdown
    assert markdown.count("\n```") == 2
    assert latex.startswith(r"% run ``` \input{x}" + "\n")


def test_written_files_are_named_after_the_table(tmp_path: Path):
    assert [path.name for path in write_table(TABLE, tmp_path)] == ["t.md", "t.tex"]
    for name in ("../t", "a/b", "", "A b"):
        with pytest.raises(ValueError, match="cannot name a file"):
            write_table(Table(name, "t", ["x"], []), tmp_path)
