"""Pictures of photos, as the page shows them."""

import io
from pathlib import Path

import pytest
from PIL import Image, ImageCms

from transformatcher.errors import InputError
from transformatcher.web.studio import pictures
from transformatcher.web.studio.pictures import Pictures, file_version


def shown(path: Path, picture: bytes | Path) -> Image.Image:
    return Image.open(path if isinstance(picture, Path) else io.BytesIO(picture))


def test_the_profile_of_the_colours_is_kept(tmp_path: Path):
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    Image.new("RGB", (400, 300), "teal").save(path := tmp_path / "a.png", icc_profile=profile)
    assert shown(path, Pictures(tmp_path / "cache").thumbnail(path, "1")).info["icc_profile"] == profile


def test_one_of_other_colours_is_not(tmp_path: Path):
    Image.new("CMYK", (400, 300), (200, 0, 0, 0)).save(path := tmp_path / "a.jpg", icc_profile=b"of ink")
    picture = shown(path, Pictures(tmp_path / "cache").large(path, "1"))
    assert picture.mode == "RGB"
    assert "icc_profile" not in picture.info


def test_pictures_in_memory_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Image.effect_noise((200, 200), 50).save(path := tmp_path / "a.png")
    made = []
    original = pictures.read_reduced
    monkeypatch.setattr(pictures, "read_reduced", lambda *args: made.append(args) or original(*args))
    cache = Pictures(tmp_path / "cache")
    size = len(cache.large(path, "1"))
    monkeypatch.setattr(pictures, "CACHE_BYTES", 2 * size)
    for version in ("2", "1", "3", "1"):
        cache.large(path, version)
    assert len(made) == 3
    cache.large(path, "2")  # used least recently, so it was dropped
    assert len(made) == 4


def test_a_version_is_that_of_the_content(tmp_path: Path):
    path = tmp_path / "a.png"
    with pytest.raises(InputError, match=r"a\.png: the file is not there any more"):
        file_version(path)
    path.write_bytes(b"1")
    first = file_version(path)
    assert file_version(path) == first
    path.write_bytes(b"12")
    assert file_version(path) != first
    with pytest.raises(InputError, match="cannot be read"):
        file_version(tmp_path / ("x" * 300))
