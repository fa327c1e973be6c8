"""Photos of every form, and points that are refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from transformatcher.errors import InputError
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.photos import photo_name


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([[10.0, float("nan")]], "a keypoint is NaN or infinite"),
        ([[1.0, 1.0], [500.0, 3.0]], r"point 2, \(500, 3\), lies outside the image of 200 × 120 pixels"),
        ([[1.0, 2.0, 3.0]], r"expected n points \[x, y\], found numbers of shape \(1, 3\)"),
        (np.array([1.0, 2.0]), "expected n points"),
    ],
)
def test_bad_keypoints(matcher: Matcher, photo: np.ndarray, points, message):
    with pytest.raises(InputError, match=message):
        matcher.match(photo, photo, points)


@pytest.mark.parametrize("size", [(1, 1), (3, 200)])
def test_too_small_to_show_anything(matcher: Matcher, photo: np.ndarray, tmp_path: Path, size):
    dot = np.zeros((*size, 3), dtype=np.uint8)
    Image.fromarray(dot).save(tmp_path / "dot.png")
    for target, name in ((dot, "image"), (Image.fromarray(dot), "image"), (tmp_path / "dot.png", r"dot\.png")):
        with pytest.raises(InputError, match=rf"{name}: {size[1]} × {size[0]} pixels; a photo .* at least 4 × 4"):
            matcher.match(photo, target)


def test_arrays_of_every_kind(matcher: Matcher, photo: np.ndarray):
    grey, rgba = photo[..., 0], np.dstack([photo, np.full(photo.shape[:2], 255, dtype=np.uint8)])
    points = [[50, 30]]
    np.testing.assert_allclose(
        matcher.match(rgba, photo, points).keypoints1, matcher.match(photo, photo, points).keypoints1
    )
    assert matcher.match(grey, photo, points).keypoints1.shape == (1, 2)
    with pytest.raises(InputError, match=r"expected uint8 .* got float64 \(4, 4, 3\)"):
        matcher.match(np.zeros((4, 4, 3)), photo, points)


def test_tensors(matcher: Matcher, photo: np.ndarray):
    tensor = torch.from_numpy(photo).permute(2, 0, 1)
    want = matcher.match(photo, photo, [[50, 30]]).keypoints1
    np.testing.assert_allclose(matcher.match(tensor, tensor / 255, [[50, 30]]).keypoints1, want, atol=1e-3)
    with pytest.raises(InputError, match=r"must lie in \[0, 1\]"):
        matcher.match(tensor.float(), photo, [[50, 30]])
    with pytest.raises(InputError, match=r"expected 3 × h × w .* got \(2, 4, 4\)"):
        matcher.match(torch.zeros(2, 4, 4), photo, [[1, 1]])


def test_names_of_photos(tmp_path: Path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a b.png")
    with Image.open(tmp_path / "a b.png") as image:
        for photo in (tmp_path / "a b.png", str(tmp_path / "a b.png"), image):
            assert photo_name(photo) == "a b.png"
        for photo in (image.convert("L"), np.zeros((8, 8, 3), np.uint8), torch.zeros(3, 8, 8)):
            assert photo_name(photo) == ""
