"""Documentation that holds: every snippet runs, every command parses, every link leads somewhere."""

import argparse
import importlib.util
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

import transformatcher
from transformatcher.cli import main as cli
from transformatcher.evaluation.analysis.paper import TABLE_1

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
LINKED = [*PAGES, *sorted((ROOT / "src").rglob("*.md"))]
EXAMPLES = Path(str(files("transformatcher") / "examples"))
NAMED_IN = ("src", "tests", "docs", "configs", "scripts", "examples")  # folders with files that pages name
PLACEHOLDER = "…"  # in a command that is no command: `eval … --draw 10`

# A block of code, and on the line above it perhaps why it is not run: <!-- not run: it needs a GPU -->
BLOCK = re.compile(
    r"^(?P<above>[^\n]*)\n+(?P<fence>`{3,})(?P<language>\w*)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.{10,}?) -->")
PAGE_NOT_RUN = re.compile(r"^<!-- nothing on this page is run: (?P<reason>.{10,}?) -->$", re.MULTILINE)
TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    title: str  # the file to write, or "Output" for what the block before it prints
    text: str
    reason: str  # why it is not run

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    whole = PAGE_NOT_RUN.search(text)
    blocks = []
    for found in BLOCK.finditer(text):
        reason = NOT_RUN.search(found["above"]) or whole
        title = TITLE.search(found["info"])
        line = text.count("\n", 0, found.start("text")) + 1
        blocks.append(
            Block(
                page,
                line,
                found["language"],
                title[1] if title else "",
                found["text"],
                reason["reason"] if reason else "",
            )
        )
    return blocks


def commands_of(block: Block) -> Iterator[list[str]]:
    """The words of each line of a ``sh`` block; a backslash at its end joins a line with the next."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def runnable(page: Path) -> list[Block]:
    return [block for block in blocks_of(page) if block.language in ("python", "sh") and not block.reason]


# ---------------------------------------------------------------- snippets


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a page's snippets run: the example photos, one of them annotated, and no GPU."""
    for photo in (*EXAMPLES.glob("*.jpg"), EXAMPLES / "cat_a.json"):
        shutil.copy(photo, tmp_path / photo.name)
    (tmp_path / "PHOTOS").mkdir()
    for name in ("cat_b.jpg", "cat_c.jpg"):
        shutil.copy(EXAMPLES / name, tmp_path / "PHOTOS" / name)
    named = json.loads((EXAMPLES / "cat_a.json").read_text(encoding="utf-8"))
    keypoints = [value for x, y in named.values() for value in (x, y, 2)]
    note = {"id": 1, "image_id": 1, "category_id": 1, "keypoints": keypoints, "bbox": [20, 0, 380, 300]}
    marked = {
        "images": [{"id": 1, "file_name": "cat_a.jpg", "width": 451, "height": 300}],
        "annotations": [note],
        "categories": [{"id": 1, "name": "cat", "keypoints": list(named)}],
    }
    (tmp_path / "marked.json").write_text(json.dumps(marked))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return tmp_path


MARKS: dict[str, list[pytest.MarkDecorator]] = {
    "own-keypoints.md": [pytest.mark.slow],  # trains a model, exports it and compares the file
    "pairs.md": [
        pytest.mark.slow,  # starts Ray and a pool of processes
        pytest.mark.enable_socket,
        pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray Data warns of options of its own
        pytest.mark.skipif(find_spec("ray") is None, reason="the extra 'cluster' is not installed"),
    ],
}
RUNNABLE = [pytest.param(page, id=page.name, marks=MARKS.get(page.name, ())) for page in PAGES if runnable(page)]


@pytest.mark.parametrize("page", RUNNABLE)
@pytest.mark.usefixtures("folder")
def test_every_snippet_runs(page: Path, capsys: pytest.CaptureFixture[str]):
    names: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for block in blocks_of(page):
        if block.title == "Output":
            assert_alike(printed, block)
        elif block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif not block.reason and block.language in ("python", "sh"):
            run_block(block, names, capsys)
            printed = capsys.readouterr().out
    for matplotlib in filter(None, [sys.modules.get("matplotlib.pyplot")]):
        matplotlib.close("all")


