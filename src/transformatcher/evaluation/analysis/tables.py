"""Rows of cells → Markdown or LaTeX; html.py has the HTML."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from transformatcher.files import write_text

NOTHING = "–"
_LATEX = str.maketrans(
    {"&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "$": r"\$", "{": r"\{", "}": r"\}", "\\": r"\textbackslash{}",
     "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "†": r"$\dagger$", "×": r"$\times$", "±": r"$\pm$",
     "α": r"$\alpha$", "Φ": r"$\Phi$", "√": r"$\surd$", "–": "--", "\n": " ", "\r": " "}
)  # fmt: skip
_ONE_LINE = str.maketrans({"\n": " ", "\r": " "})
_MARKDOWN = str.maketrans({"&": "&amp;", "<": "&lt;", "|": r"\|", "\n": " ", "\r": " "})


@dataclass(frozen=True)
class Section:
    """Rows that belong together, with an optional title above them."""

    rows: Sequence[Sequence[str]]
    title: str = ""


@dataclass(frozen=True)
class Table:
    """A table with notes for the reader and the commands that made its numbers."""

    name: str  # of its files: lower-case letters, digits and hyphens
    title: str
    header: Sequence[str]
    sections: Sequence[Section]
    notes: Sequence[str] = ()
    commands: Sequence[str] = field(default_factory=tuple)


def number(value: float | int | None, digits: int = 1) -> str:
    """A number, or a dash where there is none."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def to_markdown(table: Table) -> str:
    """A heading, the table, its notes and its commands; cells, title and notes are plain text, so no HTML gets in."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.translate(_MARKDOWN) for cell in cells)} |"

    alignment = "|---" + "|--:" * (len(table.header) - 1) + "|"
    lines = [f"## {table.title.translate(_MARKDOWN)}", "", line(table.header), alignment]
    for section in table.sections:
        if section.title:
            lines.append(line([f"**{section.title}**", *[""] * (len(table.header) - 1)]))
        lines += [line(row) for row in section.rows]
    for note in table.notes:
        lines += ["", note.translate(_MARKDOWN)]
    if table.commands:
        lines += ["", "```sh", *(command.translate(_ONE_LINE) for command in table.commands), "```"]
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """A ``table`` environment for a document that loads booktabs; the commands are comments above it."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join(cell.translate(_LATEX) for cell in cells) + r" \\"

    width = len(table.header)
    lines = [f"% {command.translate(_ONE_LINE)}" for command in table.commands]
    lines += [r"\begin{table}", r"\centering", r"\small"]
    lines += [rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule", line(table.header)]
    for section in table.sections:
        lines.append(r"\midrule")
        if section.title:
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\emph{{{section.title.translate(_LATEX)}}}}} \\")
        lines += [line(row) for row in section.rows]
    caption = " ".join([f"{table.title}.", *table.notes]).translate(_LATEX)
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}", rf"\label{{tab:{table.name}}}"]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def write_table(table: Table, out: Path) -> list[Path]:
    """Write the table to ``out`` as Markdown and as LaTeX; the files are named after it."""
    if not re.fullmatch(r"[a-z0-9-]+", table.name):  # a name that came from a file must not choose another folder
        raise ValueError(f"{table.name!r} cannot name a file; use lower-case letters, digits and hyphens")
    files = {out / f"{table.name}.md": to_markdown(table), out / f"{table.name}.tex": to_latex(table)}
    for path, text in files.items():
        write_text(path, text)
    return list(files)
