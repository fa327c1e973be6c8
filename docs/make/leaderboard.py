"""docs/make/leaderboard.toml → docs/leaderboard.md: published numbers with their protocol and source, ours among them.

Usage: python docs/make/leaderboard.py; tests/test_docs.py fails while what it would write differs from what is there.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
DATA = Path(__file__).with_suffix(".toml")
MADE = "<!-- Made by docs/make/leaderboard.py from leaderboard.toml; change that instead. -->"
KEYS = ("method", "backbone", "training", "average", "source")


def leaderboard_page() -> str:
    """The page, as Markdown."""
    data = tomllib.loads(DATA.read_text(encoding="utf-8"))
    check(data)
    columns, sources = data["columns"], list(data["sources"])
    rows = sorted(data["row"], key=lambda row: row.get("spair_10", -1.0))
    header = ["method", "backbone", "trained on", "average", *columns.values(), "source"]
    lines = [line(header), "|---" * 4 + "|--:" * len(columns) + "|---|"]
    for row in rows:
        numbers = [f"{row[key]:.1f}" if key in row else "–" for key in columns]
        lines.append(line([*(row[key] for key in KEYS[:-1]), *numbers, f"[{sources.index(row['source']) + 1}]"]))
    references = [f"{number}. {text}" for number, text in enumerate(data["sources"].values(), 1)]
    references = [text.replace("results.md", "[Results](results.md)") for text in references]
    return (
        "\n\n".join(
            ["# Leaderboard", MADE, data["introduction"].strip(), "\n".join(lines), "## Sources", "\n".join(references)]
        )
        + "\n"
    )


def line(cells: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def check(data: Mapping[str, Any]) -> None:
    """Raise ValueError for a row that does not say where its numbers are from, or has columns that nobody knows."""
    for row in data["row"]:
        lacking = [key for key in KEYS if not row.get(key)]
        strange = set(row) - set(KEYS) - set(data["columns"])
        if lacking or strange or row["source"] not in data["sources"]:
            raise ValueError(
                f"{row.get('method')}: lacks {lacking}, does not know {strange}, source {row.get('source')!r}"
            )
        if not any(key in row for key in data["columns"]):
            raise ValueError(f"{row['method']}: has no number")


if __name__ == "__main__":
    (DOCS / "leaderboard.md").write_text(leaderboard_page(), encoding="utf-8")
