"""Two photos → points: one target, many targets, the model in the package."""

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from transformatcher.inference.checkpoint import SHIPPED
from transformatcher.inference.matcher import Matcher


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


@pytest.fixture(scope="module")
def shipped() -> Matcher:
    return Matcher.from_pretrained(device="cpu")


class TestShippedModel:
    """The model in the package knows cats."""

    def test_it_is_small_and_described(self):
        assert (SHIPPED / "model.safetensors").stat().st_size <= 50e6
        assert "licence" in (SHIPPED / "MODEL_CARD.md").read_text(encoding="utf-8")

    @pytest.mark.parametrize(
        ("target", "marked"),  # by hand
        [
            ("cat_b.jpg", {"left eye": (212, 312), "right eye": (372, 298), "nose": (291, 412)}),
            ("cat_c.jpg", {"left eye": (225, 130), "right eye": (428, 135), "nose": (338, 282)}),
        ],
    )
    def test_eyes_and_nose(self, shipped: Matcher, target, marked):
        """Within a fifth of the distance between the eyes, so that no eye is taken for the other."""
        folder = Path(str(files("transformatcher") / "examples"))
        points = json.loads((folder / "cat_a.json").read_text(encoding="utf-8"))
        matches = shipped.match(folder / "cat_a.jpg", folder / target, [points[name] for name in marked])
        true = np.array(list(marked.values()))
        errors = np.linalg.norm(matches.keypoints1 - true, axis=1)
        assert (errors < np.linalg.norm(true[0] - true[1]) / 5).all()

    def test_a_photo_on_itself(self, shipped: Matcher):
        photo = str(files("transformatcher") / "examples" / "cat_c.jpg")
        matches = shipped.match(photo, photo)
        assert len(matches.keypoints0) > 100
        assert np.median(np.linalg.norm(matches.keypoints0 - matches.keypoints1, axis=1)) < 15


class TestManyTargets:
    def test_the_same_as_one_by_one(self, matcher: Matcher, photo: np.ndarray, monkeypatch: pytest.MonkeyPatch):
        targets = [photo, photo[:, ::-1].copy(), photo[::-1].copy()]
        points = [[50.0, 30.0], [120.0, 90.0]]
        matcher.model.backbone.eval()  # batch statistics would tell targets of one batch apart from others
        singly = [matcher.match(photo, target, points) for target in targets]
        encoded = []
        encode = matcher.model.encode
        monkeypatch.setattr(matcher.model, "encode", lambda images: encoded.append(len(images)) or encode(images))
        together = list(matcher.match_many(photo, iter(targets), points, batch=2))
        assert encoded == [3, 1]  # the source once, in front of the first two
        for one, many in zip(singly, together, strict=True):
            np.testing.assert_allclose(one.keypoints1, many.keypoints1, atol=1e-3)
            np.testing.assert_allclose(one.confidence, many.confidence, atol=1e-5)
        matcher.model.backbone.train()

    def test_kept_features_serve_again(self, matcher: Matcher, photo: np.ndarray):
        matcher.model.backbone.eval()
        src, trg = matcher.encode([photo, photo[::-1].copy()])
        pair = next(matcher.pairs(src, [trg]))
        np.testing.assert_allclose(
            pair.points([[50, 30]]).keypoints1,
            matcher.match(photo, photo[::-1].copy(), [[50, 30]]).keypoints1,
            atol=1e-3,
        )
        matcher.model.backbone.train()


def test_who_draws_nothing_waits_for_no_plots():
    """matplotlib and scipy take longer to import than two photos to match."""
    code = "import sys, transformatcher.cli.tables, transformatcher.inference.matcher\n"
    code += "sys.exit(bool({'matplotlib', 'scipy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
