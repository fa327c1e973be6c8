"""Photos with nothing to find: the shipped model must not find it."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA
from PIL import Image

from transformatcher.inference.matcher import Matcher

CAT = Path(str(files("transformatcher") / "examples" / "cat_a.jpg"))
POINTS = [[168, 115], [316, 136], [262, 241], [255, 70], [245, 277], [130, 215]]


@pytest.fixture(scope="module")
def shipped() -> Matcher:
    return Matcher.from_pretrained(device="cpu")


def picture(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    ramp = np.linspace(0, 255, 400)
    return {
        "white": np.full((300, 400, 3), 255, dtype=np.uint8),
        "black": np.zeros((300, 400, 3), dtype=np.uint8),
        "noise": rng.integers(0, 256, (300, 400, 3), dtype=np.uint8),
        "gradient": np.tile(ramp.astype(np.uint8)[None, :, None], (300, 1, 3)),
        "stripes": np.tile(((ramp // 12 % 2) * 255).astype(np.uint8)[None, :, None], (300, 1, 3)),
    }[kind]


def assert_nothing_is_found(matcher: Matcher, src: Any, trg: Any, points: Sequence[Sequence[float]] = POINTS) -> None:
    """Neither the points that are asked for, nor any others."""
    for keypoints in (points, None):
        matches = matcher.match(src, trg, keypoints)
        assert matches.same_kind < 0.5
        assert not matches.is_match.any()


@pytest.mark.parametrize("kind", ["white", "noise"])
def test_nothing_is_found_on_it(shipped: Matcher, kind: str):
    assert_nothing_is_found(shipped, CAT, picture(kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["black", "gradient", "stripes"])
def test_nor_on_these(shipped: Matcher, kind: str):
    assert_nothing_is_found(shipped, CAT, picture(kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["white", "noise"])
def test_nothing_of_it_is_found_on_a_photo(shipped: Matcher, kind: str):
    assert_nothing_is_found(shipped, picture(kind), CAT)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("category", ["car", "bicycle", "person"])
def test_a_cat_is_not_found_on_something_else_nor_that_on_a_cat(shipped: Matcher, category: str):
    photo = min((DATA / "SPair-71k" / "JPEGImages" / category).glob("*.jpg"))
    assert_nothing_is_found(shipped, CAT, photo)
    with Image.open(photo) as image:
        w, h = image.size
    assert_nothing_is_found(shipped, photo, CAT, [[x * w, y * h] for x in (0.3, 0.5, 0.7) for y in (0.4, 0.6)])


def test_cats_are_found_on_cats(shipped: Matcher):
    """All points, with and without being asked for; and two cats of opposite tilt are not taken for mirror images."""
    for name in ("cat_b.jpg", "cat_c.jpg"):
        matches = shipped.match(CAT, CAT.parent / name, POINTS)
        assert matches.same_kind > 0.9
        assert matches.is_match.all()
        assert not matches.mirrored
    one_eye = shipped.match(CAT, CAT.parent / "cat_c.jpg", POINTS[:1])  # alone, it might be either eye
    assert not one_eye.mirrored
    assert np.linalg.norm(one_eye.keypoints1 - matches.keypoints1[:1]) < 20
    matches = shipped.match(CAT, CAT.parent / "cat_c.jpg")
    assert matches.is_match.sum() > 40
