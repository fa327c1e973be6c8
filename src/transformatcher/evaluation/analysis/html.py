"""Headings, figures and tables → one HTML page that needs nothing beside it."""

import base64
import html
import io
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from transformatcher.errors import InputError
from transformatcher.evaluation.analysis.tables import commands_html
from transformatcher.viz.pictures import save_figure

COMMAND_KEY = "Description"  # of a PNG's text


def page(title: str, lead: str, contents: Sequence[tuple[str, str]], body: str) -> str:
    """The whole page.

    Args:
        title: plain text.
        lead: HTML under the title.
        contents: (anchor, plain text) of what to jump to.
        body: HTML.
    """
    template = (files("transformatcher.evaluation.analysis") / "templates" / "page.html").read_text(encoding="utf-8")
    entries = "\n".join(f'<li><a href="#{anchor}">{html.escape(text)}</a></li>' for anchor, text in contents)
    return Template(template).substitute(
        title=html.escape(title), lead=lead, contents=f"<ol>\n{entries}\n</ol>", body=body
    )


def heading(level: int, text: str, anchor: str) -> str:
    """A heading that links to itself."""
    return f'<h{level} id="{anchor}"><a href="#{anchor}">{html.escape(text)}</a></h{level}>'


def paragraph(text: str) -> str:
    """Plain text → a paragraph."""
    return f"<p>{html.escape(text)}</p>"


def slug(text: str) -> str:
    """A name as part of an anchor."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "part"


def plot(figure: Figure, alt: str, caption: str = "", dpi: int = 90) -> str:
    """A drawn figure → a ``figure`` element; lines and text stay sharp, so PNG."""
    return _element(_png(figure, dpi), "png", alt, caption)


def photo_plot(figure: Figure, alt: str, caption: str = "", dpi: int = 80) -> str:
    """A figure that shows photos → a ``figure`` element; as JPEG it takes a fifth of the room."""
    with Image.open(io.BytesIO(_png(figure, dpi))) as image:
        return _element(_jpeg(image), "jpeg", alt, caption)


def picture(path: Path, caption: str = "", widest: int = 1000) -> str:
    """A picture from a file → a ``figure`` element, not wider than can be seen, and its command if it tells one."""
    try:
        with Image.open(path) as image:
            command = image.info.get(COMMAND_KEY, "")
            h = round(image.height * min(widest / image.width, 1))
            data = _jpeg(image.convert("RGB").resize((min(widest, image.width), h), Image.Resampling.LANCZOS))
    except OSError as error:
        raise InputError(f"{path}: not a picture that can be decoded ({error})") from error
    return _element(data, "jpeg", f"picture {path.name}", caption or path.name) + commands_html(
        [command][: bool(command)]
    )


def save_with_command(figure: Figure, path: Path, command: str) -> None:
    """Write a figure; a .png keeps the command that made it."""
    save_figure(figure, path, {COMMAND_KEY: command} if path.suffix.lower() == ".png" else None)


def _png(figure: Figure, dpi: int) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
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


def _element(data: bytes, kind: str, alt: str, caption: str) -> str:
    uri = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    words = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return f'<figure><img src="{uri}" alt="{html.escape(alt)}">{words}</figure>'
