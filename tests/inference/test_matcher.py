import json
import subprocess
import sys
from functools import partial
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from transformatcher.data.synthetic import synthetic_pair
from transformatcher.errors import InputError
from transformatcher.inference.calibration import Calibration
from transformatcher.inference.checkpoint import SHIPPED
from transformatcher.inference.matcher import Matcher, pick_device
from transformatcher.viz.pictures import draw_matches, save_figure


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


class TestResult:
    def test_dense_flow_agrees_with_points(self, matcher: Matcher, photo: np.ndarray):
        matches = matcher.match(photo, photo, [[0.0, 0.0], [200.0, 120.0]])
        np.testing.assert_allclose(matches.flow_px[0, 0], matches.keypoints1[0], atol=1e-3)
        np.testing.assert_allclose(matches.flow_px[-1, -1], matches.keypoints1[1], atol=1e-3)
        assert matches.flow_confidence.shape == matches.flow_px.shape[:2]
        assert matches.flow_confidence[0, 0] == pytest.approx(matches.confidence[0], abs=1e-5)

    def test_heat_is_the_distribution_whose_mean_is_the_match(self, matcher: Matcher, photo: np.ndarray):
        pair = matcher.match(photo, photo, [[0.0, 0.0]]).pair
        heat = pair.heatmap([0.0, 0.0])
        assert heat.sum() == pytest.approx(1)
        xs = np.linspace(0, photo.shape[1], heat.shape[1])
        assert (heat.sum(axis=0) * xs).sum() == pytest.approx(pair.points([[0.0, 0.0]]).keypoints1[0, 0], abs=0.5)

    def test_uncalibrated_finds_all_calibrated_may_not(self, matcher: Matcher, photo: np.ndarray):
        sharp = matcher.match(photo, photo, [[50.0, 30.0]])
        assert not sharp.calibrated
        assert sharp.is_match.all()
        unsure = Matcher(matcher.model, matcher.config, "cpu", Calibration(-50.0, 0.0, 0.0))
        matcher.model.backbone.train()
        found = unsure.match(photo, photo, [[50.0, 30.0]])
        assert found.calibrated
        assert not found.is_match.any()
        assert found.confidence[0] < 1e-6

    def test_sure_is_the_sharper_half_or_what_is_found(self, matcher: Matcher, photo: np.ndarray):
        sharp = matcher.match(photo, photo)
        n = len(sharp.confidence)
        assert n / 2 <= sharp.reliable.sum() <= n / 2 + 1
        assert sharp.confidence[sharp.reliable].min() >= sharp.confidence[~sharp.reliable].max()
        certain = Matcher(matcher.model, matcher.config, "cpu", Calibration(50.0, 0.0, 0.0))
        matcher.model.backbone.train()
        assert certain.match(photo, photo).reliable.all()

    def test_it_draws_itself(self, matcher: Matcher, photo: np.ndarray, tmp_path: Path):
        matcher.match(photo, photo, [[50.0, 30.0]]).draw(tmp_path / "picture.png")
        with Image.open(tmp_path / "picture.png") as picture:
            assert picture.size[0] > 100

    def test_it_draws_its_flow_and_the_heat_of_a_point(self, matcher: Matcher, photo: np.ndarray, tmp_path: Path):
        pair = matcher.match(photo, photo[::2], [[50.0, 30.0]]).pair
        for picture, figure in (("flow.png", pair.draw_flow), ("heat.png", partial(pair.draw_heatmap, [50.0, 30.0]))):
            drawn = figure(tmp_path / picture, "title")
            assert "title" in [text.get_text() for text in drawn.texts]
            with Image.open(tmp_path / picture) as image:
                assert image.size[0] > 100
        with pytest.raises(InputError, match="lies outside the image of 200 × 120"):
            pair.draw_heatmap([500.0, 30.0])


def test_tensors(matcher: Matcher, photo: np.ndarray):
    tensor = torch.from_numpy(photo).permute(2, 0, 1)
    want = matcher.match(photo, photo, [[50, 30]]).keypoints1
    np.testing.assert_allclose(matcher.match(tensor, tensor / 255, [[50, 30]]).keypoints1, want, atol=1e-3)
    with pytest.raises(InputError, match=r"must lie in \[0, 1\]"):
        matcher.match(tensor.float(), photo, [[50, 30]])
    with pytest.raises(InputError, match=r"expected 3 × h × w .* got \(2, 4, 4\)"):
        matcher.match(torch.zeros(2, 4, 4), photo, [[1, 1]])


def test_who_draws_nothing_waits_for_no_plots():
    """matplotlib and scipy take longer to import than two photos to match."""
    code = "import sys, transformatcher.cli.tables, transformatcher.inference.matcher\n"
    code += "sys.exit(bool({'matplotlib', 'scipy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_devices():
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(InputError, match="choose auto"):
        pick_device("gpu9")


def test_pictures(matcher: Matcher, photo: np.ndarray, tmp_path: Path):
    for name, points in (("few.png", [[50.0, 30.0]]), ("many.jpg", None)):
        save_figure(draw_matches(photo, photo, matcher.match(photo, photo, points), "title"), tmp_path / "new" / name)
        with Image.open(tmp_path / "new" / name) as picture:
            assert picture.size[0] > picture.size[1]  # side by side
            assert np.asarray(picture.convert("L")).std() > 20
