"""Rows of cells → Markdown, LaTeX or HTML."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from transformatcher.files import write_text

NOTHING = "–"
_LATEX = str.maketrans(
    {"&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "$": r"\$", "{": r"\{", "}": r"\}", "\\": r"\textbackslash{}",
     "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "†": r"$\dagger$", "×": r"$\times$", "±": r"$\pm$",
     "α": r"$\alpha$", "Φ": r"$\Phi$", "√": r"$\surd$", "–": "--"}
)  # fmt: skip


@dataclass(frozen=True)
class Section:
    """Rows that belong together; the title stands above them, if there is one."""

    rows: Sequence[Sequence[str]]
    title: str = ""


@dataclass(frozen=True)
class Table:
    """A table with what a reader must know of it, and the commands that made its numbers."""

    name: str  # of its files
    title: str
    header: Sequence[str]
    sections: Sequence[Section]
    notes: Sequence[str] = ()
    commands: Sequence[str] = field(default_factory=tuple)


def number(value: float | int | None, digits: int = 1) -> str:
    """A number, or a dash where there is none."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def to_markdown(table: Table) -> str:
    """A heading, the table, its notes and its commands."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    lines = [f"## {table.title}", "", line(table.header), "|---" + "|--:" * (len(table.header) - 1) + "|"]
    for section in table.sections:
        if section.title:
            lines.append(line([f"**{section.title}**", *[""] * (len(table.header) - 1)]))
        lines += [line(row) for row in section.rows]
    for note in table.notes:
        lines += ["", note]
    if table.commands:
        lines += ["", "```sh", *table.commands, "```"]
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """A ``table`` for a document that loads booktabs; the commands stand beside it as comments."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join(cell.translate(_LATEX) for cell in cells) + r" \\"

    width = len(table.header)
    lines = [*(f"% {command}" for command in table.commands), r"\begin{table}", r"\centering", r"\small"]
    lines += [rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule", line(table.header)]
    for section in table.sections:
        lines.append(r"\midrule")
        if section.title:
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\emph{{{section.title.translate(_LATEX)}}}}} \\")
        lines += [line(row) for row in section.rows]
    caption = " ".join([f"{table.title}.", *table.notes]).translate(_LATEX)
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}", rf"\label{{tab:{table.name}}}"]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def to_html(table: Table, *, caption: bool = True) -> str:
    """A ``table`` with its notes and commands, in an element that scrolls by itself where it is too wide.

    Without a ``caption``, a heading above is to say what it is.
    """

    def row(cells: Sequence[str], tag: str) -> str:
        first, *rest = (html.escape(cell) for cell in cells)
        others = "".join(f"<{tag}>{cell}</{tag}>" if tag == "td" else f'<th scope="col">{cell}</th>' for cell in rest)
        return f'<tr><th scope="{"row" if tag == "td" else "col"}">{first}</th>{others}</tr>'

    bodies = []
    for section in table.sections:
        above = ""
        if section.title:
            above = f'<tr><th scope="rowgroup" colspan="{len(table.header)}">{html.escape(section.title)}</th></tr>'
        bodies.append(f"<tbody>{above}{''.join(row(cells, 'td') for cells in section.rows)}</tbody>")
    head = f"<caption>{html.escape(table.title)}</caption>" if caption else ""
    head += f"<thead>{row(table.header, 'th')}</thead>"
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in table.notes)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{html.escape(table.title)}">'
        f"<table>{head}{''.join(bodies)}</table></div>{notes}{commands_html(table.commands)}"
    )


def commands_html(commands: Sequence[str]) -> str:
    """What made the numbers above, to be copied."""
    lines = "".join(f"<code>{html.escape(command)}</code>" for command in commands)
    return f'<pre class="commands">{lines}</pre>' if commands else ""


def write_table(table: Table, out: Path) -> list[Path]:
    """The table as Markdown and as LaTeX."""
    files = {out / f"{table.name}.md": to_markdown(table), out / f"{table.name}.tex": to_latex(table)}
    for path, text in files.items():
        write_text(path, text)
    return list(files)
