import io
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from transformatcher.errors import InputError
from transformatcher.images import count_jpeg_scans, image_size, read_image, read_reduced, to_tensor


def save(path: Path, pixels: np.ndarray, **options) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


RAMP = np.tile(np.arange(0, 240, 2, dtype=np.uint8), (40, 1))  # 40 × 120, dark left, bright right


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "CMYK", "1"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode):
    path = tmp_path / ("x.tif" if mode in {"CMYK", "LA"} else "x.png")
    Image.fromarray(RAMP).convert("RGB").convert(mode).save(path)
    image = read_image(path)
    assert image.shape == (40, 120, 3)
    assert image[:, 60:].mean() > image[:, :60].mean() + 50


def test_sixteen_bits_keep_their_range(tmp_path: Path):
    path = save(tmp_path / "x.png", RAMP.astype(np.uint16) * 257)
    np.testing.assert_array_equal(read_image(path)[..., 0], RAMP)


def test_transparent_is_white(tmp_path: Path):
    path = save(tmp_path / "x.png", np.zeros((4, 4, 4), dtype=np.uint8))
    assert (read_image(path) == 255).all()


def test_exif_orientation(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise
    path = save(tmp_path / "x.jpg", np.stack([RAMP] * 3, axis=-1), exif=exif)
    assert read_image(path).shape == (120, 40, 3)
    assert read_image(path, orient=False).shape == (40, 120, 3)
    assert read_image(path)[:60].mean() < read_image(path)[60:].mean()


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_size_without_decoding(tmp_path: Path, orientation, ending):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path / f"x.{ending}", np.stack([RAMP] * 3, axis=-1), exif=exif)
    for orient in (True, False):
        assert image_size(path, orient=orient) == read_image(path, orient=orient).shape[:2]
    assert image_size(RAMP[..., None].repeat(3, axis=2)) == (40, 120)


def test_tensor_is_resized_and_normalised():
    white = to_tensor(np.full((10, 20, 3), 255, dtype=np.uint8), (32, 48))
    assert white.shape == (3, 32, 48)
    torch.testing.assert_close(
        white[:, 0, 0], (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    )


def test_resized_as_torchvision_does_it():
    """Whose import takes two seconds, which is why it is not asked."""
    tv = pytest.importorskip("torchvision.transforms.v2.functional")
    for shape in ((60, 80), (300, 451), (64, 48)):
        image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
        theirs = tv.to_dtype(
            tv.resize(torch.from_numpy(image).permute(2, 0, 1), [64, 48], antialias=True), torch.float32, scale=True
        )
        theirs = tv.normalize(theirs, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        for mine in (to_tensor(image, (64, 48)), to_tensor(image[:, ::-1], (64, 48)).flip(2)):
            torch.testing.assert_close(mine, theirs, atol=0.02, rtol=0)  # a byte rounded the other way


def test_bad_files_are_named(tmp_path: Path):
    with pytest.raises(InputError, match="a folder, not an image"):
        read_image(tmp_path)
    with pytest.raises(InputError, match=r"gone\.jpg: no such image file"):
        read_image(tmp_path / "gone.jpg")
    (tmp_path / "bad.jpg").write_bytes(b"not an image")
    with pytest.raises(InputError, match=r"bad\.jpg: not an image that can be decoded"):
        read_image(tmp_path / "bad.jpg")
    with pytest.raises(InputError, match=r"bad\.jpg: not an image that can be decoded"):
        image_size(tmp_path / "bad.jpg")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jpg", b"", r"empty\.jpg: the file is empty"),
        ("text.jpg", b"Dear all,\n", r"text\.jpg: not an image that can be decoded \(Pillow does not know its format"),
        ("cut.png", b"\x89PNG\r\n\x1a\n\0\0", r"cut\.png: not an image that can be decoded"),
        (
            "x.eps",
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
            r"x\.eps: an EPS file is a program",
        ),
    ],
)
def test_what_is_no_image(tmp_path: Path, name, content, message):
    (tmp_path / name).write_bytes(content)
    for read in (read_image, image_size):
        with pytest.raises(InputError, match=message):
            read(tmp_path / name)


