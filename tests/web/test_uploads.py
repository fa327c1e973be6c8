"""Uploaded files are decoded within limits, or refused."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.web_client import PageClient, encode_image, make_client, picture, png_header
from PIL import Image

from transformatcher.inference.matcher import Matcher
from transformatcher.web.session import Limits


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "photo.png: the file is empty"),
        (b"garbage" * 100, "photo.png: not a photo in a supported format"),
        (encode_image(picture())[:3000], "photo.png: the photo is damaged"),
        (b"GIF89a" + bytes(20), "photo.png: "),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a photo"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a photo"),  # Pillow would start Ghostscript
        (b"II*\x00" + bytes(64), "photo.png: "),
    ],
)
def test_garbage(client: Any, data: bytes, message: str):
    assert message in PageClient(client).upload(data, status=422)["error"]


@pytest.mark.parametrize("size", [(60_000, 60_000), (11_000, 9_000), (8_000, 7_000)])
def test_a_decompression_bomb_is_refused_by_its_header(client: Any, size: tuple[int, int]):
    assert "the limit is 50 million pixels" in PageClient(client).upload(png_header(*size), status=413)["error"]


def test_limits(matcher: Matcher):
    data = encode_image(picture())
    with make_client(matcher, Limits(upload_bytes=len(data), pixels=200 * 120, photos=2)) as client:
        page = PageClient(client)
        page.upload(data, "source")
        assert page.upload(data + b"x", status=413)["error"].startswith("The file is too large: the limit is 0.0")
        assert "201 × 120" in page.upload(png_header(201, 120), status=413)["error"]
        page.upload(data)
        assert "at most 2 photos" in page.upload(data, status=422)["error"]


def test_photos_are_rotated_and_large_ones_stored_small(client: Any):
    page = PageClient(client)
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode_image(np.zeros((1000, 3000, 3), np.uint8), "JPEG", exif=exif)
    state = page.upload(data, "source", "rotated.jpg")
    assert (state["photos"][0]["width"], state["photos"][0]["height"]) == (1000, 3000)
    shown = page.request("GET", f"/photos/{state['source']}/image")
    with Image.open(io.BytesIO(shown.content)) as image:
        assert max(image.size) == 1280
    state = page.add_point(999, 2999)  # pixels of the original
    assert (state["points"][0]["x"], state["points"][0]["y"]) == (999, 2999)


@pytest.mark.parametrize(
    ("name", "shown"),
    [("../../etc/passwd", "passwd"), ("C:\\photos\\a.png", "a.png"), ("a\x00\u202eb.png", "ab.png"), ("", "photo")],
)
def test_names_have_no_folders_and_no_control_characters(client: Any, name: str, shown: str):
    assert PageClient(client).upload(encode_image(picture()), name=name)["photos"][0]["name"] == shown


def test_nothing_is_written_to_disk(page: PageClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    noise = np.random.default_rng(0).integers(0, 255, (900, 900, 3), dtype=np.uint8)
    page.upload(encode_image(noise))  # more than a form parser would keep in memory
    page.add_point(9, 9)
    page.request("GET", "/coco")
    assert list(tmp_path.iterdir()) == []
