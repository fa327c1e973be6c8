"""What mkdocs does not do by itself: links into the repository, equations, docstrings' roles.

Pages in docs/ are read in the repository as well, where they link to README, configs and source files. On the site,
those links lead to copies of the files, made here as pages. Equations are LaTeX in the pages and MathML on the site,
which browsers draw without any script.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

COPIES = "repository"  # the folder of the site for files that lie outside docs/
# Sections of the README that are pages of their own here; its other sections have no link on the site.
README = {
    "": "index.md",
    "install": "index.md#install",
    "results": "results.md",
    "speed": "speed.md",
}
LINK = re.compile(r"(\]\()([^)\s]+)((?:\s+\"[^\"]*\")?\))")
FENCED = re.compile(r"(^(`{3,})[^\n]*\n.*?^\2[ ]*$)", re.MULTILINE | re.DOTALL)
MATH = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml", ".cff": "yaml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file of the repository that a page links to, and that those link to."""
    root = Path(config.config_file_path).parent
    waiting = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    while waiting:
        uri, text = waiting.pop()
        for link in LINK.finditer(FENCED.sub("", text)):
            target, _, _ = _repository_path(link[2], uri)
            if not target or target.startswith("docs/") or target == "README.md" or not (root / target).is_file():
                continue
            copy = _site_path(target)
            if files.get_file_from_path(copy) is None:
                content = _page_of(root / target, target)
                files.append(File.generated(config, copy, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
                if target.endswith(".md"):
                    waiting.append((copy, content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links at the site's own copies; turn equations into MathML."""
    uri = page.file.src_uri

    def lead(link: re.Match[str]) -> str:
        target, anchor, inside = _repository_path(link[2], uri)
        if not target or inside:
            return link[0]
        if target == "README.md":
            if anchor not in README:
                return link[0]  # mkdocs names it as broken
            place = README[anchor]
        else:
            place = _site_path(target) + (f"#{anchor}" if anchor else "")
        return f"{link[1]}{posixpath.relpath(place, posixpath.dirname(uri) or '.')}{link[3]}"

    parts = FENCED.split(MATH.sub(lambda found: _equation(found[1]), markdown))
    # split() gives text, block, backticks, text, …
    return "".join(LINK.sub(lead, part) if i % 3 == 0 else part for i, part in enumerate(parts) if i % 3 != 2)


def on_page_content(html: str, **_: Any) -> str:
    """``:meth:`x``` of a docstring is plain code on the site."""
    return re.sub(r":(?:class|func|meth|mod|attr):(?=<code)", "", html)


def _repository_path(link: str, uri: str) -> tuple[str, str, bool]:
    """A link of the page ``uri`` → (the file it means, its anchor, whether mkdocs can follow it by itself)."""
    path, _, anchor = link.partition("#")
    if not path or ":" in path or path.startswith("/"):
        return "", "", True
    copied = uri.startswith(f"{COPIES}/")
    home = uri.removeprefix(f"{COPIES}/") if copied else f"docs/{uri}"
    target = posixpath.normpath(posixpath.join(posixpath.dirname(home), path))
    return target, anchor, not copied and target.startswith("docs/")


def _site_path(target: str) -> str:
    """Where a file of the repository is on the site."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"{COPIES}/{target}" if target.endswith(".md") else f"{COPIES}/{target}.md"


def _page_of(path: Path, target: str) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    front = f"---\ntitle: {path.name}\nsearch:\n  exclude: true\nhide: [toc]\n---\n"
    return f"{front}# `{target}`\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n````\n"


def _equation(latex: str) -> str:
    return f'<div class="equation">{convert(" ".join(latex.split()), display="block")}</div>'
