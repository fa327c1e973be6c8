"""Photos and keypoints that propagation starts from."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from transformatcher.data.synthetic import synthetic_pair

POINTS = {"one": (40, 30), "two": (150, 30), "three": (100, 90)}


def make_photo(seed: int) -> Image.Image:
    pixels = synthetic_pair(seed, size=(120, 200))[0].src_image
    assert isinstance(pixels, np.ndarray)
    return Image.fromarray(pixels)


def note_of(file: Path, name: str, category: int = 3) -> dict[str, Any]:
    """The annotation of one category on the image of this name, in whichever folder."""
    data = json.loads(file.read_text())
    (image,) = [image["id"] for image in data["images"] if f"/{image['file_name']}".endswith(f"/{name}")]
    (note,) = [n for n in data["annotations"] if (n["image_id"], n["category_id"]) == (image, category)]
    return note
