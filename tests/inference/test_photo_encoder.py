"""Images are read and encoded once, within a limit of memory."""

from pathlib import Path

import numpy as np
import torch
from helpers.passes import texture
from PIL import Image

from transformatcher.inference.encoded_photo import EncodedPhoto
from transformatcher.inference.photo_encoder import CachedFeatures, Decoder, FeatureCache
from transformatcher.storage import ImageRoot


def test_what_was_used_last_is_kept():
    def seen() -> CachedFeatures:
        photo = EncodedPhoto(np.zeros((10, 10, 3), dtype=np.uint8), [torch.zeros(1, 1175, 1, 1)])
        return CachedFeatures((10, 10), photo)  # 5,000 bytes in all

    cache = FeatureCache(15_000)
    for name in "abc":
        cache.put(name, seen())
    assert cache.get("a") is not None
    cache.put("d", seen())
    assert list(cache.kept) == ["c", "a", "d"]
    assert cache.get("b") is None
    assert cache.bytes == 15_000


def test_as_many_pixels_are_kept_as_crops_can_use(tmp_path: Path):
    Image.fromarray(texture(0, (300, 500))).save(tmp_path / "photo.png")
    root = ImageRoot(str(tmp_path))
    for detail, kept in ((0.0, (1, 1)), (2.0, (192, 320)), (3.0, (288, 480)), (9.0, (300, 500))):
        image = Decoder(root, (96, 96), detail)("photo.png")
        assert image.size == (300, 500)
        assert image.pixels.shape[:2] == kept
        assert image.tensor.shape == (3, 96, 96)
    whole = Decoder(root, (96, 96))("photo.png").pixels
    assert whole.base is None  # a view would keep the whole photo in memory
