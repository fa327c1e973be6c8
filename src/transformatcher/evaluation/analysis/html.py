"""Paragraphs, figures and tables → one HTML page that needs no other file.

A page is made of blocks, small records of plain text and data. The templates turn them into HTML and escape every
value, so that no name, title or category can become markup.
"""

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure
from PIL import Image

from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.tables import Table
from transformatcher.viz.pictures import render_figure, save_figure

COMMAND_KEY = "Description"  # of the text in a PNG file: the command that drew it
IMAGE_URI = re.compile(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True)
class Paragraph:
    """Plain text."""

    kind: ClassVar = "paragraph"
    text: str


@dataclass(frozen=True)
class EmbeddedImage:
    """An image inside the page."""

    kind: ClassVar = "image"
    uri: str  # data:image/…
    alt: str
    caption: str = ""

    def __post_init__(self) -> None:
        if not IMAGE_URI.fullmatch(self.uri):
            raise ValueError(f"not the data of an image: {self.uri[:40]}")


@dataclass(frozen=True)
class TableBlock:
    """A table with its notes and commands; without a caption where the heading above names it already."""

    kind: ClassVar = "table"
    table: Table
    caption: bool = True


@dataclass(frozen=True)
class Commands:
    """Shell commands that make the numbers above again."""

    kind: ClassVar = "commands"
    lines: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Text in a fixed-width font."""

    kind: ClassVar = "code"
    text: str


@dataclass(frozen=True)
class Article:
    """One pair of photos in a gallery; previous and next are anchors, empty at the ends."""

    kind: ClassVar = "article"
    anchor: str
    title: str
    facts: str
    image: EmbeddedImage
    previous: str = ""
    next: str = ""


@dataclass(frozen=True)
class Folded:
    """Blocks that show after a click on the summary."""

    kind: ClassVar = "folded"
    summary: str
    blocks: Sequence["Block"]


Block = Paragraph | EmbeddedImage | TableBlock | Commands | Code | Article | Folded


@dataclass(frozen=True)
class PageSection:
    """A heading with what is below it."""

    anchor: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Link:
    """An entry of the table of contents."""

    anchor: str
    title: str


def render_page(
    title: str, lead: Sequence[Block], sections: Sequence[PageSection], contents: Sequence[Link] | None = None
) -> str:
    """The whole page as HTML.

    Args:
        title: of the page.
        lead: what stands under the title.
        sections: the body.
        contents: of the table of contents; None lists the sections.
    """
    environment = Environment(
        loader=PackageLoader("transformatcher.evaluation.analysis"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    links = [Link(section.anchor, section.title) for section in sections] if contents is None else contents
    template = environment.get_template("page.html.jinja")
    return template.render(title=title, lead=lead, contents=links, sections=sections)


def slug(text: str) -> str:
    """A name as part of an anchor: lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "part"


def embed_plot(figure: Figure, alt: str, caption: str = "", dpi: int = 90) -> EmbeddedImage:
    """A figure of lines and text, as PNG, which keeps them sharp."""
    return EmbeddedImage(_data_uri(_png(figure, dpi), "png"), alt, caption)


def embed_photos(figure: Figure, alt: str, caption: str = "", dpi: int = 80) -> EmbeddedImage:
    """A figure that shows photos, as JPEG, which takes a fifth of the space of a PNG."""
    with Image.open(io.BytesIO(_png(figure, dpi))) as image:
        return EmbeddedImage(_data_uri(_jpeg(image), "jpeg"), alt, caption)


def embed_file(path: Path, max_width: int = 1000) -> list[Block]:
    """An image file, at most ``max_width`` pixels wide, and the command that drew it where the file stores one."""
    try:
        with Image.open(path) as image:
            command = str(image.info.get(COMMAND_KEY, ""))
            h = round(image.height * min(max_width / image.width, 1))
            data = _jpeg(image.convert("RGB").resize((min(max_width, image.width), h), Image.Resampling.LANCZOS))
    except OSError as error:
        raise InputError(f"{path}: not a picture that can be decoded ({error})") from error
    block = EmbeddedImage(_data_uri(data, "jpeg"), f"picture {path.name}", path.name)
    return [block, Commands([command])] if command else [block]


def save_with_command(figure: Figure, path: Path, command: str) -> None:
    """Write a figure; a .png also stores the command that made it."""
    save_figure(figure, path, {COMMAND_KEY: command} if path.suffix.lower() == ".png" else None)


def _png(figure: Figure, dpi: int) -> bytes:
    buffer = io.BytesIO()
    render_figure(figure, buffer, "png", dpi=dpi)
    with Image.open(buffer) as image:  # plots have few colours: a palette halves the file
        small = image.convert("RGB")
    if len(small.getcolors(maxcolors=2**24) or []) <= 20_000:
        small = small.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    small.save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def _jpeg(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(image.convert("RGB"))).save(buffer, format="jpeg", quality=82, optimize=True)
    return buffer.getvalue()


def _data_uri(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
