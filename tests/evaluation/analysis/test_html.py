"""Pages: self-contained, and every value in them escaped."""

import re
from io import BytesIO
from pathlib import Path

import pytest
from conftest import write_image
from helpers.html_page import check_page
from matplotlib.figure import Figure
from PIL import Image

from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.html import (
    Article,
    Code,
    Commands,
    EmbeddedImage,
    Folded,
    Link,
    PageSection,
    Paragraph,
    TableBlock,
    embed_file,
    embed_photos,
    embed_plot,
    render_page,
    save_with_command,
    slug,
)
from transformatcher.evaluation.analysis.tables import Section, Table

BAD = '<script>alert("&\'")</script>'
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def drawn() -> Figure:
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1])
    return figure


def test_every_value_is_escaped():
    """All blocks, with markup in every field that can hold text."""
    image = EmbeddedImage(PIXEL, BAD, BAD)
    table = Table("t", BAD, [BAD, BAD], [Section([[BAD, BAD]], BAD)], [BAD], [BAD])
    blocks = [
        Paragraph(BAD), image, TableBlock(table), TableBlock(table, caption=False), Commands([BAD]), Code(BAD),
        Article("b", BAD, BAD, image, previous="a", next="c"), Folded(BAD, [Paragraph(BAD)]),
    ]  # fmt: skip
    sections = [PageSection("a", BAD, blocks), PageSection("c", "x", [])]
    text = render_page(BAD, [Paragraph(BAD)], sections, [Link("a", BAD)])
    check_page(text)
    assert "alert(&#34;&amp;&#39;&#34;)" in text
    assert BAD not in text
    assert len(re.findall("&lt;script&gt;", text)) == len(re.findall("alert", text)) == 33


def test_a_table():
    table = Table("t", "A & B", ["model", "x"], [Section([["a", "1.0"]], "50 %"), Section([["†", "<2>"]])], ["note"])
    text = render_page("t", [], [PageSection("a", "t", [TableBlock(table)])])
    assert "<caption>A &amp; B</caption>" in text
    assert '<tr><th scope="row">†</th><td>&lt;2&gt;</td></tr>' in text
    assert '<tr><th scope="rowgroup" colspan="2">50 %</th></tr>' in text
    assert "<p>note</p>" in text
    assert "<caption>" not in render_page("t", [], [PageSection("a", "t", [TableBlock(table, caption=False)])])


def test_contents_are_the_sections_where_none_are_given():
    text = render_page("t", [], [PageSection("one", "First", []), PageSection("two", "Second", [])])
    assert re.findall('<li><a href="#(.*?)">(.*?)</a></li>', text) == [("one", "First"), ("two", "Second")]


@pytest.mark.parametrize("uri", ["", "https://x/a.png", "data:text/html;base64,YQ==", f'{PIXEL}" onload="x'])
def test_only_image_data_is_an_image(uri):
    with pytest.raises(ValueError, match="not the data of an image"):
        EmbeddedImage(uri, "alt")


def test_anchors():
    assert slug("A run (2)") == "a-run-2"
    assert slug("<>") == "part"


def test_figures():
    assert embed_plot(drawn(), "alt").uri.startswith("data:image/png;base64,")
    assert embed_photos(drawn(), "alt").uri.startswith("data:image/jpeg;base64,")


def test_a_file_that_is_no_picture(tmp_path):
    (tmp_path / "a.png").write_text("no picture")
    with pytest.raises(InputError, match=r"a\.png: not a picture"):
        embed_file(tmp_path / "a.png")
    (block,) = embed_file(write_image(tmp_path / "b.png"))
    assert block.caption == "b.png"


def test_a_picture_keeps_its_command(tmp_path: Path):
    save_with_command(drawn(), tmp_path / "deep" / "a.png", "transformatcher analyse attention <a>")
    with Image.open(tmp_path / "deep" / "a.png") as image:
        assert image.info["Description"] == "transformatcher analyse attention <a>"
    assert embed_file(tmp_path / "deep" / "a.png")[1] == Commands(["transformatcher analyse attention <a>"])
    save_with_command(drawn(), tmp_path / "a.svg", "x")
    assert (tmp_path / "a.svg").is_file()


def test_an_interruption_leaves_the_old_picture(tmp_path: Path):
    class Interrupted(Figure):
        def savefig(self, file: BytesIO, **_: object) -> None:
            file.write(b"half of")
            raise KeyboardInterrupt

    path = tmp_path / "a.png"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        save_with_command(Interrupted(), path, "x")
    assert [(left.name, left.read_bytes()) for left in tmp_path.iterdir()] == [("a.png", b"old")]
