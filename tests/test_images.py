from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from transformatcher.errors import InputError
from transformatcher.images import image_size, read_image, to_tensor


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


@pytest.mark.parametrize("orientation", range(1, 9))
def test_size_without_decoding(tmp_path: Path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path / "x.jpg", np.stack([RAMP] * 3, axis=-1), exif=exif)
    for orient in (True, False):
        assert image_size(path, orient=orient) == read_image(path, orient=orient).shape[:2]
    assert image_size(RAMP[..., None].repeat(3, axis=2)) == (40, 120)


def test_tensor_is_resized_and_normalised():
    white = to_tensor(np.full((10, 20, 3), 255, dtype=np.uint8), (32, 48))
    assert white.shape == (3, 32, 48)
    torch.testing.assert_close(
        white[:, 0, 0], (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    )


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


def test_truncated_file(tmp_path: Path):
    path = save(tmp_path / "x.jpg", np.random.default_rng(0).integers(0, 255, (80, 80, 3), dtype=np.uint8))
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(InputError, match=r"x\.jpg: not an image that can be decoded"):
        read_image(path)
