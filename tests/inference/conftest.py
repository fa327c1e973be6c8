"""Photos to match, and an annotated set to propagate."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.propagation import POINTS, make_photo
from PIL import Image

from transformatcher.data.synthetic import synthetic_pair


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    image = synthetic_pair(3, size=(120, 200))[0].src_image
    assert isinstance(image, np.ndarray)
    return image


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Two photos of one thing, the second without its last keypoint, and one of another kind; a fourth has none."""
    folder = tmp_path / "annotated"
    (folder / "images").mkdir(parents=True)
    for name, seed in (("a.png", 0), ("b.png", 1), ("c.png", 2), ("d.png", 3)):
        make_photo(seed).save(folder / "images" / name)

    def note(number: int, image: int, category: int, flags: str) -> dict[str, Any]:
        points = [v for (x, y), flag in zip(POINTS.values(), flags, strict=False) for v in (x, y, int(flag))]
        return {"id": number, "image_id": image, "category_id": category, "keypoints": points}

    data = {
        "images": [{"id": 10 + i, "file_name": f"{n}.png", "width": 200, "height": 120} for i, n in enumerate("abcd")],
        "categories": [
            {"id": 3, "name": "thing", "keypoints": list(POINTS), "skeleton": [[1, 2]]},
            {"id": 5, "name": "other", "keypoints": ["one", "two"]},
        ],
        "annotations": [note(21, 10, 3, "222"), note(22, 11, 3, "220"), note(23, 12, 5, "22")],
    }
    path = folder / "notes.json"
    path.write_text(json.dumps(data))
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Copies of two annotated photos at other sizes, one of them turned by its EXIF tag, and what is no target."""
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    make_photo(0).resize((400, 240)).save(folder / "like_a.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned clockwise, so stored turned the other way
    make_photo(1).rotate(90, expand=True).save(folder / "deep" / "like_b.jpg", exif=exif, quality=95)
    (folder / "readme.txt").write_text("no image")
    (folder / "._like_a.png").write_bytes(b"what macOS leaves behind")
    return folder
