"""Uploaded files are decoded within limits, or refused."""

import io
from pathlib import Path

import numpy as np
import pytest
from helpers.studio_client import StudioClient, open_project
from helpers.web_client import encode_image, picture, png_header
from PIL import Image

from transformatcher.errors import InputError
from transformatcher.web.uploads import Limits, check_upload, read_upload


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
def test_garbage(temporary: StudioClient, data: bytes, message: str):
    assert message in temporary.error("POST", "/photos?name=photo.png", 422, content=data)
    assert temporary.get("/photos")["photos"] == []
    assert list(temporary.project.folder.glob("photo*")) == []


@pytest.mark.parametrize("size", [(60_000, 60_000), (11_000, 9_000), (8_000, 7_000)])
def test_a_decompression_bomb_is_refused_by_its_header(temporary: StudioClient, size: tuple[int, int]):
    message = temporary.error("POST", "/photos?name=a.png", 413, content=png_header(*size))
    assert "the limit is 50 million pixels" in message


def test_limits(tmp_path: Path):
    data = encode_image(picture())
    limits = Limits(upload_bytes=len(data), pixels=200 * 120, photos=3, total_bytes=2 * len(data) + 10)
    with open_project(tmp_path) as project, StudioClient(project, temporary=True, limits=limits) as client:

        def upload(content: bytes, status: int = 413) -> str:
            answer = client.post("/photos?name=a.png", content=content, status=status)
            return str(answer.get("error"))

        upload(data, 201)
        assert upload(data + b"x").startswith("The file is too large: the limit is 0.0")
        assert "201 × 120" in upload(png_header(201, 120))
        upload(data, 201)
        assert "of photos here; for more: transformatcher annotate FOLDER" in upload(data)
        upload(encode_image(np.zeros((1, 1, 3), np.uint8), "JPEG", quality=1)[:10], 422)
        client.project.folder.joinpath("a.png").write_bytes(b"")  # room for more
        client.post("/scan")
        upload(data, 201)
        assert upload(encode_image(np.zeros((9, 9, 3), np.uint8))).startswith("No more than 3 photos here")


def test_photos_are_rotated(temporary: StudioClient):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode_image(np.zeros((1000, 3000, 3), np.uint8), "JPEG", exif=exif)
    photo = temporary.post("/photos?name=rotated.jpg", content=data, status=201)["photo"]
    assert (photo["width"], photo["height"]) == (1000, 3000)
    with Image.open(io.BytesIO(temporary.get(f"/photos/{photo['id']}/image").content)) as image:
        assert image.height == 2560
    upload = read_upload(data, "rotated.jpg", 10_000_000)
    assert upload.size == (3000, 1000)
    assert upload.pixels.shape == (1280, 427, 3)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/passwd", "passwd.png"),
        ("C:\\photos\\a.png", "a.png"),
        ("a\x00\u202eb.png", "ab.png"),
        ("/", "photo.png"),
    ],
)
def test_names_have_no_folders_and_no_control_characters(temporary: StudioClient, name: str, shown: str):
    photo = temporary.post("/photos", content=encode_image(picture()), params={"name": name}, status=201)["photo"]
    assert photo["path"] == shown


def test_nothing_is_written_outside_the_folder(
    temporary: StudioClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    noise = np.random.default_rng(0).integers(0, 255, (900, 900, 3), dtype=np.uint8)
    data = encode_image(noise)  # more than a form parser would keep in memory
    photo = temporary.post("/photos?name=a.png", content=data, status=201)["photo"]
    temporary.get(f"/photos/{photo['id']}/thumbnail")
    temporary.get("/export?format=coco")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", "temporary"}


def test_a_jpeg_of_thousands_of_scans():
    buffer = io.BytesIO()
    Image.new("RGB", (64, 48)).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    bomb = data[:-2] + data[data.rindex(b"\xff\xda") : -2] * 20_000 + data[-2:]
    for read in (read_upload, check_upload):
        with pytest.raises(InputError, match=r"a\.jpg: a progressive JPEG of 20,010 scans, which would take too long"):
            read(bomb, "a.jpg", 10**6)
