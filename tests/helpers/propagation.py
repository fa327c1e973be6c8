"""Photos and keypoints that propagation starts from."""

import numpy as np
from PIL import Image

from transformatcher.data.synthetic import synthetic_pair

POINTS = {"one": (40, 30), "two": (150, 30), "three": (100, 90)}


def make_photo(seed: int) -> Image.Image:
    pixels = synthetic_pair(seed, size=(120, 200))[0].src_image
    assert isinstance(pixels, np.ndarray)
    return Image.fromarray(pixels)