def test_more_pixels_than_memory(tmp_path: Path):
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0))
    path = tmp_path / "huge.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b""))
    with pytest.raises(InputError, match=r"huge\.png: too many pixels to be decoded; scale it down .*900000000 pixels"):
        read_image(path)


def test_what_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> bool:
        raise PermissionError(13, "Permission denied")

    path = save(tmp_path / "x.png", RAMP)
    monkeypatch.setattr(Path, "is_file", refuse)  # as in a folder that may not be entered
    with pytest.raises(InputError, match=r"x\.png: cannot be read \(Permission denied\)"):
        read_image(path)


def test_a_decoder_may_raise_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stumble(*_: object) -> None:
        raise IndexError("list index out of range")

    path = save(tmp_path / "x.png", RAMP)
    monkeypatch.setattr("transformatcher.images.to_rgb", stumble)
    with pytest.raises(InputError, match=r"x\.png: not an image that can be decoded \(list index"):
        read_image(path)


def test_truncated_file(tmp_path: Path):
    path = save(tmp_path / "x.jpg", np.random.default_rng(0).integers(0, 255, (80, 80, 3), dtype=np.uint8))
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(InputError, match=r"x\.jpg: not an image that can be decoded"):
        read_image(path)


class TestScans:
    """Progressive JPEGs whose scans take longer to decode than anybody waits for."""

    def jpeg(self, scans: int, size: tuple[int, int] = (64, 48)) -> bytes:
        """A photo with further scans of its last coefficients, 23 bytes each."""
        buffer = io.BytesIO()
        Image.new("RGB", size, (90, 120, 40)).save(buffer, "JPEG", progressive=True)
        data = buffer.getvalue()
        last = data[data.rindex(b"\xff\xda") : -2]
        return data[:-2] + last * (scans - count_jpeg_scans(data)) + data[-2:]

    @pytest.mark.parametrize("scans", [10, 11, 500])
    def test_as_many_as_encoders_make(self, scans, tmp_path: Path):
        data = self.jpeg(scans)
        assert count_jpeg_scans(data) == scans
        (tmp_path / "photo.jpg").write_bytes(data)
        assert read_image(tmp_path / "photo.jpg").shape == (48, 64, 3)

    @pytest.mark.parametrize("read", [read_image, image_size, lambda path: read_reduced(path, 100, 10**8)])
    def test_too_many_are_refused_at_once(self, read, tmp_path: Path):
        (tmp_path / "bomb.jpg").write_bytes(self.jpeg(30_000))
        start = time.monotonic()
        with pytest.raises(InputError, match=r"bomb\.jpg: a progressive JPEG of 30,000 scans, .*the limit .* is 500"):
            read(tmp_path / "bomb.jpg")
        assert time.monotonic() - start < 2

    def test_the_limit_of_a_large_photo_is_lower(self, tmp_path: Path):
        (tmp_path / "bomb.jpg").write_bytes(self.jpeg(60, (9000, 9000)))
        with pytest.raises(InputError, match=r"60 scans, .*the limit for its size is 50"):
            read_image(tmp_path / "bomb.jpg")

    def test_bytes_that_only_look_like_scans(self, tmp_path: Path):
        plain = self.jpeg(10)
        comment = b"\xff\xfe" + (2 + 2 * 1000).to_bytes(2, "big") + b"\xff\xda" * 1000
        data = plain[:2] + comment + plain[2:] + b"\xff\xda" * 1000  # in a comment, and after the end
        assert count_jpeg_scans(data) == 10
        (tmp_path / "photo.jpg").write_bytes(data)
        assert read_image(tmp_path / "photo.jpg").shape == (48, 64, 3)

    @pytest.mark.parametrize("data", [b"", b"\xff\xd8", b"\xff\xd8\xff", b"\xff\xd8\xff\xda", b"GIF89a\xff\xda"])
    def test_what_is_no_jpeg(self, data):
        assert count_jpeg_scans(data) <= 1
