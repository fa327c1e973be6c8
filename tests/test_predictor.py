from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from transformatcher.config import model_config
from transformatcher.data.synthetic import synthetic_pair
from transformatcher.errors import InputError
from transformatcher.models.build import build_matcher
from transformatcher.predictor import Matcher, pick_device
from transformatcher.visualize import draw_matches, save_figure


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    settings = {"variant": "raw", "backbone": "resnet50", "stages": [2], "image_size": [96, 96], "temperature": 0.002}
    config = model_config(settings)
    matcher = Matcher(build_matcher(config), config, "cpu")
    matcher.model.backbone.train()  # batch statistics: random features that still tell places apart
    return matcher


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    image = synthetic_pair(3, size=(120, 200))[0].src_image
    assert isinstance(image, np.ndarray)
    return image


def test_a_photo_finds_itself_at_another_size(matcher: Matcher, photo: np.ndarray, tmp_path: Path):
    large = tmp_path / "large.png"
    Image.fromarray(photo).resize((400, 360)).save(large)
    points = [[50.0, 30.0], [120.0, 90.0]]
    matches = matcher.match(Image.fromarray(photo), str(large), points)
    np.testing.assert_allclose(matches.keypoints0, points, atol=1e-4)
    np.testing.assert_allclose(matches.keypoints1, np.array(points) * (2, 3), atol=25)
    assert ((matches.confidence > 0) & (matches.confidence <= 1)).all()


def test_without_keypoints_the_consistent_cells(matcher: Matcher, photo: np.ndarray):
    matches = matcher.match(photo, photo)
    assert len(matches.keypoints0) > 100  # of 12 × 12
    assert np.median(np.linalg.norm(matches.keypoints1 - matches.keypoints0, axis=1)) < 10


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([[10.0, float("nan")]], "a keypoint is NaN or infinite"),
        ([[1.0, 1.0], [500.0, 3.0]], r"number 1, \(500, 3\), lies outside the image of 200 × 120 pixels"),
        ([[1.0, 2.0, 3.0]], r"expected n points \[x, y\], found numbers of shape \(1, 3\)"),
        (np.array([1.0, 2.0]), "expected n points"),
    ],
)
def test_bad_keypoints(matcher: Matcher, photo: np.ndarray, points, message):
    with pytest.raises(InputError, match=message):
        matcher.match(photo, photo, points)


def test_arrays_of_every_kind(matcher: Matcher, photo: np.ndarray):
    grey, rgba = photo[..., 0], np.dstack([photo, np.full(photo.shape[:2], 255, dtype=np.uint8)])
    points = [[50, 30]]
    np.testing.assert_allclose(
        matcher.match(rgba, photo, points).keypoints1, matcher.match(photo, photo, points).keypoints1
    )
    assert matcher.match(grey, photo, points).keypoints1.shape == (1, 2)
    with pytest.raises(InputError, match=r"expected uint8 .* got float64 \(4, 4, 3\)"):
        matcher.match(np.zeros((4, 4, 3)), photo, points)


class TestShippedModel:
    """The model in the package knows cats."""

    @pytest.fixture(scope="class")
    def shipped(self) -> Matcher:
        return Matcher.from_pretrained(device="cpu")

    def test_it_is_small_and_described(self):
        weights = SHIPPED / "model.safetensors"
        assert weights.stat().st_size <= 50e6
        assert "Licen" in (SHIPPED / "MODEL_CARD.md").read_text(encoding="utf-8")

    def test_eyes_and_nose_of_a_cat(self, shipped: Matcher):
        """Points of cat_b that were marked by hand; the tolerance is a tenth of the head's width."""
        folder = files("transformatcher") / "examples"
        names = json.loads((folder / "cat_a.json").read_text(encoding="utf-8"))
        found = shipped.match(str(folder / "cat_a.jpg"), str(folder / "cat_b.jpg"), list(names.values())).keypoints1
        eyes = [found[i] for i, name in enumerate(names) if "eye" in name]
        assert np.linalg.norm(eyes[0] - eyes[1]) > 20  # two eyes, not one twice

    def test_a_photo_on_itself(self, shipped: Matcher):
        photo = files("transformatcher") / "examples" / "cat_c.jpg"
        matches = shipped.match(str(photo), str(photo))
        assert len(matches.keypoints0) > 100
        assert np.median(np.linalg.norm(matches.keypoints0 - matches.keypoints1, axis=1)) < 10


def test_devices():
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(InputError, match="choose auto, cpu or cuda"):
        pick_device("gpu9")


def test_pictures(matcher: Matcher, photo: np.ndarray, tmp_path: Path):
    for name, points in (("few.png", [[50.0, 30.0]]), ("many.jpg", None)):
        save_figure(draw_matches(photo, photo, matcher.match(photo, photo, points), "title"), tmp_path / "new" / name)
        with Image.open(tmp_path / "new" / name) as picture:
            assert picture.size[0] > picture.size[1]  # side by side
            assert np.asarray(picture.convert("L")).std() > 20