def run_block(block: Block, names: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    if block.language == "python":
        exec(compile("\n" * (block.line - 1) + block.text, str(block.page), "exec"), names)
        return
    for words in commands_of(block):
        target = None
        if ">" in words:
            words, target = words[: words.index(">")], words[words.index(">") + 1]
        if words[0] != "transformatcher":
            pytest.fail(f"{block}: {words[0]!r} is run by nobody; say why: <!-- not run: … -->")
        if words[1] not in subcommands():
            pytest.skip(f"{block}: there is no {words[1]!r} yet")
        try:
            code = cli.main(words[1:])
        except SystemExit as stop:  # argparse
            code = stop.code
        assert code == 0, f"{block}: {shlex.join(words)}\n{capsys.readouterr().err}"
        if target is not None:
            Path(target).write_text(capsys.readouterr().out, encoding="utf-8")


def assert_alike(printed: str, block: Block) -> None:
    """The same words; numbers nearly so, for other machines add in another order."""
    wanted, got = (re.findall(r"-?\d+(?:\.\d+)?|[^\W\d_]+", text) for text in (block.text, printed))
    message = f"{block}: what is printed is\n{printed}"
    assert len(wanted) == len(got), message
    for one, other in zip(wanted, got, strict=True):
        if one == other:
            continue
        try:
            digits = len(one.partition(".")[2])
            assert float(other) == pytest.approx(float(one), rel=0.02, abs=2 * 10**-digits), message
        except ValueError:
            raise AssertionError(message) from None


def test_code_is_called_by_the_names_that_are_run():
    for page in PAGES:
        for block in blocks_of(page):
            if block.language in ("bash", "shell", "console", "py", "pycon"):
                pytest.fail(f"{block}: call the language sh or python, that it be run")
    assert sum(len(runnable(page)) for page in PAGES) > 15


def subcommands() -> dict[str, argparse.ArgumentParser]:
    (action,) = (item for item in cli.build_parser()._actions if isinstance(item, argparse._SubParsersAction))
    return dict(action.choices)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_not_run_still_parse(page: Path):
    for block in blocks_of(page):
        if block.language != "sh" or not block.reason:
            continue
        for words in commands_of(block):
            words = list(itertools.takewhile(lambda word: word not in (">", "|"), words))
            if words[:1] == ["torchrun"]:
                words = ["transformatcher", *words[words.index("transformatcher", 1) + 1 :]]
            if words[0] != "transformatcher" or any(PLACEHOLDER in word for word in words):
                continue
            if words[1] not in subcommands():
                pytest.skip(f"{block}: there is no {words[1]!r} yet")
            try:
                cli.build_parser().parse_args(words[1:])
            except SystemExit:
                pytest.fail(f"{block}: the command does not know {shlex.join(words)}")


# ---------------------------------------------------------------- pages that are made


def make_script(name: str) -> ModuleType:
    """A script of docs/make, as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_make_{name}", DOCS / "make" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFERENCE = make_script("reference")


@pytest.mark.parametrize("name", REFERENCE.PAGES)
def test_made_pages_are_up_to_date(name: str):
    fresh = REFERENCE.PAGES[name]()
    assert (DOCS / name).read_text(encoding="utf-8") == fresh, "run: python docs/make/reference.py"


def test_the_leaderboard_is_up_to_date():
    made = make_script("leaderboard")
    page = (DOCS / "leaderboard.md").read_text(encoding="utf-8")
    assert page == made.leaderboard_page(), "run: python docs/make/leaderboard.py"


def test_rows_of_the_leaderboard_say_what_the_paper_prints():
    """Those from its Table 1; others have no second place to differ from."""
    rows = tomllib.loads((DOCS / "make" / "leaderboard.toml").read_text(encoding="utf-8"))["row"]
    keys = {"spair_10": "spair_f", **{key: key for key in ("pascal_05", "pascal_10", "willow_kp", "willow_padded")}}
    checked = 0
    for row in rows:
        name = row["method"] + "†" * ("augmented" in row["training"])
        if row["source"] in ("paper", "paper2") and name in TABLE_1:
            checked += 1
            assert {key: row.get(key) for key in keys} == {key: getattr(TABLE_1[name], at) for key, at in keys.items()}
    assert checked == 10


@pytest.mark.parametrize("change", [{"source": "nowhere"}, {"backbone": ""}, {"pck": 99.0}])
def test_a_row_without_a_source_is_refused(change):
    made = make_script("leaderboard")
    data = tomllib.loads((DOCS / "make" / "leaderboard.toml").read_text(encoding="utf-8"))
    data["row"][0] |= change
    with pytest.raises(ValueError, match="NC-Net: lacks"):
        made.check(data)


def test_no_key_and_no_argument_without_a_word():
    for name in ("cli.md", "config.md"):
        for line in (DOCS / name).read_text(encoding="utf-8").splitlines():
            assert "|  |" not in line, (
                f"docs/{name}: {line} says nothing; give it a description in transformatcher/config, or a help"
            )


def test_the_reference_has_every_public_name():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    missing = [
        name
        for name in transformatcher.__all__
        if name != "__version__" and f"::: transformatcher.{name}\n" not in page
    ]
    assert missing == [], "add them to docs/api.md"


def test_pictures_are_drawn(tmp_path: Path):
    make_script("pictures").main(tmp_path)
    drawn = {picture.name for picture in tmp_path.iterdir()}
    assert {"demo.png", "tutorial-flow.webp", "pck-thresholds.webp", "ablate-refiners.png"} <= drawn
    assert drawn <= {picture.name for picture in (DOCS / "images").iterdir()}


# ---------------------------------------------------------------- links


def prose_of(page: Path) -> str:
    """A page without its code, whose brackets are no links and whose comments no headings."""
    text = re.sub(r"^(`{3,}).*?^\1 *$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, by the rule that code hosts and our site share."""
    anchors: set[str] = set()
    for title in re.findall(r"^#{1,6} +(.+?) *$", prose_of(page), flags=re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").lower()
        anchors.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return anchors


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    text = re.sub(r"`[^`\n]*`", "", prose_of(page))
    for link in re.findall(r"\]\(([^)\s]+)", text) + re.findall(r'(?:src|href)="([^"]+)"', text):
        if re.match(r"https?://|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.relative_to(ROOT)}: no file for the link {link}"
        assert ROOT in target.parents, f"{page.relative_to(ROOT)}: {link} leaves the repository"
        if anchor:
            assert anchor in anchors_of(target), f"{page.relative_to(ROOT)}: no heading for the link {link}"


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path):
    paths = itertools.chain(ROOT.glob("*"), *((ROOT / folder).rglob("*") for folder in NAMED_IN))
    known = [path.relative_to(ROOT).as_posix() for path in paths]
    for name in re.findall(r"`((?:[\w-]+/)*[\w*-]+\.(?:py|toml))`", prose_of(page)):
        if not any(fnmatch(path, name) or fnmatch(path, f"*/{name}") for path in known):
            pytest.fail(f"{page.relative_to(ROOT)} names {name}, which does not exist")


# ---------------------------------------------------------------- the site


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="the extra 'docs' is not installed")
def test_the_site_is_whole_and_loads_nothing_from_elsewhere(tmp_path: Path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 8
    for page in pages:
        html = page.read_text(encoding="utf-8")
        loaded = re.findall(
            r'<(?:script|img|iframe|source|video|link)\b[^>]*?(?:src|href)="((?:https?:)?//[^"]+)"', html
        )
        assert loaded == [], page.name
